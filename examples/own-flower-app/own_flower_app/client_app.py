"""The node: a client of FedShift around the app's own network and images."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedshift_clients import plain
from fedshift_clients.methods.fedproto import FedProtoClient
from own_flower_app.task import load_data, new_model

app = ClientApp()


def new_client(msg: Message, context: Context) -> FedProtoClient:
    """Return the client of this node."""
    number = int(context.node_config["partition-id"])
    (images, labels), test = load_data(number, int(context.node_config["num-partitions"]))
    settings = {"lr": msg.content["config"].get("lr", 0.05), "epochs": 2}
    return plain.node(
        FedProtoClient, new_model(), images, labels, test=test, index=number, train=settings, share_weights=True
    )  # fmt: skip


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train on the node's images."""
    return plain.train(new_client(msg, context), msg, context)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Score the node's test images."""
    return plain.evaluate(new_client(msg, context), msg, context)
