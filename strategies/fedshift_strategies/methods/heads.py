"""Classifiers as nodes send them among the shared weights, for methods with more than one of them.

A head is the arrays of the model's classifier, whatever it is made of, by state-dict name without ``classifier.``.
"""

from collections.abc import Sequence

import numpy as np

from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import CLASSIFIER, HEADS
from fedshift_strategies.federation.averaging import RunningAverage


def head_of(weights: Arrays) -> Arrays:
    """Return the head among shared weights, by name without ``classifier.``; read-only views of them."""
    return {name.removeprefix(CLASSIFIER): array for name, array in weights.items() if name.startswith(CLASSIFIER)}


def mean_head(heads: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Return the weighted sum of heads, in their order; ``weights`` sum to 1."""
    average = RunningAverage()
    for head, weight in zip(heads, weights, strict=True):
        average.add(head, weight)
    return average.result()


def stacked(heads: Sequence[Arrays]) -> Arrays:
    """Put heads one after another along a new first axis, under ``heads/NAME``."""
    return {HEADS + name: np.stack([head[name] for head in heads]) for name in heads[0]}


def unstacked(knowledge: Arrays) -> list[Arrays]:
    """Return the heads that :func:`stacked` put together; none where there are none."""
    named = {name.removeprefix(HEADS): array for name, array in knowledge.items() if name.startswith(HEADS)}
    number = len(next(iter(named.values()))) if named else 0
    return [{name: array[place] for name, array in named.items()} for place in range(number)]
