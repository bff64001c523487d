"""95 % intervals: those of SciPy for independent images, by patient for others, pooled as if images were together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedshift_core.intervals import Estimate, Floats, interval, over_classes, pooled


def proportion(right: int, sizes: list[int]) -> Estimate:
    """Return the share of right images, which are those of the first patients, of patients with these numbers."""
    of, n = np.repeat(np.arange(len(sizes)), sizes), sum(sizes)
    x = np.arange(n) < right
    influence, share = (np.bincount(of, each / n) for each in (x - x.mean(), np.ones(n)))
    return Estimate(right / n, influence, share, len(sizes), n)


def of(right: int, sizes: list[int]) -> Floats:
    estimate = proportion(right, sizes)
    return interval(estimate.value, estimate.size)


@given(st.integers(3, 3000), st.data())
def test_of_independent_images_it_is_that_of_scipy(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    known = binomtest(k, n).proportion_ci(0.95, method="exact")
    assert of(k, [1] * n) == pytest.approx([k / n, known.low, known.high], abs=1e-9)


def test_images_of_a_patient_that_are_right_together_count_as_little_more_than_one() -> None:
    """Thirty patients of ten images: as wide as of thirty images, but for the last digits; of unequal ones wider."""
    alike, independent = of(240, [10] * 30), of(24, [1] * 30)
    assert alike == pytest.approx(independent, abs=1e-12)
    mixed = interval(0.8, Estimate(0.8, np.zeros(30), np.full(30, 1 / 30), 30, 300).size)
    assert mixed == pytest.approx(independent, abs=1e-12)  # nothing is known of how they vary: by patient
    assert np.ptp(of(240, [100, *[7] * 28, 4])) > np.ptp(alike)


@pytest.mark.parametrize("patients", [1, 2, 3, 8, 50])
def test_no_interval_at_0_or_1_has_no_width(patients: int) -> None:
    low, high = of(0, [3] * patients), of(3 * patients, [3] * patients)
    assert low.tolist() == pytest.approx([0, 0, 1 if patients < 3 else 1 - 0.025 ** (1 / patients)])
    assert high.tolist() == pytest.approx([1, 0 if patients < 3 else 0.025 ** (1 / patients), 1])


@given(st.lists(st.tuples(st.integers(3, 400), st.floats(0, 1)), min_size=1, max_size=6))
def test_pooled_independent_images_are_those_of_all_together(parts: list[tuple[int, float]]) -> None:
    n = np.array([number for number, _ in parts])
    right = np.array([round(number * share) for number, share in parts])
    made = pooled(interval(right / n, n), n / n.sum())
    assert made == pytest.approx(interval(right.sum() / n.sum(), n.sum()), abs=1e-6)


def test_parts_that_belong_together_or_say_nothing_widen_a_mean() -> None:
    triples, weights = interval(np.array([0.9, 1.0, 0.8]), np.array([30, 20, 40])), np.full(3, 1 / 3)
    apart, together = pooled(triples, weights), pooled(triples, weights, together=True)
    assert together[1] < apart[1] < apart[0] == together[0]
    unknown = pooled(np.vstack([triples[:2], [0.8, 0, 1]]), weights)
    assert 0 < unknown[1] < apart[1]
    # Ten of ten right leave open 0.31 of their class, and so 0.15 of a mean of two.
    rare = interval(np.array([0.95, 1.0]), np.array([1000, 10]))
    mean = interval(0.975, 1010)
    assert mean[1] > 0.96 and over_classes(mean, rare)[1] == pytest.approx(0.975 - 0.1545, abs=1e-3)
