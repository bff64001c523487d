"""Means of accuracies that may be missing, and how they are shown."""

import statistics
from collections.abc import Iterable, Mapping

AVG, STD, WORST = "AVG", "STD", "WORST"
OVERALL = (AVG, STD, WORST)  # columns over all domains, so no domain has such a name


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def average(domains: Mapping[str, float | None]) -> float | None:
    """Return the mean over all domains; None if one is missing, since over fewer domains it is another quantity."""
    return None if None in domains.values() else mean(domains.values())


def worst(domains: Mapping[str, float | None], *, lowest: bool = True) -> str | None:
    """Return the domain with the lowest number, or the highest; the first of several.

    None if there is only one domain, or one is missing.
    """
    known = {name: value for name, value in domains.items() if value is not None}
    if len(domains) < 2 or len(known) < len(domains):
        return None
    return (min if lowest else max)(known, key=known.__getitem__)


def rank(accuracy: Mapping[str, float | None]) -> tuple[int, float]:
    """Return a sort key by average accuracy; a round that lacks a domain ranks below one that does not."""
    known = [value for value in accuracy.values() if value is not None]
    return len(known), sum(known)


def spread(domains: Mapping[str, float | None]) -> float | None:
    """Return the sample standard deviation over domains; None of a single one, or if one is missing."""
    known = [value for value in domains.values() if value is not None]
    return statistics.stdev(known) if 1 < len(known) == len(domains) else None


def percent(value: float | None) -> str:
    """Return an accuracy with one digit, or ``missing``."""
    return "missing" if value is None else f"{value:.1f}"
