"""A server reads a class's only image off the head gradient that a strict node contributes under FedIIR.

Under a head of zeros whose scores for two classes are low, the rows of these classes are the sums of the features of
their images, and the last numbers say how many there are: exactly the only image's feature.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from real_node import AppOfNode

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_app.node import setup, state_folder
from fedshift_core.arrays import Arrays
from fedshift_core.wire import names
from fedshift_core.wire.records import decode, encode

LONE, FEW = 3, 5  # classes of which the node has one image and two
COUNTS = {LONE: 1, FEW: 2}
STILL = "train.lr=1e-20 train.precision=float32 model.name=cnn"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFolder:
    """Return the images of a real node with few images of two classes."""
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    config = resolve({"set": "dataset.domains=[scan,sketch] allocation.share=0.2"})
    made = exporting.export(config, 2, tmp_path / "in")[0]
    file = made.path / "scan_train.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    gone = np.concatenate([np.flatnonzero(arrays["y"] == label)[most:] for label, most in COUNTS.items()])
    np.savez(file, **arrays | {key: np.delete(arrays[key], gone, axis=0) for key in ("x", "y")})
    return made


def trained(node: AppOfNode, weights: Arrays, **more: Any) -> Message:
    content = node.content(**more)
    content["arrays"] = encode(weights)
    return node.send("train", content)


def feature_of_lone_image(node: AppOfNode, folder: NodeFolder, weights: Arrays) -> Any:
    """Return the feature (D,) of the only image of its class, which the server must not learn."""
    with np.load(folder.path / "scan_train.npz") as archive:
        x = torch.from_numpy(archive["x"][archive["y"] == LONE]).permute(0, 3, 1, 2).float() / 255
    model = setup.initial_model(node.config)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
    model.eval()
    with torch.no_grad():
        return model.encoder((x - 0.5) / 0.5).flatten().numpy()


def attack(reply: Message, width: int) -> tuple[dict[int, float], Any]:
    """Return the counts of the two classes and the feature of the lone image, as the server works them out."""
    gradient = decode(reply.content.array_records[names.KNOWLEDGE])["head-gradient"]
    images = int(str(reply.content.metric_records[names.METRICS][names.NUM_EXAMPLES]))
    rows, biases = -gradient[: 10 * width].reshape(10, width) * images, -gradient[10 * width :] * images
    return {label: float(biases[label]) for label in COUNTS}, rows[LONE]


@pytest.mark.parametrize("policy", ["open", "strict"])
def test_the_only_image_of_a_class_is_read_off_an_open_node_alone(policy: str, folder: NodeFolder) -> None:
    node = AppOfNode(folder, STILL, method="fediir", policy=policy)
    weights = {name: array.copy() for name, array in node.weights.items()}
    width = weights["classifier.weight"].shape[1]
    weights["classifier.weight"][:], weights["classifier.bias"][:] = 0, 0
    weights["classifier.bias"][[*COUNTS]] = -60
    reply = trained(node, weights)
    if policy == "strict" and reply.has_error():
        assert reply.error.reason == "fewer than least_images=5 images are behind a class of head-gradient"
        return
    counts, row = attack(reply, width)
    found = feature_of_lone_image(node, folder, weights)
    reached = np.abs(row - found).max() < 1e-3 * np.abs(found).max()
    if policy == "open":  # the attack works where nothing is guarded
        assert reached and counts == pytest.approx(COUNTS, abs=1e-3)
    else:  # the classes count as absent
        assert not reached and counts == pytest.approx(dict.fromkeys(COUNTS, 0), abs=1e-3)


def test_of_pooled_covariances_nothing_is_left_of_a_class_with_few_images(folder: NodeFolder) -> None:
    """Under GGEUR a node subtracts its own statistics from the pooled ones, and has those of the only other node."""
    node = AppOfNode(folder, f"{STILL} model.freeze=encoder", method="ggeur", policy="strict")
    reply = trained(node, node.weights, **{f"{names.SCALAR}statistics": 1})
    assert not reply.has_error(), reply.error.reason
    sent = decode(reply.content.array_records[names.KNOWLEDGE])
    assert sent["means"].any() and not any(array[[*COUNTS]].any() for array in sent.values())


def test_a_head_gradient_is_in_no_secure_sum(folder: NodeFolder, caplog: pytest.LogCaptureFixture) -> None:
    """A class with one holder is that node's alone in the sum, and no count says how many hold it."""
    given = "federation.secure_sums=on federation.secure_sums_nodes=3"
    node = AppOfNode(folder, STILL, method="scaffold", policy="strict")
    run = resolve({"method": "scaffold", "rounds": 10, "set": f"dataset.domains=[scan,sketch] {STILL} {given}"})
    method = run.method | {"option": "I"}  # which the server's own check refuses
    content = node.content()
    config = run.model_copy(update={"method": type(run.method)(method)})
    content[names.CONFIG] = ConfigRecord(
        dict(content.config_records[names.CONFIG]) | {names.RUN: config.model_dump_json()}
    )
    reply = node.send("query", content)
    assert reply.has_error() and reply.error.reason.startswith("configuration: "), reply
    assert "delta-c has a part of each class" in caplog.text
