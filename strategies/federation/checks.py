"""What may come from a node: texts, counts and numbers are bounded before any of it is used or logged.

A node is not trusted to be whole: a bug, a broken disk or its owner may make it send anything. The bounds keep a
run going and its model finite; they do not make an average robust against a node that lies within them
(docs/security.md).
"""

from collections.abc import Mapping
from typing import Any

from fedshift_wire.bounds import (
    LARGEST_COUNT,
    MOST_METRICS,
    MOST_NAME,
    Refused,
    plain,
    whole,
)
from fedshift_wire.names import KEPT, LOCAL, LOSS, NUM_EXAMPLES, PROCESS, SECONDS, STARTED_ANEW

NO_LOSSES = (NUM_EXAMPLES, PROCESS, KEPT, STARTED_ANEW)  # numbers of a reply that are neither losses nor scores


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
