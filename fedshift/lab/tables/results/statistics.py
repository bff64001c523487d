"""Mean and spread over seeds, and the difference of two methods seed by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

#: Smallest number of common seeds for a test.
LEAST_FOR_TEST = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (ddof=1) over ``n`` seeds; None for too few seeds."""

    mean: float | None = None
    std: float | None = None
    n: int = 0


@dataclass(frozen=True)
class Paired:
    """Differences between two methods over their common seeds.

    Attributes:
        difference: Mean and spread of the differences.
        seeds: The common seeds.
        p: Of a two-sided paired t-test; None for fewer than three seeds, or if all differences are equal.
        interval: The 95 % interval of the mean difference by Student's t; it excludes 0 if p < 0.05. None where p is.
        p_holm: The same p corrected for all tests of its table (:func:`corrected`); None outside a table.
    """

    difference: Spread
    seeds: tuple[int, ...]
    p: float | None
    interval: tuple[float, float] | None = None
    p_holm: float | None = None


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and spread of the known values."""
    known = [value for value in values if value is not None]
    return Spread(
        statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None, len(known)
    )


def paired(ours: Mapping[int, float | None], base: Mapping[int, float | None]) -> Paired:
    """Compare two methods over their common seeds.

    Args:
        ours: A number by seed.
        base: The numbers of the method that is subtracted.
    """
    by_seed = {
        seed: own - other
        for seed in sorted(ours.keys() & base.keys())
        if (own := ours[seed]) is not None and (other := base[seed]) is not None
    }
    differences = list(by_seed.values())
    difference = spread(differences)
    p = interval = None
    # Equal differences have no spread to test against; sums of floats leave 1e-14 of one.
    if difference.n >= LEAST_FOR_TEST and difference.std is not None and difference.std > 1e-9:
        p, quantile = _student(differences)
        assert difference.mean is not None
        reach = quantile * difference.std / math.sqrt(difference.n)
        interval = (difference.mean - reach, difference.mean + reach)
    return Paired(difference, tuple(by_seed), p, interval)


def _student(differences: Sequence[float]) -> tuple[float, float]:
    """Return the p-value of a two-sided t-test that a mean is 0, and the quantile of its confidence interval.

    With the arithmetic of ``scipy.stats.ttest_rel`` and ``scipy.stats.t.ppf``, the same to the last bit.
    """
    from scipy.special import stdtr, stdtrit  # here: scipy takes long to import, and scipy.stats three times as long

    n, mean = len(differences), np.mean(differences)
    variance = np.mean((np.asarray(differences) - mean) ** 2) * (n / (n - 1))
    t = mean / np.sqrt(variance / n)
    return float(2 * stdtr(n - 1, -abs(t))), float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


def corrected(table: Sequence[Paired | None]) -> list[Paired | None]:
    """Return the differences of a table, in its order, with p corrected for their number by Holm's step-down procedure.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6 (1979) 65-70:
    the chance that any of the true null hypotheses has a corrected value below a level is at most that level.
    Differences without p, and None, stay as they are.
    """
    result = list(table)
    tested = sorted((row.p, i) for i, row in enumerate(table) if row is not None and row.p is not None)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        row = table[i]
        assert row is not None
        result[i] = replace(row, p_holm=largest)
    return result
