"""What nodes contribute is what the strategy declares: names, shapes, types, and no more images than there are."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import pytest
from refusals import refused, worded
from support import new_strategy

from fedshift_app.config import registry
from fedshift_core.disclosure import Word
from fedshift_core.errors import ConfigError
from fedshift_core.limits import Refused
from fedshift_core.params import Params
from fedshift_core.secure.layout import Sum
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import (
    MOST_OWN,
    WHOLE,
    Declaration,
    Whole,
    behind,
    check_contribution,
    refuse_sums,
)

DENSE: Declaration = {"prototypes": ("C", "D"), "counts": ("C",)}
RAGGED: Declaration = {"prototypes": ("P", "D"), "labels": ("P",), "counts": ("P",)}
SIZES = {"C": 3, "D": 2}
MOST_BYTES = 32 * 2**20  # of an array with three classes


def check(knowledge: dict[str, Any], declared: Declaration = DENSE, announced: tuple[int, ...] = (5, 5, 5)) -> None:
    check_contribution(knowledge, declared, SIZES, announced, 1e6)


ONES = np.ones((3, 2), np.float32)


def dense(**changes: Any) -> dict[str, Any]:
    return {"prototypes": ONES, "counts": np.array([5, 0, 1])} | changes


def ragged(labels: list[int], counts: list[int]) -> dict[str, Any]:
    whole = {"labels": np.array(labels, np.int64), "counts": np.array(counts, np.int64)}
    return {"prototypes": np.ones((len(labels), 2), np.float32)} | whole


def test_what_is_declared_passes() -> None:
    check(dense())
    check({}, {})


@pytest.mark.parametrize(
    ("knowledge", "named"),
    [
        (dense(gift=np.zeros(1)), "gift"),
        ({}, "prototypes"),
        ({"prototypes": ONES}, "counts"),
        (dense(prototypes=ONES[:2]), "prototypes (2, 2) (3, 2)"),
        (dense(prototypes=ONES.ravel()), "prototypes (6,)"),
        (dense(prototypes=ONES.astype(float)), "prototypes float64 float32"),
        (dense(prototypes=ONES.astype(np.float16)), "prototypes float16"),
        (dense(prototypes=ONES.astype(np.int64)), "prototypes int64"),
        (dense(prototypes=ONES.astype(str)), "prototypes type"),
        (dense(prototypes=np.nan * ONES), "prototypes"),
        (dense(prototypes=-np.inf * ONES), "prototypes"),
        (dense(prototypes=np.float32(1e7) * ONES), "prototypes 1e"),
        (dense(counts=np.array([5, 0, 1], np.int32)), "counts int32"),
        (dense(counts=np.array([5, 0])), "counts (2,) (3,)"),
        (dense(counts=np.ones((3, 1), np.int64)), "counts (3, 1)"),
        (dense(counts=np.array([5, -1, 1])), "counts"),
        (dense(counts=np.array([6, 0, 1])), "counts class 0 6 5"),
    ],
)
def test_what_is_not_is_refused(knowledge: dict[str, Any], named: str) -> None:
    with refused(Refused, *named.split()):
        check(knowledge)


@pytest.mark.parametrize(
    ("knowledge", "named"),
    [
        (ragged([2, 2, 2], [2, 2, 2]), "counts class 2 6 5"),
        (ragged([0, 0], [2**62, 2**62]), "counts"),  # whose sum overflows
        (ragged([3], [1]), "labels 2"),
        (ragged([-1, 0], [1, 1]), "labels -1"),
        (ragged([0, 1], [1, 1]) | {"labels": np.array([0])}, "labels (1,)"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(knowledge: dict[str, Any], named: str) -> None:
    check(ragged([2, 2, 2], [2, 2, 1]), RAGGED, (0, 0, 5))  # those of a class are counted together
    with refused(Refused, *named.split()):
        check(knowledge, RAGGED, (0, 0, 5))


FEATURES: Declaration = DENSE | {"features": ("P", "D"), "labels": ("P",)}


@pytest.mark.parametrize(
    ("labels", "named"), [([0, 0, 1, 1, 1, 1, 1], ""), ([], ""), ([0, 0, 0], "class 0 3 2"), ([2], "class 2 1 0")]
)
@pytest.mark.parametrize("clusters", [False, True])
def test_there_are_no_more_rows_of_a_class_than_images(clusters: bool, labels: list[int], named: str) -> None:
    """Features with a class each, which need no count, and prototypes of clusters, also such as count no image."""
    given = ragged(labels, [0] * len(labels))
    if not clusters:
        given |= {"features": given["prototypes"], **dense(counts=np.array([0, 0, 0]))}
    with refused(Refused, "labels", *named.split()) if named else nullcontext():
        check(given, RAGGED if clusters else FEATURES, (2, 5, 0))


@pytest.mark.parametrize("name", registry.METHODS)
def test_how_many_rows_a_node_may_send_is_bounded_whatever_it_announces(name: str) -> None:
    """10,000 clusters of a class took 0.9 GB, eigenvectors of 10,000 rows and columns 4 GB."""
    server = new_strategy(registry.get(name).strategy_class(), width=512)
    declared, sizes = server.expected(), SIZES | {"D": 512}
    bounds = {part: getattr(part, "most", MOST_OWN) for shape in declared.values() for part in shape}
    arrays: dict[str, Any] = {}
    for array, shape in declared.items():
        whole = [sizes.get(str(part), bounds[part]) if isinstance(part, str) else part for part in shape]
        assert 4 * np.prod(whole) <= MOST_BYTES, array
        arrays[array] = np.zeros(whole, np.int64 if array in WHOLE else np.float32)
    if "labels" in declared:  # of one class
        check_contribution(arrays, declared, sizes, (10**9,) * 3, 1e6)
        more = {array: np.concatenate([a, a[:1]]) if "P" in declared[array] else a for array, a in arrays.items()}
        with pytest.raises(Refused, match=r"allowed are|at most"):
            check_contribution(more, declared, sizes, (10**9,) * 3, 1e6)


@pytest.mark.parametrize("counts", [[2, 3], [2**62, 2**62]])
def test_counts_without_classes_are_no_more_than_all_images(counts: list[int]) -> None:
    declared: Declaration = {"prototypes": ("P", "D"), "counts": ("P",)}
    given = {"prototypes": ONES[:2], "counts": np.array(counts)}
    with refused(Refused, "counts", 4):
        check(given, declared, (1, 3, 0))
    check(given | {"counts": np.array([2, 3])}, declared, (5, 0, 0))


def test_a_word_that_is_none_of_the_four_is_refused_where_a_method_states_it() -> None:
    with refused(ConfigError, "Mine.behind['style']", "'clas'"):
        type("Mine", (DomainStrategy,), {"behind": {"style": "clas"}})


def test_an_array_without_a_word_has_the_strictest_and_a_setting_may_make_it_another() -> None:
    class Mine(DomainStrategy[Params]):
        contributes: ClassVar[Declaration] = DENSE | {"more": ("D",), "step": ("P",)}
        behind: ClassVar[Mapping[str, Word]] = {"step": "model"}
        behind_with: ClassVar[Mapping[str, Mapping[str, Word]]] = {"method.option=I": {"step": "class"}}

    assert [behind(Mine, name) for name in Mine.contributes] == ["class", "class", "image", "model"]
    assert [behind(Mine, "step", {"option": option}) for option in ("I", "II")] == ["class", "model"]
    sums: dict[str, Sum] = {"prototypes": "nodes", "step": "total"}
    assert refuse_sums(Mine, sums, {}) == ""
    worded(refuse_sums(Mine, sums, {"option": "I"}), "step", "class")
    worded(refuse_sums(Mine, {"more": "each"}, {}), "more", "image")


def test_sums_of_whole_numbers_are_of_a_kind_that_keeps_them_whole_and_says_who_holds_a_class() -> None:
    class Mine(DomainStrategy[Params]):
        contributes: ClassVar[Declaration] = {"counts": ("C",), "cross": Whole("C", "D"), "gram": Whole("D")}
        behind: ClassVar[Mapping[str, Word]] = {"cross": "class", "gram": "sum over classes"}

    assert refuse_sums(Mine, {"counts": "images", "cross": "rows", "gram": "total"}, {}) == ""
    refused: tuple[dict[str, Sum], ...] = ({"cross": "total"}, {"cross": "images"}, {"gram": "each"})
    for sums in refused:
        assert next(iter(sums)) in refuse_sums(Mine, sums, {})
