"""F2DC's weights, domain-aware aggregation (DaA) [Wang et al., 2026]: ``aggregation.weights = domain-aware``.

Paper: "Domain-Skewed Federated Learning with Feature Decoupling and Calibration", Huan Wang, Jun Shen, Jun Yan,
Guansong Pang, CVPR 2026; https://arxiv.org/abs/2603.14238 (equations 10, 11).
Reference code: mala-lab/F2DC, versions up to commit c59e322 and commit 7a4f060; none implements these equations.

Symbols: n_k^c images of class c on node k, n_k and n^c their sums, N all, C classes, Q domains, B_k^c = n_k / N as
printed (or exact, n_k^c / n^c), G^c = 1 / Q, d_k domain discrepancy, p_k weight.

Q is the number of domains, not of clients: section 4.3 says so twice ("Q denotes the number of domains", "for PACS,
Q = 4", where ten clients train), and the code has no Q at all. Here it is the number of domains that the nodes of the
federation hold, whether or not one of them answers in a round.

Deviations: (1) B_k^c = n_k^c / n^c, which the paper's n_k / N approximates, is ``aggregation.balance=exact``; a class
that nobody holds is then left out of the sum (A8); (2) with partial participation n and N are those of the round (A9).
"""

import numpy as np

from fedshift_core.arrays import Floats


def discrepancy(held: Floats, domains: int) -> Floats:
    r"""Measure how far each node is from holding an equal share of every domain (Eq. 10) with the exact shares.

    .. math:: \mathbf d_k=\sqrt{\tfrac12\sum_{c:\,n^c>0}\Big(\frac{n_k^c}{n^c}-\frac1Q\Big)^2}

    Args:
        held: n_k^c, (K, C).
        domains: Q, at least 1.

    Returns:
        d, (K,).
    """
    total = held.sum(axis=0)  # C
    share = held / np.where(total > 0, total, 1)  # K x C
    squared = np.square(share - 1 / domains) * (total > 0)
    return np.asarray(np.sqrt(squared.sum(axis=1) / 2))


def approximate_discrepancy(sizes: Floats, classes: int, domains: int) -> Floats:
    r"""Measure the same as Eq. 10 prints it: every class has the share n_k / N, so the sum has C equal terms.

    .. math:: \mathbf d_k=\sqrt{\tfrac12\sum_{c=1}^C\Big(\frac{n_k}N-\frac1Q\Big)^2}

    Args:
        sizes: n_k, (K,).
        classes: C.
        domains: Q, at least 1.

    Returns:
        d, (K,).
    """
    return np.asarray(np.sqrt(classes / 2) * np.abs(sizes / sizes.sum() - 1 / domains))


def domain_aware(sizes: Floats, d: Floats, alpha: float, beta: float) -> Floats:
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
