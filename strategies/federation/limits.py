"""What may come from a node: texts, counts and numbers are bounded before any of it is used or logged.

A node is not trusted to be whole: a bug, a broken disk or its owner may make it send anything. The bounds keep a
run going and its model finite; they do not make an average robust against a node that lies within them
(docs/security.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_wire.names import KEPT, LOCAL, LOSS, NUM_EXAMPLES, PROCESS, SECONDS, STARTED_ANEW

MOST_TEXT = 500  # characters of a node's message that are shown
MOST_NAME = 80  # characters of a name that a node gives to anything
MOST_METRICS = 1000  # numbers of a reply
LARGEST_COUNT = 10**9  # images, nodes
LARGEST_INTEGER = 2**53  # in arrays: integers are averaged in float64, which is exact up to here
NO_LOSSES = (NUM_EXAMPLES, PROCESS, KEPT, STARTED_ANEW)  # numbers of a reply that are neither losses nor scores
BLOCK = 1 << 19  # bytes of an array that are looked at together: they stay in a core's cache


class Refused(ValueError):  # noqa: N818 (a verdict, not a malfunction)
    """A reply of a node that must not be used; the message says why, in one line of bounded length."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(plain(reason))


def plain(text: str | None, most: int = MOST_TEXT) -> str:
    """Return a text that may be logged: in one line, without control characters, at most ``most`` characters."""
    text = text or "(no reason given)"
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def largest(array: NDArray[Any]) -> float:
    """Return the largest absolute value: NaN if there is one, 0 of no numbers; no copy of the array's size is made."""
    flat, step = array.reshape(-1), max(BLOCK // array.itemsize, 1)
    parts = (flat[i : i + step] for i in range(0, flat.size, step))
    # np.maximum, unlike max, lets NaN through.
    return float(np.max([[float(part.max()), -float(part.min())] for part in parts], initial=0.0))


def check_numbers(name: str, array: NDArray[Any], max_value: float) -> None:
    """Check that all numbers are finite and of a plausible size.

    Args:
        name: The array's name.
        array: Booleans or real numbers of any shape.
        max_value: The largest absolute value of a floating-point number.

    Raises:
        Refused: If one is not.
    """
    if array.dtype.kind == "c":
        raise Refused(f"{name} holds complex numbers")
    found = largest(array)
    if not np.isfinite(found):
        raise Refused(f"{name} holds numbers that are not finite (training diverged? try a lower train.lr)")
    if array.dtype.kind == "f" and found > max_value:
        raise Refused(f"{name} holds {found:.3g}, allowed is {max_value:g} at most (federation.max_value)")
    if array.dtype.kind in "iu" and found > LARGEST_INTEGER:
        raise Refused(f"{name} holds {found:.3g}, allowed is {LARGEST_INTEGER:.3g} at most")


def check_contribution(knowledge: Mapping[str, NDArray[Any]], class_counts: Sequence[int], max_value: float) -> None:
    """Check what any method's node contributes besides weights: see :func:`check_numbers`; and its ``counts``.

    Args:
        knowledge: Named arrays. ``counts`` (C,), if there, are images behind a class prototype.
        class_counts: Training images per class, as the node announced them before the first round, (C,).
        max_value: The largest absolute value of a floating-point number.

    Raises:
        Refused: If a number is out of bounds, or more images of a class are counted than were announced.
    """
    for name, array in knowledge.items():
        check_numbers(name, array, max_value)
    counts = knowledge.get("counts")
    if counts is None or counts.shape != (len(class_counts),):
        return
    for label, (told, announced) in enumerate(zip(counts.tolist(), class_counts, strict=True)):
        if told > announced:
            raise Refused(f"counts says {told} images of class {label}, announced were {announced}")


def training_numbers(metrics: Mapping[str, Any], announced: int) -> tuple[int, dict[str, float]]:
    """Return the number of training images and the named losses and scores of a node's reply.

    Args:
        metrics: What the node says.
        announced: Training images that it announced before the first round; more would give it more weight.

    Raises:
        Refused: If a number or a name is not allowed.
    """
    if len(metrics) > MOST_METRICS:
        raise Refused(f"{len(metrics)} metrics, allowed are {MOST_METRICS}")
    number = whole(metrics.get(NUM_EXAMPLES), 0, LARGEST_COUNT)
    if not number:
        raise Refused(f"{NUM_EXAMPLES} is missing or not above 0")
    if number > announced:
        raise Refused(f"{NUM_EXAMPLES} is {number}, announced were {announced}")
    named = {}
    for name, value in metrics.items():
        if name in NO_LOSSES or name.startswith(SECONDS):
            continue
        if not name.startswith((LOSS, LOCAL)) or len(name) > MOST_NAME or not name.isprintable():
            raise Refused(f"unknown metric {plain(name, MOST_NAME)!r}")
        if not isinstance(value, int | float):
            raise Refused(f"{name} is not a number")
        named[name] = float(value)
    return number, named


def whole(value: object, least: int, most: int) -> int | None:
    """Return a whole number from ``least`` to ``most``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return int(value) if value == int(value) else None
