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
from fedshift_core.wire.records import Draft
from fedshift_strategies.features.base import Merge, ServerFeature, Steps, Training
from fedshift_strategies.federation.averaging import RunningAverage
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.update_norms import change
from fedshift_strategies.federation.updates import Update, decode

Stack = NDArray[Any]  # N x numbers: what each node says of some numbers


def merge(config: Options, updates: list[Update], weights: list[float], sent: Arrays, nodes: int) -> ArrayRecord:
    """Return the next shared weights by a run's robust rule; the list is emptied.

    Args:
        config: With a rule other than ``none``.
        updates: In the order of the nodes, on which sums depend.
        weights: One per update, summing to 1.
        sent: The weights from which the updates came.
        nodes: How many nodes the round's messages were sent to.

    Raises:
        FederationError: If too few of them answered, which would let one of them have its will.
    """
    if config.robust in ("median", "clip"):
        _check_came(config, len(updates), nodes)
    if config.robust == "clip":
        return _clipped(updates, weights, sent, config.clip_norm)
    if config.robust == "krum":
        record = updates[krum(updates, sent, config.malicious)].record
    elif config.robust == "trimmed_mean":
        cut = cut_off(config.trim, nodes)
        if len(updates) <= 2 * cut:
            raise FederationError(
                f"aggregation.robust=trimmed_mean with aggregation.trim={config.trim:g} cuts {cut} of "
                f"{plural(nodes, 'node')} off at each end; {len(updates)} delivered a usable result"
            )
        record = _by_number(updates, lambda stack: trimmed_mean(stack, cut))
    else:
        record = _by_number(updates, lambda stack: np.median(stack, axis=0))
    updates.clear()
    return record


def check_number(config: Options, nodes: int) -> None:
    """Refuse a rule that protects against nobody with so many nodes a round.

    Raises:
        FederationError: With the number that it needs.
    """
    needed, why = needs(config)
    if nodes < needed:
        raise FederationError(
            f"aggregation.robust={config.robust}{why} needs {plural(needed, 'node')} or more in each round, "
            f"found {nodes}"
        )


def _check_came(config: Options, came: int, sent_to: int) -> None:
    """Refuse to merge fewer updates than the rule protects with.

    Raises:
        FederationError: With the number that it needs, and those that came and were asked.
    """
    needed, _ = needs(config)
    if came < needed:
        raise FederationError(
            f"aggregation.robust={config.robust} needs the updates of {plural(needed, 'node')}, {came} of "
            f"{sent_to} delivered a usable result; with more nodes than it needs, some may fail"
        )


def needs(config: Options) -> tuple[int, str]:
    """Return how many nodes a round a rule needs, and the parameter that says so.

    The median of one or two is theirs; a trimmed mean must cut off at least one; Krum needs 2f + 3.
    """
    if config.robust == "krum":
        return 2 * config.malicious + 3, f" with aggregation.malicious={config.malicious}"
    if config.robust == "trimmed_mean":
        number = math.ceil(1 / config.trim)
        number += cut_off(config.trim, number) < 1  # by rounding
        return number, f" with aggregation.trim={config.trim:g}"
    if config.robust == "median" or (config.robust == "clip" and config.clip_norm is None):
        return 3, ""
    return 1, ""


def description(config: Options) -> str:
    """Say in one line what a rule does, and which weights of nodes it leaves unused."""
    unused = "each node alike: aggregation.weights and the method's own are not used"
    if config.robust == "clip":
        long = "the median of the round" if config.clip_norm is None else f"{config.clip_norm:g}"
        return f"aggregation.robust=clip: changes longer than {long} are shortened to it before they are averaged"
    what = {
        "trimmed_mean": f"the mean of each number without {config.trim:g} of the nodes at each end",
        "median": "the median of each number",
        "krum": f"the one update nearest to its neighbours, with {plural(config.malicious, 'malicious node')} at most",
    }
    return f"aggregation.robust={config.robust}: {what[config.robust]}; {unused}"


def cut_off(trim: float, nodes: int) -> int:
    """Return how many nodes a trimmed mean cuts off at each end."""
    return int(trim * nodes)


def trimmed_mean(stack: Stack, cut: int) -> NDArray[Any]:
    """Return the mean over nodes without the ``cut`` smallest and largest of each number, as FedTrimmedAvg has it."""
    last = len(stack) - cut
    middle = np.partition(stack, (cut, last - 1), axis=0)[cut:last]
    return np.asarray(np.mean(middle, axis=0))


def krum(updates: list[Update], sent: Arrays, malicious: int) -> int:
    r"""Return the place of the update with the lowest score, the first of equals.

    .. math:: s(i)=\sum_{j\in N_i}\|w_i-w_j\|_2^2

    where N_i are the n - f - 2 other updates that are closest to i.

    Args:
        updates: w, of n nodes.
        sent: What is taken off all of them, so that their distances are exact.
        malicious: f.

    Raises:
        FederationError: If no neighbour is left.
    """
    nearest = len(updates) - malicious - 2
    if nearest < 1:
        raise FederationError(
            f"aggregation.robust=krum with aggregation.malicious={malicious} cannot choose among fewer than "
            f"{plural(malicious + 3, 'node')}; {len(updates)} delivered a usable result"
        )
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
    return int(np.sort(distances, axis=1)[:, :nearest].sum(axis=1).argmin())


def _clipped(updates: list[Update], weights: list[float], sent: Arrays, clip_norm: float | None) -> ArrayRecord:
    r"""Average clipped changes: :math:`w+\sum_k p_k\min(1,C/\|w_k-w\|_2)\,(w_k-w)`, one update after another."""
    norms = [change(update.arrays(), sent) for update in updates]
    longest = float(np.median(norms)) if clip_norm is None else clip_norm
    parts = [weight * min(1.0, longest / norm) if norm else weight for weight, norm in zip(weights, norms, strict=True)]
    sums = RunningAverage()
    for part in parts:
        sums.add(updates.pop(0).arrays(), part)
    sums.add(sent, 1 - math.fsum(parts))
    return sums.record()


def _by_number(updates: list[Update], rule: Callable[[Stack], NDArray[Any]]) -> ArrayRecord:
    """Merge each number by itself, array by array and block by block, in the dtypes of the updates."""
    given = [update.arrays() for update in updates]
    record = {}
    for name, first in given[0].items():
        draft = Draft(first.shape, first.dtype)
        floating = first.dtype.kind == "f"
        for here, stack in _stacks([arrays[name] for arrays in given], first.dtype if floating else np.dtype("f8")):
            merged = rule(stack)
            draft.array.reshape(-1)[here] = merged if floating else np.rint(merged)
        record[name] = draft.finish()
    return ArrayRecord(record)


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
        """Return what it does in one line; raise ``FederationError`` if a round has too few nodes for it."""
        check_number(Options.read(self.run.config), self.run.number(len(nodes)))
        yield description(Options.read(self.run.config))

    def on_round(self, training: Training) -> Steps:
        """Raise ``FederationError`` if the rule protects against nobody with so many nodes."""
        check_number(Options.read(self.run.config), len(training.nodes))
        yield None

    def merge(self, updates: list[Update], weights: list[float], training: Training, next: Merge) -> ArrayRecord:
        """Return the next shared weights by the run's rule, in place of the average."""
        sent = decode(training.weights)
        return merge(Options.read(self.run.config), updates, weights, sent, len(training.nodes))
