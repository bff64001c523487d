"""The numbers behind generalisation gaps (``aggregation.weights=ga``): how weights do on the node's own images."""

from collections.abc import Mapping
from typing import Any

from fedshift_clients.features.base import Client, Metrics, NodeFeature, Request
from fedshift_clients.training.phases import EVALUATION
from fedshift_core.wire.names import GAP, LOCAL_RECEIVED, LOCAL_TRAINED


class GapsOnNode(NodeFeature):
    """Scores the weights as they come and as they leave."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow what the section ``aggregation`` asks for."""
        rule = request.config.aggregation
        if request.private:
            return request.private
        if rule.weights != "ga":
            return f"this run has aggregation.weights={rule.weights}"
        wanted = [rule.gap, rule.gap_on]
        return "" if value == wanted else f"this run has aggregation.gap={rule.gap}, aggregation.gap_on={rule.gap_on}"

    def before_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return the mean loss or the accuracy of the weights as they came."""
        return _own_score(client, LOCAL_RECEIVED, request)

    def after_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return the same of the weights that local training left."""
        return _own_score(client, LOCAL_TRAINED, request)


def _own_score(client: Client, name: str, request: Mapping[str, Any]) -> Metrics:
    what, where = request.get(GAP, ("", ""))
    images = client.train_set if where == "train" else client.own_sets.get(where)
    if not what or images is None or len(images) < client.setup.least_images:
        return {}
    client.start_pass()
    correct, loss_sum = client.score(images)
    client.passed(EVALUATION)
    return {name: (loss_sum if what == "loss" else correct) / len(images)}
