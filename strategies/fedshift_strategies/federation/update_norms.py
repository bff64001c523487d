"""How far a node's reply is from what it is judged by. That is the weights that were sent, and what other nodes send.

``federation.max_update`` is one ratio for all. All norms are L2, in float64, over floating-point arrays; what an
array of integers counts (BatchNorm's ``num_batches_tracked``) is no length. A variance of BatchNorm counts as the
deviation that BatchNorm divides by: variances of dark and of light images differ by a hundred times, and of all weights
only theirs would count. A larger deviation does no more harm than a smaller scale of BatchNorm, which is a weight.
"""

import math
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.limits import BLOCK, LARGEST_COUNT, Refused, Wild, largest
from fedshift_core.wire.names import BN_VAR

Given = Mapping[str, NDArray[Any]]
NOTHING: Given = MappingProxyType({})
SHORTEST = 1.0  # weights or contributions shorter than this count as so long: a model may begin with zeros
FEWEST = 3  # nodes of a round whose median says something
NOTABLE = 0.1  # of the norm of the weights that were sent: a change up to this is no node's undue influence
STALLED = 0.05  # of that norm: a median below counts as this, while most nodes do not learn yet and one does
EARLY = 0.5  # root mean square of features of a network that has hardly learnt: a median below counts as this
LARGEST_LOSS = 10  # times the median of a round: what a node's loss counts as at most, where it decides weights
LUCK = 6  # standard deviations by which the norm of honest noise may exceed its root mean square


class SentWeights:
    """The weights that the nodes of a round were sent.

    Args:
        arrays: By name.
        max_update: How many times their norm the change of a reply may have.
        noise: Standard deviation of what honest nodes add to each weight, because the run asks for it.

    Attributes:
        base: The norm that changes are held against.
    """

    def __init__(self, arrays: Given, max_update: float, noise: float = 0.0) -> None:
        self.arrays = arrays
        self._max_update, self.base = max_update, max(norm(arrays), SHORTEST)
        number = sum(array.size for array in arrays.values() if array.dtype.kind == "f")
        self._noise = noise * (math.sqrt(number) + LUCK) if noise else 0.0

    def check(self, got: Given) -> float:
        """Check how far weights are from those that were sent, which have the same names and shapes.

        Args:
            got: By name.

        Returns:
            The norm of (got - sent).

        Raises:
            Refused: If an array of integers changed by more than ``LARGEST_COUNT``; or if the norm of
                (got - sent) is above ``max_update`` times the norm of what was sent, or times 1 if that is shorter,
                plus the norm of the noise that the run asks for.
        """
        for name, array in got.items():
            if array.dtype.kind in "iu":
                counted = largest(array.astype(np.float64) - self.arrays[name])
                if counted > LARGEST_COUNT:
                    raise Refused(f"{name} changed by {counted:.3g} in a round, allowed is {LARGEST_COUNT:g} at most")
        moved = norm(got, self.arrays)
        ratio = max(moved - self._noise, 0.0) / self.base
        if ratio > self._max_update:
            raise Wild(
                f"the weights changed by {ratio:.3g} times the norm of those that were sent, allowed is "
                f"{self._max_update:g} at most (federation.max_update; training diverged? try a lower train.lr)"
            )
        return moved


def far_from_others(changes: Sequence[float], images: Sequence[int], base: float, max_update: float) -> dict[int, str]:
    """Find changes of the weights that are far longer than those of the round's other nodes.

    Each is held against the median of the round. A node with more images than the median trains for more steps, so it
    may go farther by as much. Changes that are short next to the weights are never too long: late in a run most nodes
    may hardly move. One node or two have no median that says anything.

    Args:
        changes: The norm of (received - sent) of each node of the round.
        images: How many images each trained on.
        base: The norm of the weights that were sent.
        max_update: How many times the median a change may be.

    Returns:
        Why an update must not be used, by its place.
    """
    if len(changes) < FEWEST:
        return {}
    middle, usual = float(np.median(changes)), float(np.median(images))
    bound = max_update * max(middle, STALLED * base)
    problems = {}
    for place, (moved, number) in enumerate(zip(changes, images, strict=True)):
        allowed = bound * max(1.0, number / usual)
        if moved > max(allowed, NOTABLE * base):
            times = f"{moved / middle:.3g} times" if middle else "not 0 as"
            problems[place] = (
                f"the change of the weights is {times} the median of this round's nodes, allowed for its images is "
                f"{allowed / middle if middle else 0:.3g} at most (federation.max_update)"
            )
    return problems


def out_of_proportion(
    contributions: Sequence[Given],
    max_update: float,
    features: Container[str] = (),
    usual: dict[str, list[float]] | None = None,
) -> dict[int, str]:
    """Find contributions that are far longer than those of the other nodes, which an average would drown in.

    What nodes contribute has no counterpart that was sent, so the norm of each floating-point array is held against
    the median of that norm over the round's nodes. It is the norm of a row in the root mean square, over rows that are
    not zero: nodes hold different numbers of classes, and of images. One node or two are always within proportion:
    their median is no less than half of the longer one. A node whose array has no number, because it sent it before,
    has no part in the median; fewer than three others are held against those of an earlier round as well (``usual``).

    A median below 1 counts as 1; of features of D numbers one below a root mean square of ``EARLY`` counts as that.
    In the first rounds of a network that begins with random weights most nodes' features are near 0. Those of the first
    node that learns are twenty times as long, as all are a round later: it is no liar.

    Args:
        contributions: Of each node of the round, arrays by name; all have the same names.
        max_update: How many times the median a norm may be.
        features: Names of the arrays whose rows are features, or means of some.
        usual: The norms of the last round in which enough nodes sent an array, by its name; changed in place.

    Returns:
        Why a contribution must not be used, by its place.
    """
    usual = {} if usual is None else usual
    problems: dict[int, str] = {}
    for name in contributions[0] if contributions else ():
        if contributions[0][name].dtype.kind in "iu":  # counts, labels and sums in units
            continue
        sent = {place: arrays[name] for place, arrays in enumerate(contributions) if arrays[name].size}
        norms = {place: _of_a_row(array) for place, array in sent.items()}
        least = [
            EARLY * math.sqrt(array[0].size if array.ndim > 1 else array.size) if name in features else SHORTEST
            for array in sent.values()
        ]
        if len(norms) >= FEWEST:
            usual[name] = [*norms.values()]
        compared = [*norms.values(), *(usual.get(name, ()) if len(norms) < FEWEST else ())]
        middle = float(max(np.median(compared), np.median(least))) if sent else SHORTEST
        for place, norm in norms.items():
            if norm > max_update * middle:
                problems.setdefault(
                    place,
                    f"the norm of {name} is {norm / middle:.3g} times the median of this round's nodes, allowed is "
                    f"{max_update:g} at most (federation.max_update)",
                )
    return problems


def capped(losses: Sequence[float]) -> list[float]:
    """Return the losses of a round's nodes, of which none is above ``LARGEST_LOSS`` times their median.

    A median below 1 counts as 1; of an even number of nodes it is the lower of the two in the middle.
    """
    middle = sorted(losses)[(len(losses) - 1) // 2] if losses else SHORTEST
    return [min(loss, LARGEST_LOSS * max(middle, SHORTEST)) for loss in losses]


def _of_a_row(array: NDArray[Any]) -> float:
    """Return the root mean square of the norms of an array's rows that are not zero. A vector gives its norm."""
    rows = np.count_nonzero(array.any(axis=tuple(range(1, array.ndim)))) if array.ndim > 1 else 1
    return norm({"": array}) / math.sqrt(max(rows, 1))


def norm(arrays: Given, sent: Given = NOTHING) -> float:
    """Return the norm of all floating-point arrays together, or of (arrays - sent), which have the same shapes."""
    measured = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    zero = np.zeros(())
    pairs = ((_measured(name, arrays[name]), _measured(name, sent.get(name, zero))) for name in measured)
    return math.sqrt(math.fsum(_squares(*pair) for pair in pairs))


def _measured(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as its length is measured: of variances their roots, with the sign of each."""
    return np.copysign(np.sqrt(np.abs(array)), array) if name.endswith(f".{BN_VAR}") else array


def _squares(array: NDArray[Any], less: NDArray[Any]) -> float:
    """Return the sum of squares of an array, or of its difference to another, float64 block by block."""
    flat, other, step = array.reshape(-1), np.broadcast_to(less, array.shape).reshape(-1), BLOCK // 8
    total = 0.0
    for start in range(0, flat.size, step):
        here = slice(start, start + step)
        part = np.subtract(flat[here], other[here], dtype=np.float64)
        total += float(part @ part)
    return total
