"""The length of a node's weights after local training, of its private ones too, which the server never sees."""

from fedshift_clients.features import Call, Next, NodeFeature, Reply
from fedshift_example.norms import NORM, WeightNormsParams


class WeightNormsOnNode(NodeFeature):
    params: WeightNormsParams

    def on_train(self, call: Call, next: Next) -> Reply:
        reply = next(call)  # the rest: features further in, and local training
        squares = [
            float(weight.detach().double().square().sum())
            for name, weight in call.client.model.named_parameters()
            if name.startswith(self.params.begins)
        ]
        reply.metrics[NORM] = sum(squares) ** 0.5
        return reply
