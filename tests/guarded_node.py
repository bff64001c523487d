"""A real node under the strict policy for tests of attacks: whatever it has written goes with its folder."""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import MessageType, RecordDict
from real_node import SHORT, AppOfNode

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_core.arrays import Arrays
from fedshift_core.wire import names
from fedshift_core.wire.records import encode

TRAINED = "model.name=cnn train.precision=float32"


def images(tmp_path: Path, share: float = 0.5) -> NodeFolder:
    """Return the folder of a node that has some images of each class."""
    config = resolve({"set": f"{SHORT} allocation.share={share}"})
    return exporting.export(config, 2, tmp_path / "nodes")[0]


def run(folder: NodeFolder, given: str = "", method: str = "fedavg", **node_config: Any) -> AppOfNode:
    """Return the node in a run of its own, which knows nothing of others."""
    return AppOfNode(folder, f"{TRAINED} {given}", method, **node_config)


def answered(node: AppOfNode, kind: str, weights: Arrays | None = None, **more: Any) -> RecordDict:
    """Return what a node answers, to weights of the server's choice."""
    content = node.content(**more)
    if weights is not None:
        content["arrays"] = encode(weights)
    reply = node.send(kind, content)
    assert not reply.has_error(), reply.error.reason
    return reply.content


def refused(node: AppOfNode, kind: str, weights: Arrays | None = None, **more: Any) -> str:
    """Return why the node's owner refuses a message."""
    content = node.content(**more)
    if weights is not None:
        content["arrays"] = encode(weights)
    reply = node.send(kind, content)
    assert reply.has_error(), dict(reply.content["metrics"])
    assert reply.error.code == names.DECLINED, reply.error
    return str(reply.error.reason)


def scored(node: AppOfNode, weights: Arrays | None = None, **more: Any) -> dict[str, Any]:
    """Return the numbers with which a node answers what asks for scores of its test images."""
    asked = {names.DOMAINS: ["scan"]} | more
    return dict(answered(node, MessageType.EVALUATE, weights, **asked)["metrics"])


def constant(weights: Arrays, label: int, more: float = 9.0) -> Arrays:
    """Return weights of a network that says one class of every image."""
    zero = {name: np.zeros_like(array) for name, array in weights.items()}
    zero["classifier.bias"][label] = more
    return zero
