"""BatchNorm's statistics taken anew: what nodes tell of training images, merged into those of the averaged weights.

A node tells, for each layer and channel, the sum over its images of the channel's mean over the map, and of its mean
square. Sums add up, so the merged mean and variance are those of all images together, however they are divided.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Message

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused, check_numbers
from fedshift_core.moments import POWERS, plain, power_of
from fedshift_core.wire.names import (
    AVERAGED,
    BN_IMAGES,
    BN_MEAN,
    BN_SCORE,
    BN_SQUARES,
    BN_SUM,
    BN_VAR,
    BN_WAYS,
    KNOWLEDGE,
    METRICS,
    NUM_EXAMPLES,
    OWN,
    RETAKEN,
    STATISTICS,
    TAKE_STATISTICS,
)
from fedshift_core.wire.records import array_record
from fedshift_core.wire.rows import unlike
from fedshift_strategies.features.base import Asked, Node, Question, RunContext, Scoring, ServerFeature, Steps
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.evaluation import Observe
from fedshift_strategies.federation.update_norms import out_of_proportion
from fedshift_strategies.federation.updates import by_reason, decode

MORE = 10  # times as much as ``federation.max_update`` may statistics be over the median of the round's nodes
ROUNDING = 1e-6  # by which a variance may fall below 0, as a share of the mean square


def read(node: Node, reply: Message, channels: Mapping[str, int], most: int, max_value: float) -> tuple[Arrays, int]:
    """Return what a node tells, checked.

    Args:
        node: The node.
        reply: Its reply.
        channels: C by the name of the layer.
        most: How many images it was to look at, at most.
        max_value: The largest absolute value of a mean, or of the root of a mean square.

    Returns:
        Means and mean squares by layer, (C,), float64, under the names of their sums on the wire; the number of images.

    Raises:
        Refused: If a name, shape, type or number is not what it should be.
    """
    content = checks.opened(reply, (KNOWLEDGE, METRICS))
    metrics, images = checks.metrics_of(content), min(node.num_examples, most)
    checks.check_numbers_of(metrics, {NUM_EXAMPLES: checks.Range(images, images)})
    record = array_record(content, KNOWLEDGE)
    if record is None or NUM_EXAMPLES not in metrics:
        raise Refused(f"the reply lacks the record {KNOWLEDGE!r} or {NUM_EXAMPLES!r}")
    sums = decode(record)
    if why := unlike(sums, {key + name: ((size,), np.float64) for name, size in channels.items() for key in POWERS}):
        raise Refused(f"statistics of BatchNorm: {why}")
    means = {name: array / images for name, array in sums.items()}
    _check(means, max_value)
    for name in channels:
        mean, square = means[BN_SUM + name], means[BN_SQUARES + name]
        if (square - np.square(mean) < -ROUNDING * square).any() or (square < 0).any():
            raise Refused(f"{BN_SQUARES}{name} is less than the squares of the means")
    return means, images


def _check(means: Arrays, max_value: float) -> None:
    for name, array in means.items():
        check_numbers(name, array, max_value ** power_of(name))


def read_all(
    nodes_by_id: Mapping[int, Node],
    replies: Iterable[Message],
    channels: Mapping[str, int],
    run: RunContext,
    observe: Observe,
) -> tuple[list[tuple[Arrays, int]], list[tuple[Node, str]]]:
    """Return what nodes tell, in the order of their index, and why the others cannot be used.

    Args:
        nodes_by_id: The nodes by their id.
        replies: One of each at most.
        channels: C by the name of the layer.
        run: The bounds.
        observe: Is called with the numbers of each reply that is used.
    """
    told: dict[Node, tuple[Arrays, int]] = {}
    problems, config = dict.fromkeys(nodes_by_id.values(), checks.NO_ANSWER), run.config
    for reply in replies:
        node = nodes_by_id[reply.metadata.src_node_id]
        try:
            told[node] = read(node, reply, channels, config.evaluate.bn_images, config.federation.max_value)
            observe(node, checks.metrics_of(reply.content))
            del problems[node]
        except Refused as refused:
            problems[node] = str(refused)
            checks.let_go(reply)
    nodes = sorted(told, key=lambda node: node.index)
    # Domains differ in the means of their features more than in prototypes (dark images and light ones).
    strange = out_of_proportion([told[node][0] for node in nodes], MORE * config.federation.max_update)
    problems |= {nodes[place]: reason for place, reason in strange.items()}
    usable = [told[node] for node in nodes if node not in problems]
    return usable, sorted(problems.items(), key=lambda problem: problem[0].index)


def statistics_of(run: RunContext) -> tuple[str, ...]:
    """Return the statistics that test images are scored with: those of ``evaluate.bn`` that there are."""
    wanted = run.config.evaluate.bn
    return wanted if run.model.batchnorms else tuple(name for name in wanted if name != RETAKEN)


class BatchNormStatistics(ServerFeature):
    """Has test images scored with the statistics of ``evaluate.bn``, and statistics re-estimated for it."""

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return the statistics of ``evaluate.bn``.

        Raises:
            FederationError: If accuracies need own statistics of a domain that no simulated node holds.
        """
        config, held = self.run.config, {domain for node in nodes for domain in node.domains}
        reason = config.evaluate.without_nodes([domain for domain in self.run.domains if domain not in held])
        if reason and self.run.engine.is_simulation:  # a real node may come later
            raise FederationError(reason)
        names = statistics_of(self.run)
        lacking = [name for name in config.evaluate.bn if name not in names]
        line = "".join(f"; not {name}: with this method no statistics of BatchNorm travel" for name in lacking)
        yield f"scored with BatchNorm's statistics {', '.join(names)}{line}"

    def on_scores(self, scoring: Scoring) -> Steps:
        """Have test images scored with all of them, and statistics re-estimated for it where the run has these."""
        names = statistics_of(self.run)
        estimated = self._estimated(scoring) if RETAKEN in names else {}
        scoring.result.statistics = estimated
        if names == (AVERAGED,):
            yield None
            return
        options = {BN_WAYS: list(names), BN_IMAGES: self.run.config.evaluate.bn_images}
        yield Asked(
            lambda node: options,
            {STATISTICS: estimated} if RETAKEN in names else {},
            others=tuple(BN_SCORE + name for name in names[1:]),
            counts=lambda name, held: held or name != BN_SCORE + OWN,  # nobody has images of what nobody holds
        )

    def _estimated(self, scoring: Scoring) -> Arrays:
        """Return the statistics of all nodes' images with the averaged weights.

        Raises:
            FederationError: If no node delivers any that can be used.
        """
        most, layers = self.run.config.evaluate.bn_images, self.run.model.batchnorms
        work = {node: min(node.num_examples, most) for node in scoring.nodes}
        channels = {name: scoring.weights[f"{name}.{BN_MEAN}"].shape[0] for name in layers}
        options = {BN_IMAGES: most, TAKE_STATISTICS: True}
        sizes = {key + name: size for name, size in channels.items() for key in POWERS}
        means = scoring.means(Question(work, options, {name: power_of(name) for name in sizes}, sizes))
        if means is not None:  # of all nodes' images together, in units of the statistics of the weights
            arrays = plain(means, layers, decode(scoring.weights))
            try:
                _check(arrays, self.run.config.federation.max_value)
            except Refused as refused:
                raise FederationError(f"BatchNorm's statistics of all nodes together: {refused}") from None
            return merge([(arrays, 1)], layers)
        nodes = {node.node_id: node for node in scoring.nodes}
        usable, problems = read_all(nodes, scoring.ask(work, options), channels, self.run, scoring.observe)
        for node, why in problems:
            scoring.leave_out(node, f"could not take BatchNorm's statistics: {why}", lost=checks.is_lost(why))
        if not usable:
            raise FederationError(
                f"round {scoring.server_round}: no node delivered BatchNorm's statistics: {by_reason(problems)}"
            )
        return merge(usable, layers)


def merge(moments: Sequence[tuple[Arrays, int]], layers: Sequence[str]) -> Arrays:
    r"""Return the statistics of all nodes' images together, by state-dict name, float32.

    .. math:: \mu=\frac{\sum_kn_k\mu_k}{\sum_kn_k},\quad\sigma^2=\frac{\sum_kn_km_k}{\sum_kn_k}-\mu^2

    Args:
        moments: Means mu_k and mean squares m_k of each node, in the order of the nodes, and its number of images n_k.
        layers: Names of the BatchNorm layers.
    """
    images = sum(number for _, number in moments)
    statistics: Arrays = {}
    for name in layers:
        mean, square = (sum(number * means[key + name] for means, number in moments) / images for key in POWERS)
        statistics[f"{name}.{BN_MEAN}"] = np.asarray(mean, np.float32)
        statistics[f"{name}.{BN_VAR}"] = np.asarray(np.maximum(square - np.square(mean), 0), np.float32)
    return statistics
