"""Figures of a site against slow definitions: pairs, thresholds, bins, jackknife; coverage; and what too few hides."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from support import load_benchmark

from fedshift_app.features.site_figures import numbers as site_numbers
from fedshift_app.features.site_figures.numbers import Scored, figures, visible_classes
from fedshift_app.features.site_figures.suppression import FEW, HIDDEN, hide
from fedshift_core.wire.site_figures import BY_CLASS, KNOWN, OVERALL, TOO_FEW, UNKNOWN

COVERAGE = load_benchmark("interval_coverage")


def scored(
    n: int = 60, classes: int = 3, seed: int = 0, rounded: bool = True, groups: Sequence[str] | None = None
) -> Scored:
    """Return scores that lean towards the class; rounded, so that many tie."""
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.5, n) - 1, classes - 1)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), y] += 1
    if rounded:
        logits = logits.round()
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    return Scored(p, logits.argmax(axis=1), y, None if groups is None else np.array(groups))


def slow_ece(given: Scored) -> float:
    confidence, right = given.p.max(axis=1), given.predicted == given.y
    bins = np.ceil(confidence * 15)  # (b / 15, (b + 1) / 15]
    return sum(abs((right[bins == b] - confidence[bins == b]).sum()) for b in {*bins}) / len(right)


def of(made: Any, name: str) -> list[float]:
    """Return value, low and high of a figure, of a class after a colon."""
    kind, _, k = name.partition(":")
    triple = made.by_class[BY_CLASS.index(kind), int(k)] if k else made.overall[OVERALL.index(kind)]
    result: list[float] = triple.tolist()
    return result


# --- values and intervals ------------------------------------------------------------------------------


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("classes", [2, 4])
def test_values_are_those_of_scikit_learn(classes: int, rounded: bool) -> None:
    given = scored(80, classes, seed=classes, rounded=rounded)
    made, y, own = figures(given), given.y, np.eye(classes)[given.y]
    wanted = {
        "accuracy": metrics.accuracy_score(y, given.predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, given.predicted),
        "auroc": metrics.roc_auc_score(own, given.p, average="macro"),
        "auprc": metrics.average_precision_score(own, given.p, average="macro"),
        "brier": ((given.p - own) ** 2).sum(axis=1).mean() / 2,
        "ece": slow_ece(given),
    }
    for k in range(classes):
        wanted |= {
            f"sensitivity:{k}": (given.predicted[y == k] == k).mean(),
            f"specificity:{k}": (given.predicted[y != k] != k).mean(),
            f"auroc:{k}": metrics.roc_auc_score(own[:, k], given.p[:, k]),
            f"auprc:{k}": metrics.average_precision_score(own[:, k], given.p[:, k]),
        }
    for name, value in wanted.items():
        assert of(made, name)[0] == pytest.approx(value, abs=1e-12), name
    assert (made.overall_marks == KNOWN).all() and (made.by_class_marks == KNOWN).all()
    assert made.of_class.tolist() == np.bincount(y, minlength=classes).tolist() and made.patients == UNKNOWN


def test_influences_are_derivatives_by_how_often_a_patient_counts() -> None:
    """Of scikit-learn's figures with weights; 20 patients of three images, some in one class, scores that tie."""
    given = scored(60, 3, seed=5, groups=[f"p{i // 3:02}" for i in range(60)])
    own, score = given.y == 1, given.p[:, 1]
    estimates = [*site_numbers._ranked(given, score, own), given.mean(given.predicted == 1, own)]
    for estimate, figure in zip(
        estimates,
        (
            lambda w: metrics.roc_auc_score(own, score, sample_weight=w),
            lambda w: metrics.average_precision_score(own, score, sample_weight=w),
            lambda w: metrics.recall_score(own, given.predicted == 1, sample_weight=w),
        ),
        strict=True,
    ):
        assert estimate.value == pytest.approx(figure(np.ones(60)))
        for unit, influence in enumerate(estimate.influence):
            change = np.where(given.units[0] == unit, 1e-5, 0)
            assert influence == pytest.approx((figure(1 + change) - figure(1 - change)) / 2e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("images", "of_a_patient", "kind", "sites"),
    [(30, 1, "identical", 1), (100, 10, "identical", 1), (100, 3, "alike", 1), (100, 10, "alike, unequal numbers", 1),
     *(pytest.param(*of, marks=pytest.mark.long) for of in ((1000, 10, "identical", 1), (100, 10, "identical", 3)))],
)  # fmt: skip
def test_intervals_include_the_truth(images: int, of_a_patient: int, kind: str, sites: int) -> None:
    """A part of ``python benchmarks/interval_coverage.py``; 93 %, less two standard deviations of 150."""
    for right in (0.5, 0.9):
        made = COVERAGE.coverage(images, of_a_patient, kind, right, 150, sites)
        assert len(made) == 8 and all(percent > 88.8 for percent, _ in made.values()), (right, made)


# --- too few, and not finite ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=2, max_size=8), st.integers(1, 12))
def test_figures_leave_of_the_classes_whose_numbers_may_be_told(of_class: list[int], least: int) -> None:
    """Who knows the total and what is shown cannot work out a class of few images."""
    shown = visible_classes(np.array(of_class), least)
    assert all(images >= least for images, tell in zip(of_class, shown, strict=True) if tell)
    hidden = [number < 0 for number in hide(of_class, least)]
    assert not (shown & hidden).any() and (shown | hidden | (np.array(of_class) == 0)).all()
    if min(of_class) >= least:
        assert shown.all()


def test_figures_of_fewer_images_are_marks_and_means_are_over_the_others() -> None:
    y = np.repeat(range(4), (20, 12, 3, 2))
    p = np.random.default_rng(0).dirichlet(np.ones(4), len(y))
    given = Scored(p, p.argmax(axis=1), y, None)
    made = figures(given, 5)
    assert made.of_class.tolist() == [20, 12, UNKNOWN, UNKNOWN]
    assert made.by_class_marks.tolist() == [[KNOWN, KNOWN, TOO_FEW, TOO_FEW]] * len(BY_CLASS)
    assert not made.by_class[:, 2:].any()
    for name, by in (("balanced_accuracy", "sensitivity"), ("auroc", "auroc"), ("auprc", "auprc")):
        mean = (of(made, f"{by}:0")[0] + of(made, f"{by}:1")[0]) / 2
        assert of(made, name)[0] == pytest.approx(mean) and made.macro_classes(name) == 2
    assert of(made, "brier")[0] == of(figures(given), "brier")[0]  # of all images
    # Of one class with 3 images the total would tell: the first of the others is not shown, either.
    alone = figures(Scored(p[:35], p[:35].argmax(axis=1), y[:35], None), 5)
    assert alone.of_class.tolist() == [UNKNOWN, 12, UNKNOWN, UNKNOWN]
    none = figures(given, 39)
    assert {*none.overall_marks.tolist(), *none.by_class_marks.ravel()} == {TOO_FEW} and none.images == 37
    assert not site_numbers.rounded(none, lambda name, value, images: 1.0, 39).overall.any()


def test_fewer_patients_than_the_least_are_neither_counted_nor_seen_in_an_interval() -> None:
    given = scored(40, groups=[str(k % 4) for k in range(40)])
    exact = figures(given, 5)
    made = site_numbers.rounded(exact, lambda name, value, images: value, 5)
    assert (exact.patients, made.patients) == (4, UNKNOWN)
    assert made.overall[0].tolist() == [exact.overall[0, 0], 0, 1]
    assert site_numbers.rounded(exact, lambda name, value, images: value, 4).patients == 4


# --- classes of few images ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "visible"),
    [
        ((10, 3, 20), (HIDDEN, FEW, 20)),  # 33 less 20 leaves 13 for both
        ((10, 3, 2, 20), (10, FEW, FEW, 20)),  # 5 for two classes: 1 to 4 each
        ((1, 5), (HIDDEN, HIDDEN)),  # 6 for a class below 5 and one from 5 on would be 1 and 5
        ((1, 7, 10), (FEW, HIDDEN, HIDDEN)),  # the class of 10 alone would say that the class of 7 is not enough
    ],
)
def test_by_hand(counts: tuple[int, ...], visible: tuple[int, ...]) -> None:
    assert hide(counts, 5) == visible


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 9))
def test_no_count_below_the_least_is_told_and_others_are_as_they_are(counts: list[int], least: int) -> None:
    visible = hide(counts, least)
    assert not any(0 < number < least for number in visible)
    assert all(now in (number, FEW, HIDDEN) for now, number in zip(visible, counts, strict=True))
    assert (visible == tuple(counts)) == (not any(0 < number < least for number in counts))
    assert all(counts[k] < least for k, number in enumerate(visible) if number == FEW)
    if sum(counts) > len(counts):
        assert all(visible[k] == 0 for k, number in enumerate(counts) if number == 0)  # nothing to hide


@pytest.mark.parametrize(("classes", "least", "most"), [(2, 5, 24), (3, 3, 20), (3, 5, 22), (4, 4, 13), (5, 3, 10)])
def test_whoever_knows_the_total_and_the_rule_cannot_work_out_a_class(classes: int, least: int, most: int) -> None:
    """Of all tables with the same total and the same visible numbers, none says how few images a class has."""
    for total in range(least, most + 1):
        alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for counts in _tables(total, classes):
            alike.setdefault(hide(counts, least), []).append(counts)
        for visible, tables in alike.items():
            for k in range(classes):
                may = {counts[k] for counts in tables}
                if visible[k] == FEW:
                    assert may == set(range(1, least)), (visible, tables)
                elif visible[k] == HIDDEN:
                    assert len(may) > 1 or min(may) >= least, (visible, tables)


def _tables(total: int, classes: int) -> Iterator[tuple[int, ...]]:
    """Yield all numbers of images per class with a total."""
    return (counts for counts in itertools.product(range(total + 1), repeat=classes) if sum(counts) == total)
