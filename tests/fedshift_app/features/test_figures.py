"""Counts that a node sends: taken whole, or its reply is refused with a reason."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from support import node as node_of
from support import phase, server_feature

from fedshift_app.config.resolving import resolve
from fedshift_app.features.figures import server as counting
from fedshift_app.features.figures import show
from fedshift_app.features.figures.node import count
from fedshift_app.flower.internals import identify_process
from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_core.shown import History
from fedshift_core.wire.counts import MOST_CLASSES, Counts
from fedshift_core.wire.records import encode
from fedshift_strategies.features.base import Scoring
from fedshift_strategies.features.catalog import Around
from fedshift_strategies.federation.evaluation import Evaluation
from fedshift_strategies.federation.nodes import Node

C, N = 4, 30


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
    outcome = counting.read(content, {"a": (N, right(result)), "b": (3, 1)}, classes)
    assert outcome.keys() == {"a"}  # of b it tells nothing: a method of one's own may not count
    for mine, its in zip(vars(outcome["a"]).values(), vars(result).values(), strict=True):
        assert (mine is None and its is None) or np.array_equal(mine, its)
    assert (outcome["a"].confusion is None) == (classes > MOST_CLASSES)
    assert counting.read(RecordDict(), {"a": (N, 1)}, classes) == {}


Lie = Callable[[Arrays], Any]


def put(name: str, change: Callable[[Any], Any]) -> Lie:
    def lie(result: Arrays) -> None:
        result[name] = change(result[name].copy())

    return lie


def at(*place: int, add: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[place] += add
        return array

    return change


LIES: list[tuple[Lie, str]] = [
    (lambda counts: counts.pop("confusion/a"), "counts: 'confusion/a' is missing"),
    (lambda counts: counts.update({"confusion/z": counts["confusion/a"]}), "counts: 'confusion/z' is unknown"),
    (lambda counts: counts.update({"\x1b[2J": counts["confusion/a"]}), "counts: ' [2J' is unknown"),
    (put("confusion/a", lambda a: a[:2]), "counts: confusion/a has shape (2, 4) and type int32, expected (4, 4)"),
    (put("confusion/a", lambda a: a.astype(np.int64)), "counts: confusion/a has shape (4, 4) and type int64"),
    (put("confusion/a", at(0, 1, add=1)), "confusion/a counts 31 images, expected are 30"),
    (put("confusion/a", lambda a: -a), "confusion/a holds numbers below 0"),
    (put("confusion/a", lambda a: a[:, ::-1]), "confusion/a counts"),
    (put("calibration/a", at(0, 3, add=1)), "calibration/a counts 31 images, expected are 30"),
    (put("calibration/a", at(1, 3, add=-1)), "calibration/a holds numbers below 0"),
    (put("calibration/a", lambda a: a * np.nan), "calibration/a holds numbers below 0, or that are not finite"),
    (put("calibration/a", lambda a: a[:, ::-1]), "calibration/a has confidences out of their bins"),
    (put("calibration/a", at(2, 10, add=0.5)), "calibration/a has confidences out of their bins"),
    (put("scores/a", at(0, 1, 5, add=1)), "scores/a counts"),
    (put("scores/a", lambda a: a[::-1]), "scores/a counts"),
    (put("scores/a", lambda a: a[..., :-1]), "counts: scores/a has shape (2, 4, 199)"),
]


@pytest.mark.parametrize(("lie", "reason"), LIES, ids=[reason for _, reason in LIES])
def test_anything_else_is_refused(lie: Lie, reason: str) -> None:
    counts = honest()
    result = counts.arrays("a")
    lie(result)
    with pytest.raises(Refused) as caught:
        counting.read(RecordDict({"counts": encode(result)}), {"a": (N, right(counts))}, C)
    assert str(caught.value).startswith(reason)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_more_right_than_it_says_and_a_record_of_another_kind_are_refused() -> None:
    counts = honest()
    with pytest.raises(Refused, match="confusion/a counts"):
        counting.read(RecordDict({"counts": encode(counts.arrays("a"))}), {"a": (N, right(counts) - 1)}, C)
    with pytest.raises(Refused, match="is not one of arrays"):
        counting.read(RecordDict({"counts": ConfigRecord({"a": 1})}), {"a": (N, 1)}, C)


def answer(counts: Counts | None, node: Any, **more: Any) -> Message:
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
    scoring = phase(Scoring, nodes)
    around = Around([(feature.name, feature.on_scores(scoring))])
    evaluation = scoring.evaluation = Evaluation(("scan",), nodes, personal=False, extras=around.asked, **more)
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


def test_a_table_has_no_columns_of_counts_that_no_owner_lets_out() -> None:
    results = {"domains": {"scan": 50.0, "street": 25.0}, "figures": {"domains": {"scan": None, "street": None}}}
    view = show.show(History(resolve({}), results=results))
    assert view.spare == {} and view.notes == ("worst domain: street 25.0",)


def test_a_table_always_has_the_columns_where_classes_are_unequal() -> None:
    for numbers, always in (([10, 20, 0], False), ([10, 21, 0], True)):
        of_domain = {"balanced_accuracy": 40.0, "macro_f1": 30.0, "n": 30, "per_class": {"n": numbers}}
        figures = {"round": 1, "domains": {"scan": of_domain}, "overall": None}
        view = show.show(History(resolve({}), results={"domains": {"scan": 50.0}, "figures": figures}))
        shown, other = (view.columns, view.spare) if always else (view.spare, view.columns)
        assert list(shown) == ["balanced^", "macro-F1^", "images"] and not other
