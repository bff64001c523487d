"""How much a node may weigh by the number of images that it announces, which nobody can verify.

A node counts as having at most ``federation.max_images`` times the median of the nodes' numbers of training images.
Its update is used; its numbers, wherever a method weighs by them, are those of a node with so many images. The scores
of a node that announces as many more test or validation images than the other nodes of its domain are not counted.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_core.plural import plural
from fedshift_strategies.contributions import COUNTS, Declaration, Whole
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import Update


def most_images(nodes: Sequence[Node], factor: float) -> float:
    """Return the largest number of training images that one of these nodes weighs by; inf without nodes."""
    return most_scored([node.num_examples for node in nodes], factor)


def most_scored(numbers: Sequence[int], factor: float) -> float:
    """Return the most test or validation images of a node whose scores count: so many times the median of its domain.

    The scores of a node with more would be those of the domain.
    """
    return factor * float(np.median(numbers)) if numbers else math.inf


class Medians:
    """The medians of what the nodes of a federation announce, taken once for all of them."""

    def __init__(self, nodes: Sequence[Node], factor: float) -> None:
        """Take them.

        Args:
            nodes: All that have a place.
            factor: How many times the median of the nodes is not too much.
        """
        self._factor = factor
        self._most = most_images(nodes, factor)
        numbers: dict[tuple[str, str], list[int]] = {}
        for node in nodes:
            for key, number in _announced(node).items():
                numbers.setdefault(key, []).append(number)
        self._largest = {key: most_scored(announced, factor) for key, announced in numbers.items()}

    def warning(self, node: Node) -> str:
        """Return what one of the nodes announces too much of, and what comes of that; empty where it does not."""
        parts = []
        if node.num_examples > self._most:
            parts.append(
                f"{plural(node.num_examples, 'training image')}, "
                f"{node.num_examples * self._factor / self._most:.3g} times the median of the nodes: "
                f"it weighs as if it had {int(self._most)}"
            )
        for key, number in _announced(node).items():
            if number > self._largest[key]:
                parts.append(
                    f"{number} {key[0]} images, far more than the other nodes of its domain: they are not counted"
                )
        return "; ".join(parts)


def _announced(node: Node) -> dict[tuple[str, str], int]:
    """Return how many images a node announces to score, by what they are and by domain; only those of its own."""
    tests = {("test", domain): node.tests_of(domain) for domain in node.domains}
    announced = tests | {("validation", node.domain): node.num_validation}
    return {key: number for key, number in announced.items() if number and not node.shared_test}


def weighed_node(node: Node, most: float) -> Node:
    """Return a node as it weighs: with its images per class scaled down where it has more than ``most``."""
    share = most / node.num_examples
    if share >= 1:
        return node
    scaled = tuple(int(share * count) for count in node.class_counts)
    return replace(node, class_counts=scaled)


def weighed(update: Update, most: float, declared: Declaration) -> Update:
    """Return an update as it weighs. Its images, its counts by class and its free rows are scaled down alike.

    Args:
        update: That of a node which may have announced more than ``most`` images.
        most: The number that it weighs by at most, above 0.
        declared: What nodes contribute; arrays of a free first dimension have a row for an image or for several.

    Raises:
        Refused: If it has whole numbers, of which no share can be taken: their sums would not be exact.
    """
    share = most / update.node.num_examples
    if share >= 1:
        return update
    if any(isinstance(shape, Whole) for shape in declared.values()):
        raise Refused(
            f"announced were {plural(update.node.num_examples, 'image')}, allowed are {int(most)} at most where sums "
            "are of whole numbers (federation.max_images)"
        )
    number = max(1, min(update.num_examples, int(most)))
    knowledge = _fewer_rows(update.knowledge, declared, int(most))
    if COUNTS in knowledge:
        counts = knowledge[COUNTS]
        knowledge[COUNTS] = np.where(counts > 0, np.maximum(np.floor(counts * share), 1), counts).astype(counts.dtype)
    return replace(update, node=weighed_node(update.node, most), num_examples=number, knowledge=knowledge)


def _fewer_rows(knowledge: Arrays, declared: Declaration, most: int) -> Arrays:
    """Return what a node contributes with at most so many rows of each array with free rows, evenly spaced."""
    kept: Arrays = {}
    for name, array in knowledge.items():
        shape = declared.get(name, ())
        if shape and isinstance(shape[0], str) and shape[0] not in ("C", "D") and len(array) > most:
            array = array[np.linspace(0, len(array) - 1, most).astype(np.int64)]
        kept[name] = array
    return kept
