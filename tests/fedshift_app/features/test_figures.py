"""Counts that a node sends: taken whole, or its reply is refused with a reason."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from refusals import refused
from support import node as node_of
from support import scored_round, server_feature

from fedshift_app.features.figures import server as counting
from fedshift_app.features.figures.node import count
from fedshift_app.flower.internals import identify_process
from fedshift_core.limits import Refused
from fedshift_core.wire.counts import MOST_CLASSES, Counts
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.nodes import Node

C, N = 4, 30


def read(content: RecordDict, scored: dict[str, tuple[int, int]], classes: int) -> dict[str, Any]:
    """Return what the feature reads of a reply, of so many scored and right images by domain."""
    feature = server_feature(counting.CountedFigures, domains=("scan",), num_classes=classes)
    answers: list[Any] = [
        SimpleNamespace(part=SimpleNamespace(domain=domain), score=SimpleNamespace(count=count, correct=correct))
        for domain, (count, correct) in scored.items()
    ]
    return dict(feature._read(content, answers))


def honest(classes: int = C, seed: int = 0) -> Counts:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, classes, generator=rng) * 3
    return count(logits, logits.argmax(dim=1), torch.arange(N) % classes, classes)


def right(counts: Counts) -> int:
    return int(counts.classes[1].sum())


@pytest.mark.parametrize("classes", [2, C, MOST_CLASSES + 1])
def test_whole_counts_are_taken(classes: int) -> None:
    result = honest(classes)
    content = RecordDict({"counts": encode(result.arrays("a"))})
    (domain, taken), *rest = read(content, {"a": (N, right(result)), "b": (3, 1)}, classes).items()
    assert (domain, rest) == ("a", [])  # of b it tells nothing: a method of one's own may not count
    np.testing.assert_equal(vars(taken), vars(result))
    assert (taken.confusion is None) == (classes > MOST_CLASSES)
    assert read(RecordDict(), {"a": (N, 1)}, classes) == {}


CONFUSION, CALIBRATION, SCORES = (honest().arrays("a")[f"{name}/a"] for name in ("confusion", "calibration", "scores"))


def more(array: Any, place: tuple[int, ...], by: float) -> Any:
    """Return a copy with another number in a place."""
    result = array.copy()
    result[place] += by
    return result


@pytest.mark.parametrize(
    ("name", "array", "named"),
    [
        ("confusion/a", None, "confusion/a"),
        ("confusion/z", CONFUSION, "confusion/z"),
        ("\x1b[2J", CONFUSION, "' [2J'"),
        ("confusion/a", CONFUSION[:2], "(2, 4)"),
        ("confusion/a", CONFUSION.astype(np.int64), "int64"),
        ("confusion/a", more(CONFUSION, (0, 1), 1), "31 images"),
        ("confusion/a", -CONFUSION, "below 0"),
        ("confusion/a", CONFUSION[:, ::-1], "confusion/a"),
        ("calibration/a", more(CALIBRATION, (0, 3), 1), "31 images"),
        ("calibration/a", more(CALIBRATION, (1, 3), -1), "below 0"),
        ("calibration/a", CALIBRATION * np.nan, "finite"),
        ("calibration/a", CALIBRATION[:, ::-1], "bins"),
        ("calibration/a", more(CALIBRATION, (2, 10), 0.5), "bins"),
        ("scores/a", more(SCORES, (0, 1, 5), 1), "scores/a"),
        ("scores/a", SCORES[::-1], "scores/a"),
        ("scores/a", SCORES[..., :-1], "(2, 4, 199)"),
    ],
)
def test_anything_else_is_refused(name: str, array: Any, named: str) -> None:
    counts = honest()
    arrays = counts.arrays("a") | {name: array}
    if array is None:
        del arrays[name]
    with refused(Refused, named) as caught:
        read(RecordDict({"counts": encode(arrays)}), {"a": (N, right(counts))}, C)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_more_right_than_it_says_and_a_record_of_another_kind_are_refused() -> None:
    counts = honest()
    for record, named in ((encode(counts.arrays("a")), "confusion/a"), (ConfigRecord({"a": 1}), "arrays")):
        with refused(Refused, named):
            read(RecordDict({"counts": record}), {"a": (N, right(counts) - 1)}, C)


def answer(counts: Counts | None, node: Any) -> Message:
    known = counts or honest()
    fields = {"correct/scan": right(known), "count/scan": N, "loss-sum/scan": 1.0}
    content = RecordDict({"metrics": MetricRecord(fields)})
    if counts is not None:
        content["counts"] = encode(counts.arrays("scan"))
    question = Message(RecordDict({"arrays": ArrayRecord()}), node.node_id, "evaluate")
    return Message(content, reply_to=question)


def counted(nodes: list[Node], replies: list[Message], problems: list[tuple[Node, str]], **more: Any) -> dict[str, Any]:
    """Return what a round counts by domain of replies with these problems."""
    feature = server_feature(counting.CountedFigures, domains=("scan",), num_classes=C)
    evaluation, around, scoring = scored_round(feature, ("scan",), nodes, personal=False, **more)
    evaluation.first()
    assert around.options(nodes[0]) == ({} if more else {"figures": True})
    assert evaluation.read(replies) == problems
    around.finish()
    counts: dict[str, Any] = scoring.result.passing["figures"]
    return counts


def test_nodes_of_a_domain_add_up_and_one_that_does_not_count_leaves_none() -> None:
    identify_process()
    first, second = (node_of(i, (5,), "scan", N, shared_test=False) for i in range(2))
    for others, whole in ((honest(seed=1), True), (None, False)):
        result = counted([first, second], [answer(honest(), first), answer(others, second)], [])["scan"]
        assert (result is not None) == whole
        if result is not None:
            assert result.images == 2 * N and np.array_equal(result.classes, (honest() + honest(seed=1)).classes)


def test_counts_that_nobody_asked_for_are_refused() -> None:
    """In rounds that are scored on a part of the test images."""
    identify_process()
    node = node_of(0, (5,), "scan", 10 * N, shared_test=False)  # a sample leaves many
    problems = [(node, "unknown record 'counts'")]
    assert counted([node], [answer(honest(), node)], problems, share=0.1, batch=N // 2) == {}
