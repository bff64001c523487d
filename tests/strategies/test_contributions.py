"""What nodes contribute is what the strategy declares: names, shapes, types, and no more images than there are."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    described,
    of_features,
    refuse_sums,
)
from fedshift_strategies.methods.fedcode import FedCodeStrategy
from fedshift_strategies.methods.fediir import FedIIRStrategy
from fedshift_strategies.methods.fedpac import FedPACStrategy
from fedshift_strategies.methods.fedthe import FedTHEStrategy
from fedshift_strategies.methods.ggeur import GGEURStrategy

DENSE: Declaration = {"prototypes": ("C", "D"), "counts": ("C",)}
RAGGED: Declaration = {"prototypes": ("P", "D"), "labels": ("P",), "counts": ("P",)}
SIZES = {"C": 3, "D": 2}
MOST_BYTES = 32 * 2**20  # of an array with three classes


def check(knowledge: dict[str, Any], declared: Declaration = DENSE, announced: tuple[int, ...] = (5, 5, 5)) -> None:
    check_contribution(knowledge, declared, SIZES, announced, 1e6)


def dense(**changes: Any) -> dict[str, Any]:
    return {"prototypes": np.ones((3, 2), np.float32), "counts": np.array([5, 0, 1])} | changes


def ragged(labels: list[int], counts: list[int]) -> dict[str, Any]:
    whole = {"labels": np.array(labels, np.int64), "counts": np.array(counts, np.int64)}
    return {"prototypes": np.ones((len(labels), 2), np.float32)} | whole


def test_what_is_declared_passes() -> None:
    check(dense())
    check({}, {})


@pytest.mark.parametrize(
    ("knowledge", "reason"),
    [
        (dense(gift=np.zeros(1)), "unexpected knowledge gift"),
        ({"counts": np.array([0, 0, 0])}, "knowledge has no 'prototypes'"),
        (dense(prototypes=np.ones((2, 2), np.float32)), r"of shape \(2, 2\) and type float32, expected \(3, 2\)"),
        (dense(prototypes=np.ones((3, 2))), "type float64, expected .* float32"),
        (dense(prototypes=np.full((3, 2), np.nan, np.float32)), "prototypes holds numbers that are not finite"),
        (dense(prototypes=np.full((3, 2), 1e7, np.float32)), "prototypes holds 1e"),
        (dense(counts=np.array([5, 0, 1], np.int32)), "counts of shape"),
        (dense(counts=np.array([5, 0])), r"counts of shape \(2,\) and type int64, expected \(3,\) and int64"),
        (dense(counts=np.array([5, -1, 1])), "counts holds negative numbers"),
        (dense(counts=np.array([6, 0, 1])), "counts says 6 images of class 0, announced were 5"),
    ],
)  # fmt: skip
def test_what_is_not_is_refused(knowledge: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check(knowledge)


@given(st.lists(st.integers(0, 2), max_size=8))
def test_any_number_of_prototypes_passes_also_as_many_as_classes(labels: list[int]) -> None:
    """Ragged counts are by prototype: three prototypes of one class are not three classes."""
    check(ragged(labels, [1] * len(labels)), RAGGED, (8, 8, 8))


def test_three_prototypes_of_one_class_are_counted_together() -> None:
    check(ragged([2, 2, 2], [2, 2, 1]), RAGGED, (0, 0, 5))
    with pytest.raises(Refused, match="counts says 6 images of class 2, announced were 5"):
        check(ragged([2, 2, 2], [2, 2, 2]), RAGGED, (0, 0, 5))


def test_numbers_that_would_overflow_are_too_many() -> None:
    with pytest.raises(Refused, match=r"counts holds|images of class"):
        check(ragged([0, 0], [2**62, 2**62]), RAGGED)


FEATURES: Declaration = DENSE | {"features": ("P", "D"), "labels": ("P",)}


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0, 0, 1, 1, 1, 1, 1], None),
        ([0, 0, 0], "labels has 3 rows of class 0, announced were 2 images"),
        ([2], "labels has 1 row of class 2, announced were 0 images"),
        ([0] * 10_000, "labels has 10000 rows of class 0, announced were 2 images"),
        ([], None),
    ],
)
@pytest.mark.parametrize("clusters", [False, True])
def test_there_are_no_more_rows_of_a_class_than_images(clusters: bool, labels: list[int], reason: str | None) -> None:
    """Features with a class each, which need no count, and prototypes of clusters, also such as count no image."""
    announced, declared = (2, 5, 0), RAGGED if clusters else FEATURES
    given = ragged(labels, [0] * len(labels))
    if not clusters:
        given["features"] = given["prototypes"]
        given |= dense(counts=np.array([0, 0, 0]))
    if reason is None:
        check(given, declared, announced)
        return
    with pytest.raises(Refused, match=reason):
        check(given, declared, announced)


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


def test_counts_without_classes_are_no_more_than_all_images() -> None:
    declared: Declaration = {"prototypes": ("P", "D"), "counts": ("P",)}
    given = {"prototypes": np.ones((2, 2), np.float32), "counts": np.array([2, 3], np.int64)}
    check(given, declared, (5, 0, 0))
    with pytest.raises(Refused, match="counts says 5 images, announced were 4"):
        check(given, declared, (1, 3, 0))
    with pytest.raises(Refused, match="counts holds"):
        check(given | {"counts": np.array([2**62, 2**62], np.int64)}, declared, (1, 3, 0))


@pytest.mark.parametrize("labels", [[3], [-1, 0]])
def test_labels_are_classes(labels: list[int]) -> None:
    with pytest.raises(Refused, match=r"labels from .* allowed are 0 to 2"):
        check(ragged(labels, [1] * len(labels)), RAGGED)


def test_the_own_dimension_is_the_same_in_all_arrays() -> None:
    with pytest.raises(Refused, match=r"labels of shape \(1,\)"):
        check(ragged([0, 1], [1, 1]) | {"labels": np.array([0])}, RAGGED)


@pytest.mark.parametrize(("word", "says"), [("clas", "'clas', allowed are model, sum")])
def test_a_word_that_is_none_of_the_four_is_refused_where_a_method_states_it(word: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Mine.behind['style']: {says}")):
        type("Mine", (DomainStrategy,), {"behind": {"style": word}})


def test_an_array_without_a_word_has_the_strictest_and_a_setting_may_make_it_another() -> None:
    class Mine(DomainStrategy[Params]):
        contributes: ClassVar[Declaration] = {
            "prototypes": ("C", "D"),
            "counts": ("C",),
            "more": ("D",),
            "step": ("P",),
        }
        behind: ClassVar[Mapping[str, Word]] = {"step": "model"}
        behind_with: ClassVar[Mapping[str, Mapping[str, Word]]] = {"method.option=I": {"step": "class"}}

    assert [behind(Mine, name) for name in Mine.contributes] == ["class", "class", "image", "model"]
    assert [behind(Mine, "step", {"option": option}) for option in ("I", "II")] == ["class", "model"]
    sums: dict[str, Sum] = {"prototypes": "nodes", "step": "total"}
    assert refuse_sums(Mine, sums, {}) == ""
    assert refuse_sums(Mine, sums, {"option": "I"}) == (
        "step has a part of each class, of which no count says how many nodes hold it"
    )
    assert refuse_sums(Mine, {"more": "each"}, {}) == "more has a row of each image, which no sum hides"


def test_sums_of_whole_numbers_are_of_a_kind_that_keeps_them_whole_and_says_who_holds_a_class() -> None:
    class Mine(DomainStrategy[Params]):
        contributes: ClassVar[Declaration] = {"counts": ("C",), "cross": Whole("C", "D"), "gram": Whole("D")}
        behind: ClassVar[Mapping[str, Word]] = {"cross": "class", "gram": "sum over classes"}

    assert refuse_sums(Mine, {"counts": "images", "cross": "rows", "gram": "total"}, {}) == ""
    refused: tuple[dict[str, Sum], ...] = ({"cross": "total"}, {"cross": "images"}, {"gram": "each"})
    for sums in refused:
        assert next(iter(sums)) in refuse_sums(Mine, sums, {})


def test_a_declaration_in_words() -> None:
    assert described(DENSE) == "prototypes (C x D), counts (C)"
    assert described({}) == "nothing"


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        (FedCodeStrategy, {"prototypes", "style-prototype"}),  # its heads are weights
        (FedIIRStrategy, set()),
        (FedPACStrategy, {"prototypes", "class-features"}),
        (FedTHEStrategy, {"feature"}),
        (GGEURStrategy, {"means", "eigenvectors"}),
    ],
)
def test_what_is_made_of_features(strategy: Any, names: set[str]) -> None:
    assert of_features(strategy, strategy.contributes) == names
