"""I2PFL strategy [Le et al., 2025].

Paper: "Mitigating Domain Shift in Federated Learning via Intra- and Inter-Domain Prototypes", Huy Q. Le,
Ye Lin Tun, Yu Qiao, Minh N. H. Nguyen, Keon Oh Kim, Choong Seon Hong; https://arxiv.org/abs/2501.08521
(equations 3-5). Reference code: none published.

Symbols: p_m^k prototype of node m and class k, mu^k their mean, d_m^k distance, g^k global prototype,
beta the EMA decay.

Deviations: (1) means and weights run over the nodes that hold a class (the paper writes all M);
(2) beta weighs the past prototypes (``ema_weight_on``; a reading of the paper, methods A3).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedshift_core.methods.i2pfl import I2PFLParams
from fedshift_strategies.method import Arrays, Sum
from fedshift_strategies.methods.prototypes import (
    BY_NODES,
    FloatArray,
    PrototypeStrategy,
    cluster_means,
    keep_absent_classes,
    mean_prototypes,
    uploaded,
)

SAME = 1e-12  # below this total distance all prototypes of a class count as one (A2)


class I2PFLStrategy(PrototypeStrategy[I2PFLParams]):
    """Averages weights as FedAvg does and turns the nodes' class prototypes into global ones."""

    @classmethod
    def sums(cls, params: I2PFLParams) -> Mapping[str, Sum]:
        """Return that each node that holds a class counts the same, where prototypes are averaged and no more."""
        return BY_NODES if params.inter_proto == "average" else {}

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Eqs 3-5 over the nodes of this round."""
        if self.params.inter_proto == "finch":
            return keep_absent_classes(*cluster_means(*uploaded(p, counts)), self.knowledge)
        if self.params.inter_proto == "average":
            fresh = mean_prototypes(p, counts > 0)
        else:
            fresh = reweighted_prototypes(p, counts > 0, squared=self.params.dist == "l2sq")
        return self._with_past(*fresh)

    def _with_past(self, fresh: FloatArray, held: NDArray[np.bool_]) -> Arrays:
        """EMA with the prototypes of the rounds before (Eq. 5); a class nobody holds keeps its old one."""
        g, known = fresh.copy(), held.copy()
        for row, k in enumerate(self.knowledge.get("labels", np.zeros(0, np.int64))):
            past = self.knowledge["prototypes"][row]
            if not held[k]:
                g[k], known[k] = past, True
            elif self.params.use_ema:
                beta = self.params.ema if self.params.ema_weight_on == "past" else 1 - self.params.ema
                g[k] = beta * past + (1 - beta) * fresh[k]
        labels = np.flatnonzero(known).astype(np.int64)
        return {"prototypes": g[labels], "labels": labels}


def reweighted_prototypes(
    p: FloatArray, holds: NDArray[np.bool_], *, squared: bool
) -> tuple[FloatArray, NDArray[np.bool_]]:
    r"""Weigh each node's prototype by its distance from the mean (Eq. 4).

    .. math:: d_m^k=\|p_m^k-\mu^k\|_2^2,\quad g^k=\sum_m\frac{d_m^k}{\sum_nd_n^k}\,p_m^k

    Args:
        p: Local prototypes, (M, C, D), float32.
        holds: Whether node m holds class k, (M, C).
        squared: Squared distance, or the plain one.

    Returns:
        g, (C, D), and a mask (C,) that is False where no node holds the class. Where all distances
        vanish (one node, or equal prototypes) g is the mean.
    """
    mu, held = mean_prototypes(p, holds)
    d = np.square(p.astype(np.float64) - mu).sum(axis=2) * holds  # M x C
    if not squared:
        d = np.sqrt(d)
    total = d.sum(axis=0)  # C
    weights = d / np.where(total < SAME, 1, total)  # M x C
    g = np.einsum("mc,mcd->cd", weights, p.astype(np.float64))
    return np.where((total < SAME)[:, None], mu, g).astype(np.float32), held
