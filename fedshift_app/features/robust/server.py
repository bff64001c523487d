"""Averages that one node cannot spoil, in the place of the weighted one: ``aggregation.robust``.

The rules are those of Flower's own strategies, on the shared weights of a round:

    clip          the change of each update is shortened to ``aggregation.clip_norm``, by default to the median of the
                  round's norms; then the weighted average (Flower's ``compute_clip_model_update``)
    trimmed_mean  for each number, the mean without the share ``aggregation.trim`` at each end (FedTrimmedAvg)
    median        for each number, the median (FedMedian)
    krum          the one update that is closest to its neighbours, with f = ``aggregation.malicious`` (Krum)

The first two: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, https://arxiv.org/abs/1803.01498, has
median and trimmed mean; Blanchard et al., "Machine Learning with Adversaries", NIPS 2017,
https://arxiv.org/abs/1703.02757, has Krum.

What they cover: the shared weights. All but ``clip`` take no weights of nodes, so neither ``aggregation.weights`` nor
the method's own are used in them. Norms and distances leave arrays of integers out (Flower's Krum does not); these are
merged like the rest and rounded back. What nodes contribute besides weights (prototypes, heads) is merged as the
method has it: against numbers of extreme size there, ``federation.max_update`` is what there is.

A rule protects only if enough updates came: a median of two is their mean, and of one it is that node's weights. So
not only the nodes that are sent a round are counted (:func:`needs`), but the updates that can be used as well: three
for ``median`` and ``clip``, more than are cut off for ``trimmed_mean``, f + 3 for ``krum``.

Deviation from Flower: FedTrimmedAvg cuts off a share of the replies; here it is a share of the nodes that were sent the
round, so that a lost reply does not turn a trimmed mean into a plain one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_app.features.robust import Options
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import BLOCK
from fedshift_core.plural import plural
from fedshift_core.wire.records import encode
from fedshift_strategies.features.base import Merge, Node, ServerFeature, Steps, Training, Update
from fedshift_strategies.federation.averaging import RunningAverage
from fedshift_strategies.federation.update_norms import norm as norm_of
from fedshift_strategies.federation.updates import decode

Stack = NDArray[Any]  # N x numbers: what each node says of some numbers


def needs(config: Options) -> tuple[int, str]:
    """Return how many nodes a round a rule needs, and the parameter that says so.

    The median of one or two is theirs; a trimmed mean must cut off at least one; Krum needs 2f + 3.
    """
    if config.robust == "krum":
        return 2 * config.malicious + 3, f" with aggregation.malicious={config.malicious}"
    if config.robust == "trimmed_mean":
        number = math.ceil(1 / config.trim)
        number += int(config.trim * number) < 1  # by rounding
        return number, f" with aggregation.trim={config.trim:g}"
    return (3 if config.robust == "median" or config.clip_norm is None else 1), ""


def trimmed_mean(stack: Stack, cut: int) -> Stack:
    """Return the mean over nodes without the ``cut`` smallest and largest of each number, as FedTrimmedAvg has it."""
    last = len(stack) - cut
    middle = np.partition(stack, (cut, last - 1), axis=0)[cut:last]
    return np.asarray(np.mean(middle, axis=0))


def krum(updates: list[Update], sent: Arrays, malicious: int) -> int:
    r"""Return the place of the update with the lowest score, the first of equals.

    .. math:: s(i)=\sum_{j\in N_i}\|w_i-w_j\|_2^2

    where N_i are the n - f - 2 other updates that are closest to i, one at least.

    Args:
        updates: w, of n nodes.
        sent: What is taken off all of them, so that their distances are exact.
        malicious: f.
    """
    products = np.zeros((len(updates), len(updates)))
    given = [update.arrays() for update in updates]
    for name, base in sent.items():
        if base.dtype.kind == "f":
            flat = base.reshape(-1)
            for here, stack in _stacks([arrays[name] for arrays in given], np.dtype(np.float64)):
                stack -= flat[here]
                products += stack @ stack.T
    squares = products.diagonal()
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)  # n x n, squared
    np.fill_diagonal(distances, np.inf)  # nobody is his own neighbour
    return int(np.sort(distances, axis=1)[:, : len(updates) - malicious - 2].sum(axis=1).argmin())


def _clipped(updates: list[Update], weights: list[float], sent: Arrays, clip_norm: float | None) -> ArrayRecord:
    r"""Average clipped changes: :math:`w+\sum_k p_k\min(1,C/\|w_k-w\|_2)\,(w_k-w)`, one update after another."""
    norms = [norm_of(update.arrays(), sent) for update in updates]
    longest = float(np.median(norms)) if clip_norm is None else clip_norm
    parts = [weight * min(1.0, longest / norm) if norm else weight for weight, norm in zip(weights, norms, strict=True)]
    sums = RunningAverage()
    for part in parts:
        sums.add(updates.pop(0).arrays(), part)
    sums.add(sent, 1 - math.fsum(parts))
    return encode(sums.result())


def _by_number(updates: list[Update], rule: Callable[[Stack], Stack]) -> ArrayRecord:
    """Merge each number by itself, array by array and block by block, in the dtypes of the updates."""
    given = [update.arrays() for update in updates]
    result: Arrays = {}
    for name, first in given[0].items():
        result[name] = np.empty(first.shape, first.dtype)
        floating = first.dtype.kind == "f"
        for here, stack in _stacks([arrays[name] for arrays in given], first.dtype if floating else np.dtype("f8")):
            merged = rule(stack)
            result[name].reshape(-1)[here] = merged if floating else np.rint(merged)
    return encode(result)


def _stacks(arrays: list[NDArray[Any]], dtype: np.dtype[Any]) -> Iterator[tuple[slice, Stack]]:
    """Yield copies of the same few numbers of all nodes, (N, numbers), which together fill a block."""
    flats = [array.reshape(-1) for array in arrays]
    step = max(BLOCK // (dtype.itemsize * len(flats)), 1)
    for start in range(0, flats[0].size, step):
        here = slice(start, start + step)
        yield here, np.stack([flat[here] for flat in flats], dtype=dtype)


class Robust(ServerFeature):
    """Merges by the rule of ``aggregation.robust``."""

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return whether weights of nodes count; raise ``FederationError`` if a round has too few nodes for it."""
        self._check(self.run.number(len(nodes)))
        if (rule := Options.read(self.run.config).robust) != "clip":
            yield f"aggregation.robust={rule}: each node alike, aggregation.weights and the method's own are not used"

    def _check(self, nodes: int) -> None:
        """Refuse a rule that protects against nobody with so many nodes a round."""
        rule = Options.read(self.run.config)
        needed, why = needs(rule)
        if nodes < needed:
            raise FederationError(
                f"aggregation.robust={rule.robust}{why} needs {plural(needed, 'node')} or more in each round, found "
                f"{nodes}"
            )

    def on_round(self, training: Training) -> Steps:
        """Raise ``FederationError`` if the rule protects against nobody with so many nodes."""
        self._check(len(training.nodes))
        yield None

    def merge(self, updates: list[Update], weights: list[float], training: Training, next: Merge) -> ArrayRecord:
        """Return the next shared weights by the run's rule, in place of the average; the list is emptied.

        Raises:
            FederationError: If too few nodes answered, which would let one of them have its will.
        """
        config, nodes, came = Options.read(self.run.config), len(training.nodes), len(updates)
        rule, cut, sent = config.robust, int(config.trim * nodes), decode(training.weights)
        least = {"krum": config.malicious + 3, "trimmed_mean": 2 * cut + 1}.get(rule, needs(config)[0])
        if came < least:
            raise FederationError(
                f"aggregation.robust={rule}{needs(config)[1]}: {came} of {nodes} nodes delivered a usable result, "
                f"{least} are needed; with more nodes than it needs, some may fail"
            )
        if rule == "clip":
            return _clipped(updates, weights, sent, config.clip_norm)
        if rule == "krum":
            record = updates[krum(updates, sent, config.malicious)].record
        elif rule == "trimmed_mean":
            record = _by_number(updates, lambda stack: trimmed_mean(stack, cut))
        else:
            record = _by_number(updates, lambda stack: np.median(stack, axis=0))
        updates.clear()
        return record
