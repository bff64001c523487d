"""Weights of the worst domain, ``aggregation.weights=afl`` [Mohri et al., 2019; Sagawa et al., 2020].

Papers: "Agnostic Federated Learning", Mehryar Mohri, Gary Sivek, Ananda Theertha Suresh, ICML 2019,
https://arxiv.org/abs/1902.00146 (a projected step); "Distributionally Robust Neural Networks for Group Shifts", Shiori
Sagawa, Pang Wei Koh, Tatsunori B. Hashimoto, Percy Liang, ICLR 2020, https://arxiv.org/abs/1911.08731 (GroupDRO, an
exponential step, mirror ascent).

Symbols: q_g weight of group g (lambda in the first paper), L_g its loss, eta step, n_k images of node k.

    projected:    q <- the nearest point of the simplex to q + eta L
    exponential:  q_g <- q_g exp(eta L_g), divided by the sum;  q_g = 1 / number of groups at first

L_g is the mean loss of the weights that the nodes of the group were sent, over their training images. The weight of
node k in the average is q_g n_k over the images of all nodes of its group that sent an update: with q after the
exponential step (GroupDRO's algorithm 1), and before the projected one, as w_t and lambda_t both follow from
lambda_{t-1} (Stochastic-AFL).

Deviations: (1) a group is a domain, or each node (``afl_groups``), by the node's home domain; (2) only groups with an
update move, others keep their weight and those present are weighed among each other; (3) local training is as the
configuration says, not one step on one batch; (4) a node's loss counts as ten times the median of the round's nodes at
most, and a projected step raises no weight by more than a half: one that lies does not have all weight at once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedshift_app.features.afl import Options
from fedshift_app.features.ga.server import among, by_key, capped_by_node, carried_on
from fedshift_core.limits import MOST_LOSS
from fedshift_core.wire.names import ASK_LOSS, RECEIVED_LOSS
from fedshift_strategies.features.base import Asked, Range, ServerFeature, Steps, Training, Update, Weigh

FloatArray = NDArray[np.float64]
#: What the server keeps from round to round: groups (places of domains, or indices of nodes) and their weights q.
GROUPS, WEIGHTS = "afl/groups", "afl/weights"
LARGEST_RISE = 0.5  # of a group's weight in a projected step, whatever loss a node says


def moved(q: FloatArray, losses: FloatArray, step: float, update: str) -> FloatArray:
    """Return the weights of groups, summing to their sum before, after a step up the losses.

    Args:
        q: Weights (G,), not negative, their sum above 0.
        losses: L_g (G,).
        step: eta, not negative.
        update: ``exponential``, or ``projected`` on the simplex (Duchi et al., ICML 2008).
    """
    total = q.sum()
    if update == "projected":
        point = q / total + step * losses
        falling = np.sort(point)[::-1]
        excess = (np.cumsum(falling) - 1) / np.arange(1, len(point) + 1)
        return np.asarray(total * np.maximum(point - excess[falling > excess][-1], 0.0))
    scaled = np.log(np.maximum(q, np.finfo(np.float64).tiny)) + step * losses
    risen = np.exp(scaled - scaled.max())
    return np.asarray(total * risen / risen.sum())


def weigh(
    rule: Options, updates: Sequence[Update], group_of: Mapping[int, int], kept: Mapping[int, float]
) -> tuple[list[float], dict[int, float]]:
    """Return one weight per update, summing to 1, and q of each group for the next round.

    Args:
        rule: The step.
        updates: Those of the round.
        group_of: The group of each node of the federation, by its index.
        kept: q after the round before; nothing in the first.
    """
    q = carried_on(kept, group_of.values(), 1.0)
    weighing, images, received = q, Counter[int](), capped_by_node(updates, RECEIVED_LOSS)
    losses: dict[int, list[tuple[int, float]]] = {}
    for update in updates:
        node, group = update.node.index, group_of[update.node.index]
        images[group] += update.num_examples
        if node in received:
            losses.setdefault(group, []).append((update.num_examples, received[node]))
    if losses:
        before = np.array([weighing[group] for group in losses])
        means = np.array([sum(n * loss for n, loss in each) / sum(n for n, _ in each) for each in losses.values()])
        after = moved(before, means, rule.afl_step, rule.afl_update) if before.sum() > 0 else before
        if rule.afl_update == "projected" and (rise := float((after - before).max())) > LARGEST_RISE:
            after = before + (after - before) * (LARGEST_RISE / rise)
        q = q | dict(zip(losses, after.tolist(), strict=True))
        weighing = weighing if rule.afl_update == "projected" else q
    raw = {}
    for update in updates:
        node, group = update.node.index, group_of[update.node.index]
        raw[node] = weighing[group] * update.num_examples / images[group]
    return [*among(raw).values()], q


class WorstDomainWeights(ServerFeature):
    """Weighs nodes where ``aggregation.weights=afl``."""

    prefixes = ("afl/",)

    def on_round(self, training: Training) -> Steps:
        """Ask for the loss of the weights as they come."""
        allowed = Range(0, MOST_LOSS, whole=False)
        yield Asked(lambda node: {ASK_LOSS: True}, bounds=lambda node: {RECEIVED_LOSS: allowed})

    def weights(self, updates: list[Update], training: Training, next: Weigh) -> list[float]:
        """Return the weights of the round."""
        rule = Options.read(self.run.config)
        domains = list(self.run.domains)
        group_of = {
            node.index: node.index if rule.afl_groups == "node" else domains.index(node.domain)
            for node in training.all_nodes
        }
        weights, q = weigh(rule, updates, group_of, by_key(self.state, GROUPS, WEIGHTS))
        self.state = {GROUPS: np.array(list(q), np.int64), WEIGHTS: np.array(list(q.values()), np.float64)}
        return weights
