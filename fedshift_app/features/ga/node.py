"""The numbers behind generalisation gaps (``aggregation.weights=ga``): how weights do on the node's own images."""

from typing import Any

from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Metrics, Next, NodeFeature, Reply, Request
from fedshift_clients.training.phases import EVALUATION
from fedshift_core.wire.names import GAP, LOCAL_RECEIVED, LOCAL_TRAINED
from fedshift_datasets.base import ImageSet


class GapsOnNode(NodeFeature):
    """Scores the weights as they come and as they leave."""

    def refuse(self, request: Request) -> str:
        """Allow what the section ``aggregation`` asks for."""
        rule = request.config.aggregation
        why = f"this run has aggregation.gap={rule.gap}, aggregation.gap_on={rule.gap_on}"
        asks = request.given.get(GAP) == [rule.gap, rule.gap_on]
        return request.but(GAP, request.private or ("" if asks else why))

    def on_train(self, call: Call, next: Next) -> Reply:
        """Add the mean loss or the accuracy of the weights as they came, and as local training left them."""
        if GAP not in call.options:
            return next(call)
        what, where = call.options[GAP]
        client = call.client
        images = client.train_set if where == "train" else client.own_sets.get(where)
        received = own_score(client, images, LOCAL_RECEIVED, what)
        reply = next(call)
        reply.metrics.update(received | own_score(client, images, LOCAL_TRAINED, what))
        return reply


def own_score(client: DomainClient[Any], images: ImageSet | None, name: str, what: str = "loss") -> Metrics:
    """Return the model's mean loss, or its accuracy, on the node's own images; nothing of too few for a number."""
    if images is None or len(images) < client.setup.least_images:
        return {}
    client.start_pass()
    correct, loss_sum = client.score(images)
    client.passed(EVALUATION)
    return {name: (loss_sum if what == "loss" else correct) / len(images)}
