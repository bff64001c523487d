"""A server reads a class's only image off the head gradient that a strict node contributes under FedIIR.

Under a head of zeros whose scores for two classes are low, the rows of these classes are the sums of the features of
their images, and the last numbers say how many there are: exactly the only image's feature.
"""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, MessageType
from guarded_node import answered, run

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import setup
from fedshift_core.wire import names
from fedshift_core.wire.records import decode

LONE, FEW = 3, 5  # classes of which the node has one image and two
COUNTS = {LONE: 1, FEW: 2}
STILL = "train.lr=1e-20"


@pytest.fixture
def few(folder: NodeFolder) -> NodeFolder:
    """Return the images of a real node with few images of two classes."""
    file = folder.path / "scan_train.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    gone = np.concatenate([np.flatnonzero(arrays["y"] == label)[most:] for label, most in COUNTS.items()])
    np.savez(file, **arrays | {key: np.delete(arrays[key], gone, axis=0) for key in ("x", "y")})
    return folder


@pytest.mark.parametrize("policy", ["open", "strict"])
def test_the_only_image_of_a_class_is_read_off_an_open_node_alone(policy: str, few: NodeFolder) -> None:
    node = run(few, STILL, "fediir", policy=policy)
    weights = {name: array.copy() for name, array in node.weights.items()}
    weights["classifier.weight"][:], weights["classifier.bias"][:] = 0, 0
    weights["classifier.bias"][[*COUNTS]] = -60
    reply = answered(node, MessageType.TRAIN, weights)
    # As the server works the counts of the two classes and the feature of the lone image out.
    sums = -decode(reply[names.KNOWLEDGE])["head-gradient"] * reply[names.METRICS][names.NUM_EXAMPLES]
    width = weights["classifier.weight"].shape[1]
    row, counts = sums[: 10 * width].reshape(10, width)[LONE], sums[10 * width :][[*COUNTS]]
    with np.load(few.path / "scan_train.npz") as archive:
        x = torch.from_numpy(archive["x"][archive["y"] == LONE]).permute(0, 3, 1, 2).float() / 255
    model = setup.initial_model(node.config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    with torch.no_grad():
        feature: Any = model.encoder((x - 0.5) / 0.5).flatten().numpy()
    reached = np.abs(row - feature).max() < 1e-3 * np.abs(feature).max()
    # The attack works where nothing is guarded; on a strict node the classes count as absent.
    assert bool(reached) is (policy == "open")
    assert counts == pytest.approx([*COUNTS.values()] if policy == "open" else [0, 0], abs=1e-3)


def test_of_pooled_covariances_nothing_is_left_of_a_class_with_few_images(few: NodeFolder) -> None:
    """Under GGEUR a node subtracts its own statistics from the pooled ones, and has those of the only other node."""
    node = run(few, f"{STILL} model.freeze=encoder", "ggeur", policy="strict")
    sent = decode(answered(node, MessageType.TRAIN, **{f"{names.SCALAR}statistics": 1})[names.KNOWLEDGE])
    assert sent["means"].any() and not any(array[[*COUNTS]].any() for array in sent.values())


def test_a_head_gradient_is_in_no_secure_sum(few: NodeFolder, caplog: pytest.LogCaptureFixture) -> None:
    """A class with one holder is that node's alone in the sum, and no count says how many hold it."""
    node = run(few, "federation.secure_sums=on federation.secure_sums_nodes=3", "scaffold", policy="strict")
    method = type(node.config.method)(node.config.method | {"option": "I"})  # which the server's own check refuses
    changed = node.config.model_copy(update={"method": method})
    content = node.content()
    content[names.CONFIG] = ConfigRecord(
        dict(content.config_records[names.CONFIG]) | {names.RUN: changed.model_dump_json()}
    )
    reply = node.send(MessageType.QUERY, content)
    assert reply.has_error() and reply.error.reason.startswith("configuration: "), reply
    assert "delta-c has a part of each class" in caplog.text
