"""SCAFFOLD strategy [Karimireddy et al., 2020].

Paper: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Sai Praneeth Karimireddy, Satyen Kale,
Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh, ICML 2020;
https://arxiv.org/abs/1910.06378 (algorithm 1). Reference code: none of the authors.

Symbols: x the shared weights, y_i those of node i after local training, c the server's control variate, Delta c_i how a
node's changed, S the nodes of the round, N all nodes, eta_g the server's step.

    x <- x + eta_g / |S| sum_{i in S} (y_i - x),   c <- c + 1/N sum_{i in S} Delta c_i

The first line is the plain mean with eta_g = 1; another one is that of ``server: {optimizer: fedavgm, momentum: 0, lr:
ETA_G}``.

Deviations: (1) buffers and arrays of integers are averaged and have no control variate; (2) a node whose reply was not
used has changed its own control variate all the same: c lacks that change.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedshift_core.methods.scaffold import ScaffoldParams
from fedshift_strategies.method import Declaration, DomainStrategy, Update, decode

SERVERS, CHANGE = "c", "delta-c"
FloatArray = NDArray[np.float32]


class ScaffoldStrategy(DomainStrategy[ScaffoldParams]):
    """The plain mean of the nodes' weights, and a control variate that goes with them.

    Knowledge: ``c`` (P,), from the end of round 1; before, nothing stands for zeros.
    """

    sends = (SERVERS,)
    contributes = {CHANGE: ("P",)}
    behind = {CHANGE: "model"}
    behind_with = {"method.option=I": {CHANGE: "class"}}
    summed = {CHANGE: "total"}
    scores_with_knowledge = False

    def expected(self) -> Declaration:
        """Return one number for each parameter that travels."""
        if not self.params.control:
            return {}
        sent = decode(self.sent)
        number = sum(math.prod(sent[name].shape) for name in self.federation.trained(sent))
        return {CHANGE: (number,)} if sent else self.contributes

    @classmethod
    def weighs_alike(cls, params: ScaffoldParams) -> bool:
        """Weigh each node of the round the same."""
        return params.control

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Move c by what the nodes' own changed, over all nodes of the federation."""
        if self.params.control:
            c = next_control(
                self.knowledge.get(SERVERS), [update.knowledge[CHANGE] for update in updates], len(self.roster.nodes)
            )
            self.knowledge = {SERVERS: c}


def next_control(c: FloatArray | None, changes: list[FloatArray], nodes: int) -> FloatArray:
    r"""Return :math:`c+\frac1N\sum_{i\in S}\Delta c_i`, (P,), float32.

    Args:
        c: The last one; None stands for zeros.
        changes: Delta c_i of each node of the round.
        nodes: N, all nodes of the federation.
    """
    total = np.zeros(changes[0].shape) if c is None else c.astype(np.float64)
    for change in changes:
        total += change / nodes
    return total.astype(np.float32)
