"""The length of a node's weights after local training, of its private ones too, which the server never sees."""

from collections.abc import Mapping
from typing import Any

from fedshift_clients.features.base import Client, Metrics, NodeFeature
from fedshift_example.norms import NORM, WeightNormsParams


class WeightNormsOnNode(NodeFeature):
    params: WeightNormsParams

    def after_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        squares = [
            float(weight.detach().double().square().sum())
            for name, weight in client.model.named_parameters()
            if name.startswith(self.params.begins)
        ]
        return {NORM: sum(squares) ** 0.5}
