"""Which images of a site are its test set, where nobody says: by class and by group, from names alone.

The order is that of SHA-256 of the seed and a unit's name, so the same names give the same split on every machine,
whatever order its disk lists them in.
"""

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PASSES = 20  # single images need one, groups a few
_NOTHING = 1e-12  # a change that rounding makes


def test_part(labels: Sequence[int], units: Sequence[str], share: float, seed: int) -> NDArray[np.bool_]:
    """Choose the test images of a site.

    Units go one after the other, in the order of their hashes, and change sides (all begin as train) where that brings
    the shares of the classes nearer to ``share``: the sum of their squared differences falls. That is repeated until
    none does. Then a class that at least two units hold gets one into the side that lacks it, unless that takes another
    such class's last one away.

    Args:
        labels: Labels of the N images.
        units: What an image goes with: the name of its group, or its own where it has none.
        share: Wanted part of each class's images, above 0 and below 1.
        seed: Another one gives another split.

    Returns:
        True where an image is test, shape (N,).
    """
    held: dict[str, Counter[int]] = defaultdict(Counter)
    for label, unit in zip(labels, units, strict=True):
        held[unit][label] += 1
    order = sorted(held, key=lambda unit: (_rank(unit, seed), unit))
    total = Counter(labels)
    test: Counter[int] = Counter()
    chosen: set[str] = set()
    for _ in range(_PASSES):
        before = set(chosen)
        for unit in order:
            sign = -1 if unit in chosen else 1
            if _change(test, held[unit], total, share, sign) < -_NOTHING:
                chosen ^= {unit}
                for label, count in held[unit].items():
                    test[label] += sign * count
        if chosen == before:
            break
    _cover(order, held, chosen, total, share)
    return np.array([unit in chosen for unit in units], bool)


def uncovered(labels: Sequence[int], test: NDArray[np.bool_]) -> list[tuple[int, bool]]:
    """Return the labels that one side lacks, each with whether it is the test side; of all labels that are there."""
    sides: dict[int, set[bool]] = defaultdict(set)
    for label, side in zip(labels, test.tolist(), strict=True):
        sides[label].add(side)
    return [(label, True not in found) for label, found in sorted(sides.items()) if len(found) == 1]


def _rank(unit: str, seed: int) -> bytes:
    # One form of each letter: file systems differ in whether an umlaut is one character or two.
    name = unicodedata.normalize("NFC", unit)
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogateescape")).digest()


def _change(test: Counter[int], unit: Counter[int], total: Counter[int], share: float, sign: int) -> float:
    """Return by how much the distance to the wanted shares grows if a unit comes to the test images, or leaves them."""
    change = 0.0
    for label, count in sorted(unit.items()):
        off = test[label] - share * total[label]
        change += ((off + sign * count) ** 2 - off**2) / total[label] ** 2
    return change


def _cover(
    order: Sequence[str], held: dict[str, Counter[int]], chosen: set[str], total: Counter[int], share: float
) -> None:
    """Move units, so that each class that at least two of them hold is on both sides, as far as that goes."""
    holders: dict[int, list[str]] = defaultdict(list)
    for unit in order:
        for label in held[unit]:
            holders[label].append(unit)
    both = {label for label, units in holders.items() if len(units) > 1}
    sides = {label: [sum((unit in chosen) == side for unit in holders[label]) for side in (False, True)]
             for label in both}  # fmt: skip
    for label in sorted(both, key=lambda one: (len(holders[one]), one)):
        for lacking in (True, False):
            if sides[label][lacking]:
                continue
            # No class may lose its last unit on the other side, this one too.
            able = [unit for unit in holders[label] if all(sides[k][not lacking] > 1 for k in held[unit] if k in both)]
            if not able:
                continue
            test = sum((held[unit] for unit in chosen), Counter[int]())
            sign = 1 if lacking else -1
            moved = min(able, key=lambda unit: _change(test, held[unit], total, share, sign))
            chosen ^= {moved}
            for one in held[moved]:
                if one in both:
                    sides[one][lacking] += 1
                    sides[one][not lacking] -= 1
