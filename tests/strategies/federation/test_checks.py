"""What a node may send: numbers, counts, names and texts within bounds, or it is refused with the reason."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from support import federation, phase
from support import node as node_of

from fedshift_app.config.sections import EvaluateConfig
from fedshift_app.flower.internals import identify_process
from fedshift_core import limits
from fedshift_core.limits import MOST_TEXT, Refused, check_numbers, largest, plain, whole
from fedshift_strategies.features.base import Training
from fedshift_strategies.features.catalog import Around, Features
from fedshift_strategies.federation.checks import check_numbers_of, let_go, metrics_of, opened, trained
from fedshift_strategies.federation.nodes import Node


@given(st.text(max_size=2000), st.integers(10, 600))
def test_what_is_logged_is_one_printable_line_of_bounded_length(text: str, most: int) -> None:
    shown = plain(text, most)
    assert shown.isprintable()
    assert 0 < len(shown) <= max(most, len(plain("")))
    if text.isprintable() and 0 < len(text) <= most:
        assert shown == text


def test_a_refusal_says_no_more_than_may_be_logged() -> None:
    assert str(Refused("two\nlines\x1b[31m" + "x" * 10_000)) == "two lines [31m" + "x" * (MOST_TEXT - 17) + "..."
    assert str(Refused(None)) == "(no reason given)"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 4, 10])
def test_one_number_that_is_not_finite_is_found_in_any_block(
    place: int, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BLOCK", 16)  # four float32
    most = float(np.finfo(np.float32).max)
    array = np.full(11, most, np.float32)  # their sum is not finite, they are
    assert largest(array) == largest(-array) == most
    array[place] = bad
    assert not math.isfinite(largest(array[:, None].T))
    with pytest.raises(Refused, match="w holds numbers that are not finite"):
        check_numbers("w", array, math.inf)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [(np.zeros((0, 3)), 0), (-7, 7), ([True, False], 1), ([np.iinfo(np.int64).min], 2.0**63)],  # its own negative
)
def test_the_largest_of_any_type(array: Any, wanted: float) -> None:
    assert largest(np.array(array)) == wanted


def test_finite_but_huge_numbers_are_refused_with_the_key_that_allows_them() -> None:
    check_numbers("w", np.array([-1e6, 1e6]), 1e6)
    check_numbers("batches", np.array(2**53), 1e6)  # counters may be large
    for name, array, value in (
        ("w", np.array([1.0, -1e30], np.float32), "1e+30"),
        ("batches", np.array(2**53 + 2), ""),
        ("w", np.array([1j]), "complex"),
    ):
        with refused(Refused, name, value):
            check_numbers(name, array, 1e6)


#: Simulated: it scores its own model on nine images of scan, on some of street, and has six of its own.
OWN = node_of(0, (5,), "paper", 6)
GOOD = {
    "num-examples": 5, "loss": 1.5, "loss/ce": math.nan, "loss/prox": 0.25, "kept": 1, "local-correct/scan": 3,
    "local-count/scan": 9, "local-correct/street": 2, "local-count/street": 7, "local-own-correct": 1,
    "local-own-count": 4, "seconds/data": 1.0, "seconds/forward/backward": 0.0, "process": 7,
}  # fmt: skip


@functools.cache
def features(client_models: str) -> Features:
    evaluate = EvaluateConfig.model_validate({"client_models": client_models})
    return Features(federation(domains=("scan", "street"), evaluate=evaluate))


def check_trained(metrics: dict[str, Any], node: Node = OWN, client_models: str = "every") -> None:
    """Check what a node says as the strategy does."""
    there = node_of(1, (5,), "scan", 9)
    training = phase(Training, [node], present=[node, there])
    around = Around((each.name, each.on_round(training)) for each in features(client_models))
    result = MetricRecord(metrics)
    trained(result, 5, ("ce", "prox"), around.bounds(node))
    around.check(result)


def test_all_that_a_node_may_say_after_training() -> None:
    check_trained(GOOD)
    check_trained({"num-examples": 1})
    check_trained({"num-examples": 5.0, "started-anew": 1})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"num-examples": 6}, "num-examples 6 5"),
    ({"num-examples": 0}, "num-examples"),
    ({"num-examples": math.nan}, "num-examples"),
    ({"num-examples": [5]}, "num-examples"),
    ({"num-examples": 10**18}, "num-examples"),
    ({"gift": 1.0}, "'gift'"),
    ({"loss/\x1b[2J": 1.0}, "'loss/ [2J'"),
    ({"loss/mine": 1.0}, "'loss/mine' `terms`"),
    ({"loss": [0.5] * 1_000_000}, "loss"),
    ({"loss": math.inf}, "loss inf"),
    ({"loss/ce": -1e10}, "loss/ce -1e+10"),
    ({f"loss/{i}": 1.0 for i in range(2000)}, "2014 1000"),
    ({"local-" + "x" * 5_000_000: 1}, "local-xxx"),
    ({"local-correct/sketch": 1}, "'local-correct/sketch'"),  # it was not asked for that
    ({"local-correct/scan": -1}, "local-correct/scan -1"),
    ({"local-correct/scan": 10}, "local-correct/scan 10 9"),
    ({"local-count/scan": 8}, "local-count/scan 8 9"),
    ({"local-own-count": 7}, "local-own-count 7 6"),
    ({"local-own-correct": 5}, "local-own-correct 5 4"),
    ({"seconds/data": -1.0}, "seconds/data -1"),
    ({"process": 0.5}, "process 0.5"),
    ({"kept": 2}, "kept 2 1"),
    ({"started-anew": [1]}, "started-anew"),
    ({"correct/scan": 1}, "'correct/scan'"),
]


@pytest.mark.parametrize(("change", "named"), BAD)
def test_anything_else_is_refused_in_one_short_line(change: dict[str, Any], named: str) -> None:
    with refused(Refused, *named.split()) as caught:
        check_trained(GOOD | change)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


class Counted(dict[str, Any]):
    """Numbers of a reply that tell whether somebody looks through them."""

    def __iter__(self) -> Any:
        raise AssertionError("too many to be looked at")


def test_a_million_metrics_are_refused_by_their_number() -> None:
    with pytest.raises(Refused, match="1000000 metrics, allowed are 1000"):
        check_numbers_of(Counted.fromkeys(map(str, range(1_000_000)), 0.5), {})


names = st.text(max_size=60) | st.sampled_from([*GOOD, "loss/", "seconds/", "local-correct/"])
values = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.lists(st.integers(-9, 9), max_size=3)


@given(st.dictionaries(names, values, max_size=8))
def test_whatever_passes_has_known_names_and_numbers_in_their_ranges(scalars: dict[str, Any]) -> None:
    try:
        check_trained(scalars)
    except Refused as refused:
        assert len(str(refused)) <= MOST_TEXT and str(refused).isprintable()  # noqa: PT017 (it need not be raised)
        return
    assert scalars.keys() <= {*GOOD, "started-anew"}
    for value in scalars.values():
        assert isinstance(value, int | float) and not abs(value) > 1e9  # or no number


def reply(content: RecordDict) -> Message:
    identify_process()
    return Message(content, reply_to=Message(RecordDict({"arrays": ArrayRecord()}), 7, "train"))


def test_records_that_the_run_does_not_know_are_refused_and_let_go() -> None:
    gift = reply(RecordDict({"metrics": MetricRecord({"loss": 1.0}), "gift\x1b[2J": ConfigRecord({"a": "b"})}))
    with pytest.raises(Refused, match=r"unknown record 'gift \[2J'"):
        opened(gift, ("metrics",))
    let_go(gift)
    assert len(gift.content) == 0
    with pytest.raises(Refused, match="the reply lacks the record 'metrics'"):
        metrics_of(RecordDict({"metrics": ConfigRecord({"loss": 1.0})}))
    failed = Message(Error(code=2, reason="two\nlines " + "x" * 5_000_000), reply_to=gift)
    with pytest.raises(Refused, match=r"^two lines x+\.\.\.$") as caught:
        opened(failed, ("metrics",))
    assert len(str(caught.value)) == MOST_TEXT
    let_go(failed)


@pytest.mark.parametrize("value", [True, "3", None, 2.5, -2, 11, math.nan, math.inf, [3]])
def test_what_is_no_whole_number_in_the_range(value: Any) -> None:
    assert whole(value, -1, 10) is None
    assert [whole(value, -1, 10) for value in (-1, 3.0, 10)] == [-1, 3, 10]
