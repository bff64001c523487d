"""What a run does when its model has gone bad. It leaves out the node that moved the average, not the honest ones.

A node within all bounds can still push the weights so far, round after round, or contribute such prototypes, that
honest nodes come to numbers that are not finite or out of bounds. Then it is they whose replies are refused, and
without this the run would end. Where one node moved the average more than all others together, or contributed what is
farther from the median than that of all others together, that node is left out of the rest of the run, and the run
goes back to the weights from before it did so. Where no node did, training diverged by itself: the run ends as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.limits import largest
from fedshift_core.wire.records import decode
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import Update

FEWEST = 3  # updates of a round, of which one can be said to have moved the average
MOST_ROUNDS = 10  # that a run goes back
MOST_NUMBERS = 1 << 22  # of what all nodes contribute under a name, of which a median is taken; more are thinned out


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
    """The node that stood out in the last rounds, by how much, and where the run stood before."""

    node: Node
    why: str
    point: Point


class Recovery:
    """Notes which node moves the average, or the knowledge of all nodes."""

    def __init__(self) -> None:
        self.blame: Blame | None = None

    def note(self, updates: Sequence[Update], weights: Sequence[float], point: Point) -> None:
        """Note how far each update is about to move the average, and how far from the others' its contribution is.

        Args:
            updates: In the order of the nodes.
            weights: One per update.
            point: Where the run stands.
        """
        last, self.blame = self.blame, None
        if len(updates) < FEWEST:
            return
        moves = [weight * update.change for update, weight in zip(updates, weights, strict=True)]
        distances = {"moved the average by {:.0f} %": np.array(moves)}
        for name in updates[0].knowledge:
            apart = _from_median([update.knowledge[name] for update in updates])
            distances[f"has {{:.0f}} % of all distances from the median of {name}"] = apart
        shares = {what: each / each.sum() for what, each in distances.items() if each.any()}
        what = max(shares, key=lambda what: float(shares[what].max()), default="")
        if not what or float(shares[what].max()) <= 1 / 2:
            return
        place = int(shares[what].argmax())
        node = updates[place].node
        if last is not None and last.node.index == node.index:
            age = point.server_round - last.point.server_round
            point = last.point if age < MOST_ROUNDS else point
        self.blame = Blame(node, what.format(100 * float(shares[what][place])), point)


def _from_median(arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return how far what each node contributes under a name is from the median; zeros where it is of no real numbers.

    Arrays of different numbers of rows count as the means of their rows.
    """
    if len({array.shape for array in arrays}) > 1 and all(array.size for array in arrays):
        arrays = [array.mean(axis=0) for array in arrays]
    if arrays[0].dtype.kind != "f" or len({array.shape for array in arrays}) > 1:
        return np.zeros(len(arrays))
    step = 1 + arrays[0].size * len(arrays) // MOST_NUMBERS
    rows = np.stack([array.reshape(-1)[::step] for array in arrays]).astype(np.float64)
    distances: NDArray[np.float64] = np.linalg.norm(rows - np.median(rows, axis=0), axis=1)
    return distances


def is_finite(record: ArrayRecord) -> bool:
    """Tell whether all numbers of a record are finite."""
    return all(bool(np.isfinite(largest(array))) for array in decode(record).values())
