"""Generalisation adjustment, ``aggregation.weights=ga`` [Zhang et al., 2023].

Paper: "Federated Domain Generalization with Generalization Adjustment", Ruipeng Zhang, Qinwei Xu, Jiangchao Yao, Ya
Zhang, Qi Tian, Yanfeng Wang, CVPR 2023, pp. 3954-3963. Reference code: MediaBrain-SJTU/FedDG-GA, commit 8d03a24
(``utils/weight_adjust.py``).

Symbols: a_n weight of node n, N all nodes, G_n gap: the loss of the averaged model less that of the node's own model
right before it was averaged, both on the node's images; d_t step of round t, T rounds, S the nodes whose gap is known.

    a_n <- a_n + d_t (G_n - mean G) / max_m |G_m - mean G|,  clipped to [0, 1], divided by the sum;  a_n = 1/N at first
    d_t = d (1 - (t - 1) / T) / N

The weights carry on from round to round (the paper's momentum), and their step falls to nothing. A node scores the
averaged model as it comes with the next round, so a gap costs no message of its own: that of round t is known in round
t + 1, and used there, as in the reference code.

Deviations: (1) N, the number of nodes, is in the place of the number of domains, 3, by which the reference code divides
its step: with several nodes of a domain each has its weight; (2) only nodes that trained in the round before have a
gap, others keep their weight; the nodes of a round are weighed among each other; (3) the reference code's first step is
one decrement longer; (4) what a node says counts as ten times the median of the round's nodes at most.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedshift_app.features.ga import Options
from fedshift_core.arrays import Arrays
from fedshift_core.limits import MOST_LOSS, Refused
from fedshift_core.wire.names import GAP, LOCAL_RECEIVED, LOCAL_TRAINED
from fedshift_strategies.features.base import Asked, Range, ServerFeature, Steps, Training, Update, Weigh
from fedshift_strategies.federation.update_norms import capped

#: What the server keeps from round to round: nodes by index and their weights; those of the last round, and how their
#: own models did.
NODES, WEIGHTS, LAST, OWN = "ga/nodes", "ga/weights", "ga/last", "ga/own"


def carried_on(kept: Mapping[int, float], keys: Iterable[int], first: float) -> dict[int, float]:
    """Return weights by node or group, summing to 1; a new one has the mean of those kept, or ``first``."""
    usual = sum(kept.values()) / len(kept) if kept else first
    return among({key: kept.get(key, usual) for key in sorted({*keys, *kept})})


def capped_by_node(updates: Sequence[Update], name: str) -> dict[int, float]:
    """Return a loss or an accuracy by node, capped as of nodes one of which may lie."""
    having = [update for update in updates if name in update.metrics]
    values = capped([update.metrics[name] for update in having])
    return {update.node.index: value for update, value in zip(having, values, strict=True)}


def among(weights: Mapping[int, float]) -> dict[int, float]:
    """Return weights divided by their sum; equal ones where all are 0."""
    total = sum(weights.values())
    return {key: weight / total if total > 0 else 1 / len(weights) for key, weight in weights.items()}


def by_key(kept: Arrays, keys: str, values: str) -> dict[int, float]:
    """Return numbers by node or group, from two arrays of what is kept; nothing before the first round."""
    return dict(zip(kept[keys].tolist(), kept[values].tolist(), strict=True)) if keys in kept else {}


class GeneralisationAdjustment(ServerFeature):
    """Weighs nodes where ``aggregation.weights=ga``."""

    prefixes = ("ga/",)

    def on_round(self, training: Training) -> Steps:
        """Ask for the loss or the accuracy of the weights as they come and as they leave."""
        rule = Options.read(self.run.config)
        allowed = Range(0, MOST_LOSS if rule.gap == "loss" else 1, whole=False)
        yield Asked(
            lambda node: {GAP: [rule.gap, rule.gap_on]},
            bounds=lambda node: {LOCAL_RECEIVED: allowed, LOCAL_TRAINED: allowed},
            check=_go_together,
        )

    def weights(self, updates: list[Update], training: Training, next: Weigh) -> list[float]:
        """Return the weights of the round, one per update, summing to 1; keep what the next one goes by."""
        rule, nodes = Options.read(self.run.config), [node.index for node in training.all_nodes]
        own = by_key(self.state, LAST, OWN)
        weights = carried_on(by_key(self.state, NODES, WEIGHTS), nodes, 1 / len(nodes))
        received, trained = (capped_by_node(updates, name) for name in (LOCAL_RECEIVED, LOCAL_TRAINED))
        sign = 1.0 if rule.gap == "loss" else -1.0
        gaps = {node: sign * (value - own[node]) for node, value in received.items() if node in own}
        middle = sum(gaps.values()) / len(gaps) if gaps and rule.gap_centred else 0.0
        largest = max((abs(gap - middle) for gap in gaps.values()), default=0.0)
        before = training.server_round - 1  # the round of the gaps
        step = rule.gap_step * (1 - (before - 1) / self.run.rounds) / len(weights)
        if largest > 0:
            for node, gap in gaps.items():
                weights[node] = min(max(weights[node] + step * (gap - middle) / largest, 0.0), 1.0)
        weights = among(weights)
        self.state = {
            NODES: np.array(list(weights), np.int64),
            WEIGHTS: np.array(list(weights.values())),
            LAST: np.array(list(trained), np.int64),
            OWN: np.array(list(trained.values()), np.float64),
        }
        return [*among({update.node.index: weights[update.node.index] for update in updates}).values()]


def _go_together(metrics: Mapping[str, Any]) -> None:
    if (LOCAL_RECEIVED in metrics) != (LOCAL_TRAINED in metrics):
        raise Refused(f"{LOCAL_RECEIVED} and {LOCAL_TRAINED} go together, found one of them")
