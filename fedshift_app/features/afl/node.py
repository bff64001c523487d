"""The loss behind the weights of the worst domain (``aggregation.weights=afl``): of the weights as they come."""

from fedshift_app.features.ga.node import own_score
from fedshift_clients.features import Call, Next, NodeFeature, Reply, Request
from fedshift_core.wire.names import ASK_LOSS, RECEIVED_LOSS


class ReceivedLossOnNode(NodeFeature):
    """Scores the weights as they come on the node's training images."""

    def refuse(self, request: Request) -> str:
        """Allow what the section ``aggregation`` asks for."""
        asks = request.given.get(ASK_LOSS) is True
        return request.but(ASK_LOSS, request.private or ("" if asks else "this run has aggregation.weights=afl"))

    def on_train(self, call: Call, next: Next) -> Reply:
        """Add the mean loss; nothing from a node with too few images for a number to leave it."""
        client = call.client
        received = own_score(client, client.train_set, RECEIVED_LOSS) if call.options.get(ASK_LOSS) else {}
        reply = next(call)
        reply.metrics.update(received)
        return reply
