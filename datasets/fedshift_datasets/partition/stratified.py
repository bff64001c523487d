"""Chooses the test images of a site without a stated split, by class and group, from names only.

The order is that of SHA-256 of the seed and a unit's name, so the same names give the same split on every machine, in
any order of its disk.
"""

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from fedshift_datasets.arrays import Flags

_PASSES = 20  # single images need one, groups a few
_NOTHING = 1e-12  # a change from rounding


def test_part(labels: Sequence[int], units: Sequence[str], share: float, seed: int) -> Flags:
    """Return a mask of the test images of a site.

    All units begin as train. In the order of their hashes, a unit changes sides if that brings the shares of the
    classes nearer to ``share``, so that the sum of squared differences falls. This repeats until no unit changes. Then
    a class of at least two units gets one on a side that lacks it, unless that removes the last unit of another such
    class.

    Args:
        labels: Labels of the N images.
        units: The unit of each image: the name of its group, or its own name without a group.
        share: Test share of each class's images, above 0 and below 1.
        seed: The seed of the split.

    Returns:
        True for test images, shape (N,).
    """
    held, order = _held(labels, units, seed)
    total = Counter(labels)
    chosen = _nearest(order, held, total, Counter(), share)
    _cover(order, held, chosen, total, share)
    return np.array([unit in chosen for unit in units], bool)


def some_part(labels: Sequence[int], units: Sequence[str], share: float, seed: int) -> Flags:
    """Return a mask of a small part of images, as :func:`test_part`, but which need not have each class.

    It has a unit at least, unless there is only one: the unit that misses the share least, of classes that other units
    have too, if there is such a unit.
    """
    held, order = _held(labels, units, seed)
    total, part = Counter(labels), Counter[int]()
    chosen = _nearest(order, held, total, part, share)
    if not chosen and len(order) > 1:
        times = Counter(label for unit in order for label in held[unit])
        spare = [unit for unit in order if all(times[label] > 1 for label in held[unit])] or order
        chosen = {min(spare, key=lambda unit: _change(part, held[unit], total, share, 1))}
    return np.array([unit in chosen for unit in units], bool)


def uncovered(labels: Sequence[int], test: Flags) -> list[tuple[int, bool]]:
    """Return the labels that one side lacks, each with whether the test side lacks it."""
    sides: dict[int, set[bool]] = defaultdict(set)
    for label, side in zip(labels, test.tolist(), strict=True):
        sides[label].add(side)
    return [
        (label, True not in sides_of_label)
        for label, sides_of_label in sorted(sides.items())
        if len(sides_of_label) == 1
    ]


def _held(labels: Sequence[int], units: Sequence[str], seed: int) -> tuple[dict[str, Counter[int]], list[str]]:
    """Return how many images of each label each unit has, and the order of the units."""
    held: dict[str, Counter[int]] = defaultdict(Counter)
    for label, unit in zip(labels, units, strict=True):
        held[unit][label] += 1
    return held, sorted(held, key=lambda unit: (_rank(unit, seed), unit))


def _nearest(
    order: Sequence[str], held: dict[str, Counter[int]], total: Counter[int], part: Counter[int], share: float
) -> set[str]:
    """Return units whose images, which are counted in ``part``, are near the share of each class."""
    chosen: set[str] = set()
    for _ in range(_PASSES):
        before = set(chosen)
        for unit in order:
            sign = -1 if unit in chosen else 1
            if _change(part, held[unit], total, share, sign) < -_NOTHING:
                chosen ^= {unit}
                for label, count in held[unit].items():
                    part[label] += sign * count
        if chosen == before:
            break
    return chosen


def _rank(unit: str, seed: int) -> bytes:
    # One form of each letter, as file systems store an umlaut as one character or two.
    name = unit if unit.isascii() else unicodedata.normalize("NFC", unit)
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogateescape")).digest()


def _change(test: Counter[int], unit: Counter[int], total: Counter[int], share: float, sign: int) -> float:
    """Return the change of the distance to the wanted shares if a unit joins or leaves the test images."""
    change = 0.0
    for label, count in sorted(unit.items()):
        off = test[label] - share * total[label]
        change += ((off + sign * count) ** 2 - off**2) / total[label] ** 2
    return change


def _cover(
    order: Sequence[str], held: dict[str, Counter[int]], chosen: set[str], total: Counter[int], share: float
) -> None:
    """Move units so that each class of at least two units is on both sides, as far as possible."""
    holders: dict[int, list[str]] = defaultdict(list)
    for unit in order:
        for label in held[unit]:
            holders[label].append(unit)
    both = {label for label, units in holders.items() if len(units) > 1}
    sides = {
        label: [sum((unit in chosen) == side for unit in holders[label]) for side in (False, True)] for label in both
    }
    for label in sorted(both, key=lambda other: (len(holders[other]), other)):
        for lacking in (True, False):
            if sides[label][lacking]:
                continue
            # No class may lose its last unit on the other side, this one too.
            movable = [
                unit for unit in holders[label] if all(sides[k][not lacking] > 1 for k in held[unit] if k in both)
            ]
            if not movable:
                continue
            test = sum((held[unit] for unit in chosen), Counter[int]())
            sign = 1 if lacking else -1
            moved = min(movable, key=lambda unit: _change(test, held[unit], total, share, sign))
            chosen ^= {moved}
            for other in held[moved]:
                if other in both:
                    sides[other][lacking] += 1
                    sides[other][not lacking] -= 1
