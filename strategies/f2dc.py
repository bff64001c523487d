"""F2DC strategy [Wang et al., 2026].

Paper: "Domain-Skewed Federated Learning with Feature Decoupling and Calibration", Huan Wang, Jun Shen, Jun Yan,
Guansong Pang, CVPR 2026; https://arxiv.org/abs/2603.14238 (equations 10, 11).
Reference code: mala-lab/F2DC, versions up to commit c59e322 and commit 6b0a8ed; none implements these equations.

Symbols: n_k^c images of class c on node k, n_k and n^c their sums, N all, Q domains, B_k^c = n_k^c / n^c,
G^c = 1 / Q, d_k domain discrepancy, p_k weight.

Deviations: (1) B_k^c is exact; the paper's approximation n_k / N is ``balance=approximate``; (2) a class that
nobody holds is left out of the sum (A8); (3) with partial participation n, N and Q are those of the round (A9).
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedshift_wire.params import Params
from strategies.base import DomainStrategy
from strategies.federation.updates import Update

FloatArray = NDArray[np.float64]


class F2DCServerParams(Params):
    """The server's side of F2DC; values are the paper's."""

    aggregation: Literal["daa", "fedavg"] = "daa"  # Eq. 11, or by number of images (Table 6)
    alpha: float = Field(1.0, ge=0)  # weight of the share of images; useful range 0.8 to 1.2
    beta: float = Field(0.4, ge=0)  # weight of the discrepancy; useful range 0.3 to 0.5
    balance: Literal["exact", "approximate"] = "exact"  # B_k^c = n_k^c / n^c, or n_k / N (A7)


class F2DCStrategy(DomainStrategy):
    """Domain-aware aggregation (DaA)."""

    params_model = F2DCServerParams
    params: F2DCServerParams

    def weights(self, updates: list[Update]) -> list[float]:
        """Return p_k (Eq. 11), or the share of images with ``aggregation = fedavg``."""
        p = self.params
        if p.aggregation == "fedavg":
            return super().weights(updates)
        sizes = np.array([update.num_examples for update in updates], dtype=np.float64)
        held = np.array([update.node.class_counts for update in updates], dtype=np.float64)  # K x C
        if p.balance == "approximate":
            held = np.where(held.sum(axis=0) > 0, sizes[:, None], 0.0)  # n_k / N for every class that somebody holds
        domains = len({update.node.domain for update in updates})
        weights: list[float] = domain_aware(sizes, discrepancy(held, domains), p.alpha, p.beta).tolist()
        return weights


def discrepancy(held: FloatArray, domains: int) -> FloatArray:
    r"""Measure how far each node is from holding an equal share of every domain (Eq. 10).

    .. math:: \mathbf d_k=\sqrt{\tfrac12\sum_{c:\,n^c>0}\Big(\frac{n_k^c}{n^c}-\frac1Q\Big)^2}

    Args:
        held: n_k^c, (K, C).
        domains: Q.

    Returns:
        d, (K,).
    """
    total = held.sum(axis=0)  # C
    share = held / np.where(total > 0, total, 1)  # K x C
    squared = np.square(share - 1 / domains) * (total > 0)
    return np.asarray(np.sqrt(squared.sum(axis=1) / 2))


def domain_aware(sizes: FloatArray, d: FloatArray, alpha: float, beta: float) -> FloatArray:
    r"""Turn sizes and discrepancies into weights (Eq. 11).

    .. math:: \mathbf p_k=\frac{\epsilon(\alpha n_k/N-\beta\mathbf d_k)}{\sum_j\epsilon(\alpha n_j/N-\beta\mathbf d_j)}

    Args:
        sizes: n_k, (K,).
        d: Discrepancies, (K,).
        alpha: Weight of the share of images.
        beta: Weight of the discrepancy.

    Returns:
        p, (K,), summing to 1.
    """
    scores = 1 / (1 + np.exp(-(alpha * sizes / sizes.sum() - beta * d)))
    return np.asarray(scores / scores.sum())
