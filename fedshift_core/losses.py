"""Account of what a run went without. Console, results, report, compare, board, card, status and exit code show it.

A run is degraded if a node of it gave no part in a round, or a number is over fewer rounds or images than its
neighbours (docs/deploy/operations.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedshift_core.accuracies import average, spread, worst
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, shown, some
from fedshift_core.plural import plural

#: Keys of ``results.json``.
LOST, UNSCORED, MISSING_TESTS = "lost", "unscored", "missing_tests"
NOBODY = -1  # index of a node that never had a place: its owner declined


@dataclass(frozen=True)
class Overall:
    """Numbers over the domains of a run; None where a domain lacks one, since over fewer they are other quantities.

    Attributes:
        avg: Mean.
        std: Sample standard deviation.
        worst: Lowest number.
        worst_domain: Its domain, the first of several.
    """

    avg: float | None
    std: float | None
    worst: float | None
    worst_domain: str | None


@dataclass(frozen=True)
class Losses:
    """Account of what a run went without.

    Attributes:
        nodes: By round, indices of the nodes that gave no part.
        rounds: By domain, the averaged rounds in which it has no score.
        images: By averaged round and domain: test images that were scored, and those of all its nodes.
        averaged: Number of averaged rounds.
        domain_of: By index of a node, its domain.
    """

    nodes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rounds: Mapping[str, Sequence[int]] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    averaged: int = 0
    domain_of: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> "Losses":
        """Return the losses of a run from the content of its ``results.json``; empty if it lost nothing.

        Runs of earlier versions have no ``unscored``: a domain without any score lacks all averaged rounds.
        """
        averaged, domains = results.get("averaged_rounds", 0), results.get("domains", {})
        none = {name: range(averaged) for name, value in domains.items() if value is None}
        unscored = (none if len(none) < len(domains) else {}) | results.get(UNSCORED, {})
        lost = results.get(LOST, {})
        nodes = [node for node in results.get("nodes", ()) if isinstance(node, Mapping)] if lost else []
        domain_of = {node["index"]: node["domain"] for node in nodes if {"index", "domain"} <= node.keys()}
        return cls(lost, unscored, results.get(MISSING_TESTS, {}), averaged, domain_of)

    def lines(self) -> list[str]:
        """Return a sentence for each loss; none if the run is complete."""
        of_rounds = (
            f"{shown(domain, MOST_NAME)} has a score in {self.averaged - len(rounds)} of "
            f"{plural(self.averaged, 'averaged round')}: AVG, STD and WORST are missing"
            for domain, rounds in self.rounds.items()
        )
        of_images = (
            f"{images_line(domain, number, of_all)}, in {rounds} of {plural(self.averaged, 'averaged round')}"
            for domain, (number, of_all, rounds) in self._fewest().items()
        )
        return [*self._of_nodes(), *of_rounds, *of_images]

    def text(self) -> str:
        """Return the sentences as one line; empty if the run is complete."""
        return some(self.lines(), MOST_SHOWN, "; ")

    def mark(self, domain: str) -> str:
        """Return what a domain's cell carries: ``2 of 3 rounds``, ``40 of 60 images``; empty if it lacks nothing."""
        lacking = len(self.rounds.get(domain, ()))
        parts = (
            [f"{self.averaged - lacking} of {plural(self.averaged, 'round')}"] if 0 < lacking < self.averaged else []
        )
        if domain in (fewest := self._fewest()):
            number, of_all, _ = fewest[domain]
            parts.append(f"{number} of {plural(of_all, 'image')}")
        return ", ".join(parts)

    def overall(self, domains: Mapping[str, float | None]) -> Overall:
        """Return the numbers over domains of a mean over the averaged rounds."""
        complete = {name: None if name in self.rounds else value for name, value in domains.items()}
        least = worst(complete)
        return Overall(average(complete), spread(complete), complete[least] if least else None, least)

    def _of_nodes(self) -> list[str]:
        rounds_of: dict[int, list[str]] = {}
        for number, nodes in self.nodes.items():
            for index in nodes:
                rounds_of.setdefault(index, []).append(number)
        return [
            f"{self._named(index)} gave no part, or not all of it, in round {some(rounds, MOST_SHOWN)}"
            for index, rounds in sorted(rounds_of.items())
        ]

    def _named(self, index: int) -> str:
        if index == NOBODY:
            return "a node whose owner declined"
        domain = self.domain_of.get(index)
        return f"node {index} ({shown(domain, MOST_NAME)})" if domain else f"node {index}"

    def _fewest(self) -> dict[str, tuple[int, int, int]]:
        """Return by domain the fewest images scored in an averaged round, all images, and the number of rounds."""
        fewest: dict[str, tuple[int, int, int]] = {}
        for by_domain in self.images.values():
            for domain, (number, of_all) in by_domain.items():
                least, most, rounds = fewest.get(domain, (number, of_all, 0))
                fewest[domain] = (min(least, number), max(most, of_all), rounds + 1)
        return fewest


def unscored(accuracies: Mapping[int, Mapping[str, float | None]]) -> dict[str, list[int]]:
    """Return by domain the averaged rounds in which it has no score; empty where no domain has one: nobody was asked.

    Args:
        accuracies: By averaged round the accuracy by domain.
    """
    names = [*list(accuracies.values())[-1]] if accuracies else []
    if all(value is None for accuracy in accuracies.values() for value in accuracy.values()):
        return {}
    rounds = {name: [number for number, accuracy in accuracies.items() if accuracy.get(name) is None] for name in names}
    return {name: numbers for name, numbers in rounds.items() if numbers}


def images_line(domain: str, number: int, of_all: int) -> str:
    """Return of how many of all its test images the score of a domain is."""
    name = shown(domain, MOST_NAME)
    return f"{name}: the score is of {number} of {plural(of_all, 'test image')}, as not all its nodes were scored"
