"""The loss behind the weights of the worst domain (``aggregation.weights=afl``): of the weights as they come."""

from collections.abc import Mapping
from typing import Any

from fedshift_clients.features.base import Client, Metrics, NodeFeature, Request
from fedshift_clients.training.phases import EVALUATION
from fedshift_core.wire.names import ASK_LOSS, RECEIVED_LOSS


class ReceivedLossOnNode(NodeFeature):
    """Scores the weights as they come on the node's training images."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow what the section ``aggregation`` asks for."""
        if request.private:
            return request.private
        rule = request.config.aggregation.weights
        return "" if rule == "afl" and value is True else f"this run has aggregation.weights={rule}"

    def before_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return the mean loss; nothing from a node with too few images for a number to leave it."""
        if not request.get(ASK_LOSS) or len(client.train_set) < client.setup.least_images:
            return {}
        client.start_pass()
        _, loss_sum = client.score(client.train_set)
        client.passed(EVALUATION)
        return {RECEIVED_LOSS: loss_sum / len(client.train_set)}
