"""A server asks for parts of a node's training images that differ by one: validation parts, samples for BatchNorm."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import MessageType
from guarded_node import answered, images, refused, run

from fedshift_core.wire.records import decode


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))


def test_two_validation_fractions(tmp_path: Path) -> None:
    folder = images(tmp_path)
    first, second = (run(folder, f"allocation.validation_fraction={part}", "fedproc") for part in (0.1, 0.107))
    assert "prototypes" in answered(first, MessageType.TRAIN)["knowledge"]
    for kind in (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE):  # counts by class would tell as well
        more = {"domains": ["scan"]} if kind == MessageType.EVALUATE else {}
        assert "allocation.validation_fraction=0.107, allowed is 0.1: " in refused(second, kind, **more)


def test_two_samples_for_batchnorm(tmp_path: Path) -> None:
    folder = images(tmp_path)
    asked = "model.name=cnn_bn evaluate.bn=[averaged,retaken] evaluate.bn_images={}"
    first, second = (run(folder, asked.format(number)) for number in (8, 9))
    sums = {"take-statistics": True, "bn-images": 8}
    kept = decode(answered(first, MessageType.EVALUATE, **sums)["knowledge"])
    reason = refused(second, MessageType.EVALUATE, **sums | {"bn-images": 9})
    assert "evaluate.bn_images=9, allowed is 8: " in reason
    again = decode(answered(run(folder, asked.format(8)), MessageType.EVALUATE, **sums)["knowledge"])
    assert all(np.array_equal(kept[name], again[name]) for name in kept)
