"""Real nodes for tests of attacks: one under the strict policy, and runs of several whose owners refuse nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from real_node import SHORT, AppOfNode

from fedshift.run.engine import inline
from fedshift.run.launch import runner
from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_core.arrays import Arrays
from fedshift_core.wire import names
from fedshift_core.wire.records import encode

#: Writes an owner's policy and returns its file: the fixture ``policy``.
Owner = Callable[..., str]
TRAINED = "model.name=cnn train.precision=float32"


def images(tmp_path: Path, share: float = 0.5) -> NodeFolder:
    """Return the folder of a node that has some images of each class."""
    config = resolve({"set": f"{SHORT} allocation.share={share}"})
    return exporting.export(config, 2, tmp_path / "nodes")[0]


def run(folder: NodeFolder, given: str = "", method: str = "fedavg", **node_config: Any) -> AppOfNode:
    """Return the node in a run of its own, which knows nothing of others."""
    return AppOfNode(folder, f"{TRAINED} {given}", method, **node_config)


def _reply(node: AppOfNode, kind: str, weights: Arrays | None, more: Any) -> Message:
    content = node.content(**more)
    if weights is not None:
        content["arrays"] = encode(weights)
    return node.send(kind, content)


def answered(node: AppOfNode, kind: str, weights: Arrays | None = None, **more: Any) -> RecordDict:
    """Return what a node answers, to weights of the server's choice."""
    reply = _reply(node, kind, weights, more)
    assert not reply.has_error(), reply.error.reason
    return reply.content


def refused(node: AppOfNode, kind: str, weights: Arrays | None = None, **more: Any) -> str:
    """Return why the node's owner refuses a message."""
    reply = _reply(node, kind, weights, more)
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


class OpenNodes(inline.InlineGrid):
    """A grid of real nodes with these images."""

    engine_name = "deployment"
    folders: Sequence[NodeFolder]

    def context_of(self, node_id: int) -> Any:
        folder = self.folders[inline.index_of(node_id)]
        return self._contexts.setdefault(node_id, open_context(folder))


def open_context(folder: NodeFolder) -> Any:
    """Return the context of a node whose owner refuses nothing."""
    own = {"domain": folder.domain, "data-dir": str(folder.path), "policy": "open"}
    return make_context(inline._FIRST_ID + folder.index, own, {})


def run_openly(grid: type[OpenNodes], method: str, rounds: int, given: str, output: Path) -> None:
    """Run a method on a grid of open nodes, on a network that it takes."""
    known = registry.get(method)
    network = "cnn_bn" if known.needs.get("network") == "batchnorm" else "cnn"
    flat = {"method": method, "experiment": "handwritten", "rounds": rounds, "output-dir": str(output)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "InlineGrid", grid)
        runner.run_inline(flat | {"set": f"{known.short} model.name={network} {given}"}, len(grid.folders))
