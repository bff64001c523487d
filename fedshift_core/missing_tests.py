"""Words for domains of which not all test images were scored, as nodes did not answer (``results.json``)."""

from collections.abc import Mapping, Sequence

from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural


def notes(missing: Mapping[str, Mapping[str, Sequence[int]]], averaged: int) -> list[str]:
    """Return a line of each domain.

    Args:
        missing: By round and domain: scored images, and those of all its nodes (``results.json``).
        averaged: How many rounds the mean is over.
    """
    fewest: dict[str, tuple[int, int, int]] = {}  # by domain: images scored, of all, in how many rounds
    for by_domain in missing.values():
        for domain, (number, of_all) in by_domain.items():
            least, most, rounds = fewest.get(domain, (number, of_all, 0))
            fewest[domain] = (min(least, number), max(most, of_all), rounds + 1)
    return [
        f"{line(domain, number, of_all)}, in {rounds} of {plural(averaged, 'averaged round')}"
        for domain, (number, of_all, rounds) in fewest.items()
    ]


def line(domain: str, number: int, of_all: int) -> str:
    """Return of how many of all its test images the accuracy of a domain is."""
    name = shown(domain, MOST_NAME)
    return f"{name}: the accuracy is of {number} of {plural(of_all, 'test image')}, as not all its nodes were scored"
