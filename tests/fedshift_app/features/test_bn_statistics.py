"""What nodes tell of BatchNorm's inputs: merged as if all images were in one place, or refused."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from support import federation
from support import node as node_of

from fedshift_app.features.bn_statistics import server as statistics
from fedshift_app.flower.internals import identify_process
from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.roster import Node

LAYERS = {"encoder.1": 3, "stem.bn": 2}
NODE = node_of(0, (3, 2), "scan")


def maps(seed: int, images: int) -> dict[str, Any]:
    """Return what each layer is given, (N, C, H, W)."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(seed, 1 + seed, (images, size, 4, 3)) for name, size in LAYERS.items()}


def sums_of(given: dict[str, Any]) -> Arrays:
    sums = {f"sum/{name}": x.mean((2, 3)).sum(0) for name, x in given.items()}
    return sums | {f"squares/{name}": np.square(x).mean((2, 3)).sum(0) for name, x in given.items()}


def reply(arrays: Arrays, node: Node = NODE, images: float = 5, **more: float) -> Message:
    identify_process()
    question = Message(RecordDict({"arrays": ArrayRecord()}), node.node_id, "evaluate")
    metrics = MetricRecord({"num-examples": images, **more})
    return Message(RecordDict({"knowledge": encode(arrays), "metrics": metrics}), reply_to=question)


def read(message: Message, most: int = 1000, max_value: float = 1e6) -> tuple[Arrays, int]:
    return statistics.read(NODE, message, LAYERS, most, max_value)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_merged_statistics_are_those_of_all_images_together(sizes: list[int]) -> None:
    held = [maps(seed, size) for seed, size in enumerate(sizes)]
    means = [({name: a / size for name, a in sums_of(x).items()}, size) for x, size in zip(held, sizes, strict=True)]
    result = statistics.merge(means, list(LAYERS))
    assert list(result) == [f"{name}.{key}" for name in LAYERS for key in ("running_mean", "running_var")]
    for name in LAYERS:
        every = np.concatenate([x[name] for x in held])
        np.testing.assert_allclose(result[f"{name}.running_mean"], every.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result[f"{name}.running_var"], every.var((0, 2, 3)), rtol=1e-4, atol=1e-6)
        assert result[f"{name}.running_var"].dtype == np.float32


GOOD = sums_of(maps(1, 5))


@pytest.mark.parametrize(
    ("name", "array", "named"),
    [
        ("sum/stem.bn", None, "sum/stem.bn"),
        ("sum/other", np.zeros(2), "sum/other"),
        ("sum/stem.bn", np.zeros(3), "(3,)"),
        ("sum/stem.bn", np.zeros(2, np.float32), "float32"),
        ("sum/stem.bn", np.array([0, np.nan]), "sum/stem.bn"),
        ("sum/stem.bn", np.array([0, 6e6]), "1e+06"),
        ("squares/stem.bn", np.array([0, 1e14]), "squares/stem.bn"),
        ("squares/stem.bn", np.array([-1.0, 50.0]), "squares/stem.bn"),
        ("squares/encoder.1", np.zeros(3), "squares/encoder.1"),
    ],
)
def test_other_arrays_are_refused(name: str, array: Any, named: str) -> None:
    arrays = GOOD | {name: array}
    if array is None:
        del arrays[name]
    with refused(Refused, named):
        read(reply(arrays))


@pytest.mark.parametrize(
    ("more", "most", "named"), [({"images": 6}, 9, "5"), ({}, 4, "num-examples is 5"), ({"boast": 1}, 9, "boast")]
)
def test_other_numbers_are_refused(more: dict[str, float], most: int, named: str) -> None:
    with refused(Refused, named):
        read(reply(GOOD, **more), most=most)


def test_an_error_and_a_missing_record_are_refused() -> None:
    question = Message(RecordDict({"arrays": ArrayRecord()}), NODE.node_id, "evaluate")
    without = RecordDict({"metrics": MetricRecord({"num-examples": 5})})
    for message, named in (
        (Message(Error(code=2, reason="broken"), reply_to=question), "broken"),
        (Message(without, reply_to=question), "knowledge"),
    ):
        with refused(Refused, named):
            read(message)


def test_means_that_the_others_would_drown_in_are_left_out() -> None:
    nodes = [node_of(index, (3, 2), "scan") for index in range(4)]
    big = {name: a * (1e6 if name.startswith("squares") else 1e3) for name, a in GOOD.items()}
    replies = [reply(big if node.index == 2 else GOOD, node) for node in reversed(nodes)]
    heard: list[int] = []
    usable, problems = statistics.read_all(
        {node.node_id: node for node in nodes}, replies[:3], LAYERS, federation(max_update=20.0),
        lambda node, metrics: heard.append(node.index),
    )  # fmt: skip
    assert len(usable) == 2
    assert [(node.index, reason.split(" is ")[0]) for node, reason in problems] == [
        (0, "no answer in time"), (2, "the norm of sum/encoder.1"),
    ]  # fmt: skip
    assert sorted(heard) == [1, 2, 3]
