"""Which node moved the average, and where a run goes back to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from support import node

from fedshift_core.wire.records import encode
from fedshift_strategies.federation.recovery import MOST_ROUNDS, Point, Recovery, is_finite
from fedshift_strategies.federation.updates import Update


def noted(
    recovery: Recovery, server_round: int, changes: Sequence[float], weights: Sequence[float] = ()
) -> tuple[int, int] | None:
    """Note a round of nodes that moved so far; return who is blamed, and the round that a run goes back to."""
    updates = [Update(node(i), ArrayRecord(), {}, 10, {}, moved) for i, moved in enumerate(changes)]
    point = Point(server_round, ArrayRecord(), {}, {}, {})
    recovery.note(updates, weights or [1 / len(updates)] * len(updates), point)
    return (blame.node.index, blame.point.server_round) if (blame := recovery.blame) else None


@pytest.mark.parametrize(
    ("changes", "weights", "blamed"),
    [
        *((changes, (), None) for changes in ([1, 1, 1, 1], [1, 2, 1], [1, 9], [9], [0, 0, 0])),
        ([1, 9, 1, 1], (), (1, 1)),
        ([1, 1, 1, 1], [0.9, 0.05, 0.03, 0.02], (0, 1)),
    ],
)
def test_who_moved_it_more_than_all_others(changes: list[float], weights: Sequence[float], blamed: object) -> None:
    assert noted(Recovery(), 1, changes, weights) == blamed


def test_a_run_goes_back_to_before_the_first_of_its_rounds_but_not_for_ever() -> None:
    recovery, last = Recovery(), 2 + MOST_ROUNDS
    assert noted(recovery, 1, [1, 1, 1]) is None
    for server_round in range(2, last):
        assert noted(recovery, server_round, [1, 9, 1]) == (1, 2)
    assert noted(recovery, last, [1, 9, 1]) == (1, last)
    assert noted(recovery, 13, [9, 1, 1]) == (0, 13)  # another node
    assert noted(recovery, 14, [1, 1, 1]) is None


def test_finite_means_all_numbers() -> None:
    assert is_finite(encode({"w": np.ones(3, np.float32), "n": np.array(3)}))
    assert not is_finite(encode({"w": np.array([1, np.inf], np.float32)}))


def contributing(rows: Sequence[NDArray[Any]], name: str = "prototypes") -> tuple[int, str] | None:
    """Note a round of nodes that moved as far as each other, and contributed these arrays; return who is blamed."""
    updates = [Update(node(i), ArrayRecord(), {name: array}, 10, {}, 1.0) for i, array in enumerate(rows)]
    recovery = Recovery()
    recovery.note(updates, [1 / len(updates)] * len(updates), Point(1, ArrayRecord(), {}, {}, {}))
    return (blame.node.index, blame.why) if (blame := recovery.blame) else None


ROWS = np.random.default_rng(0).normal(1, 0.1, (5, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("times", [-5, -1, 9])
def test_who_contributed_what_is_far_from_all_others(times: int) -> None:
    rows = [*ROWS]
    assert contributing(rows) is None
    rows[3] = times * rows[3]
    longer = [np.concatenate([array] * (1 + place)) for place, array in enumerate(rows)]  # as many rows as a node likes
    for given in (rows, longer):
        index, why = contributing(given) or (-1, "")
        assert index == 3 and "% of all distances from the median of prototypes" in why
