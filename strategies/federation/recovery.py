"""What a run does when its model has gone bad. It leaves out the node that moved the average, not the honest ones.

A node within all bounds can still push the weights so far, round after round, that honest nodes come to numbers that
are not finite or out of bounds. Then it is they whose replies are refused, and without this the run would end. Where
one node moved the average more than all others together, that node is left out of the rest of the run, and the run
goes back to the weights from before it did so. Where no node did, training diverged by itself: the run ends as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord

from fedshift_core.arrays import Arrays
from fedshift_core.limits import largest
from fedshift_core.wire.records import decode
from strategies.federation.nodes import Node
from strategies.federation.updates import Update

FEWEST = 3  # updates of a round, of which one can be said to have moved the average
MOST_ROUNDS = 10  # that a run goes back


@dataclass(frozen=True)
class Point:
    """Where a run stood before a round was averaged.

    Attributes:
        server_round: That round.
        weights: What its nodes were sent, without what is frozen.
        knowledge: As the strategy's.
        state: As the strategy's.
        moments: As the strategy's.
    """

    server_round: int
    weights: ArrayRecord
    knowledge: Arrays
    state: Arrays
    moments: Arrays


@dataclass(frozen=True)
class Blame:
    """The node that moved the average in the last rounds, and where the run stood before."""

    node: Node
    share: float
    point: Point


class Recovery:
    """Notes which node moves the average."""

    def __init__(self) -> None:
        self.blame: Blame | None = None

    def note(self, updates: Sequence[Update], weights: Sequence[float], point: Point) -> None:
        """Note how far each update is about to move the average.

        Args:
            updates: In the order of the nodes.
            weights: One per update.
            point: Where the run stands.
        """
        moved = np.array([weight * update.change for update, weight in zip(updates, weights, strict=True)])
        total = float(moved.sum())
        if len(updates) < FEWEST or not total or float(moved.max()) <= total / 2:
            self.blame = None
            return
        node, last = updates[int(moved.argmax())].node, self.blame
        if last is not None and last.node.index == node.index:
            age = point.server_round - last.point.server_round
            point = last.point if age < MOST_ROUNDS else point
        self.blame = Blame(node, float(moved.max()) / total, point)


def is_finite(record: ArrayRecord) -> bool:
    """Tell whether all numbers of a record are finite."""
    return all(bool(np.isfinite(largest(array))) for array in decode(record).values())
