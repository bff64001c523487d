"""A server sends another seed, round or place of the node, so that other images would be in its parts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MessageType
from guarded_node import answered, images, run
from real_node import AppOfNode

from fedshift_app.node import ledger, partition, setup
from fedshift_app.node.data import own_images
from fedshift_app.node.policy import Policy
from fedshift_core.wire import names
from fedshift_core.wire.records import decode

SUMS = {"take-statistics": True, "bn-images": 8}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))


def parts_of(node: AppOfNode) -> list[list[bytes]]:
    where = setup.place(node.config, node.context, "deployment")
    folder = where.source.data_dir
    assert folder is not None
    where = replace(where, guard=partition.guard(Policy(), ledger.of_images(folder)))
    own = own_images(node.config, where)
    assert own.validation is not None
    return [sorted(mark.tobytes() for mark in part.marks) for part in (own.train, own.validation)]


def test_the_validation_part_is_the_same_under_each_seed(tmp_path: Path) -> None:
    folder = images(tmp_path)
    cut = "allocation.validation_fraction=0.2"
    first, second = (parts_of(run(folder, f"{cut} seed={seed}")) for seed in (0, 1))
    assert first == second


def test_sums_are_over_the_same_images_under_each_seed_and_place(tmp_path: Path) -> None:
    folder = images(tmp_path)
    asked = "model.name=cnn_bn evaluate.bn=[averaged,retaken] evaluate.bn_images=8 seed={}"
    first = run(folder, asked.format(0))
    weights = first.weights
    sums = [
        decode(answered(run(folder, asked.format(seed)), MessageType.EVALUATE, weights, **SUMS | more)["knowledge"])
        for seed, more in ((0, {}), (1, {}), (0, {names.NODE_INDEX: 3}), (0, {names.SERVER_ROUND: 2}))
    ]
    for name, array in sums[0].items():
        assert all(np.array_equal(array, other[name]) for other in sums[1:])


def test_the_test_sample_is_the_same_under_each_seed(tmp_path: Path) -> None:
    folder = images(tmp_path)
    with np.load(folder.path / "scan_test.npz") as archive:
        whole = len(archive["y"])
    asked = f"images.eval_batch=20 evaluate.fraction={20 / whole} seed={{}}"
    first, second = run(folder, asked.format(0)), run(folder, asked.format(1))
    weights = first.weights
    numbers = [
        dict(answered(node, MessageType.EVALUATE, weights, domains=["scan"], drawn=[20])["metrics"])
        for node in (first, second)
    ]
    assert numbers[0] == numbers[1] and numbers[0]["count/scan"] == 20
