"""FedPAC strategy [Xu et al., 2023].

Paper: "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", Jian Xu, Xinyi Tong,
Shao-Lun Huang; ICLR 2023, https://arxiv.org/abs/2306.11867. Reference code: JianXu95/FedPAC at commit 5770f4f
(``tools.py``, ``running.py``).

Symbols: h_n^k mean feature of class k on node n times the share of the class, V_n variance of that, psi_n the head
of node n, alpha_n the weights of its combination, G^k global prototype.

Deviations: (1) negative eigenvalues of the quadratic programme, which are rounding, count as 0 always (the code: those
below 0.01, if one is negative); (2) a node that is not in a round keeps the combination it was given last; (3) a class
that no node of a round holds keeps its prototype; (4) a negative variance, which no honest node sends, counts as 0.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedshift_core.methods.fedpac import FedPACParams
from fedshift_core.wire.names import HEAD
from fedshift_strategies.method import Arrays, Ask, Declaration, DomainStrategy, Floats, Node, Shape, Sum, Update
from fedshift_strategies.methods.fdse import shortest
from fedshift_strategies.methods.heads import head_of, mean_head, stacked, unstacked
from fedshift_strategies.methods.prototypes import (
    BY_IMAGES,
    PROTOTYPES,
    one_per_class,
    stack_prototypes,
    weighted_prototypes,
)

STATISTICS: dict[str, Shape] = {"class-features": ("C", "D"), "variance": (1,)}
STATISTICS_UNSENT: dict[str, Sum] = dict.fromkeys(STATISTICS, "images")
LEAST = 1e-3  # smaller weights of a combination are 0, as in the code


class FedPACStrategy(DomainStrategy[FedPACParams]):
    """Averages weights as FedAvg does and class prototypes by images; combines a head for each node.

    Knowledge: ``prototypes`` (K, D) and ``labels`` (K,); ``nodes`` (N,), those that ever took part, and their
    combined heads ``heads/NAME`` (N, ...). A node is sent the prototypes and ``head/NAME``, its own.
    """

    sends = ("prototypes", "labels", HEAD + "*")
    contributes = PROTOTYPES | STATISTICS
    behind = {"class-features": "class", "variance": "sum over classes"}

    def expected(self) -> Declaration:
        """Return prototypes if features are aligned, and statistics if heads are combined."""
        aligned = PROTOTYPES if self.params.lambda_align > 0 else {}
        return aligned | (STATISTICS if self.params.combine_heads else {})

    @classmethod
    def sums(cls, params: FedPACParams) -> Mapping[str, Sum]:
        """Return that each image of a class counts the same; statistics are not sent where no heads are combined."""
        return BY_IMAGES if params.combine_heads else {**BY_IMAGES, **STATISTICS_UNSENT}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Merge the prototypes and combine the heads of this round's nodes."""
        merged: Arrays = {}
        if self.params.lambda_align > 0:
            merged |= one_per_class(*weighted_prototypes(*stack_prototypes(updates)), self.knowledge)
        if self.params.combine_heads:
            merged |= self._combined(updates)
        self.knowledge = merged

    def knowledge_for(self, node: Node, ask: Ask) -> Arrays:
        """Return the global prototypes and the node's own head, if it has one."""
        sent = {name: self.knowledge[name] for name in ("prototypes", "labels") if name in self.knowledge}
        return sent | {HEAD + name: array for name, array in self._heads().get(node.index, {}).items()}

    def _combined(self, updates: list[Update]) -> Arrays:
        heads = [head_of(update.arrays()) for update in updates]
        features = np.stack([update.knowledge["class-features"] for update in updates])  # N x C x D
        variances = np.array([update.knowledge["variance"][0] for update in updates])  # N
        known = self._heads()
        for update, alpha in zip(updates, combinations(features, variances), strict=True):
            known[update.node.index] = mean_head(heads, alpha.tolist())
        nodes = sorted(known)
        return {"nodes": np.array(nodes, dtype=np.int64)} | stacked([known[index] for index in nodes])

    def _heads(self) -> dict[int, Arrays]:
        """Return the combined heads by index of the node."""
        nodes = self.knowledge.get("nodes", np.zeros(0, np.int64)).tolist()
        return dict(zip(nodes, unstacked(self.knowledge), strict=True))


def combinations(features: NDArray[np.float32], variances: NDArray[np.float32]) -> Floats:
    r"""Return with which weights each node combines the heads of all.

    .. math:: \alpha_n=\arg\min_{\alpha\ge0,\,\mathbf 1^\top\alpha=1}
        \sum_m\alpha_m^2V_m+\Big\|h_n-\sum_m\alpha_mh_m\Big\|_F^2

    With :math:`\sum_m\alpha_m=1` the second term is :math:`\alpha^\top G\alpha`, G the inner products of
    :math:`h_n-h_m`.

    Args:
        features: h, (N, C, D).
        variances: V, (N,).

    Returns:
        alpha, (N, N), a node's in each row; from 0 up, 1 in sum; those up to ``LEAST`` are 0, unless all are.
    """
    h = features.reshape(len(features), -1).astype(np.float64)  # N x CD
    spread = np.diag(np.maximum(variances.astype(np.float64), 0))
    rows = []
    for n, own in enumerate(h):
        apart = own - h  # N x CD
        rows.append(_on_simplex(spread + apart @ apart.T, n))
    return np.stack(rows)


def _on_simplex(q: Floats, own: int) -> Floats:
    r"""Return :math:`\arg\min\alpha^\top Q\alpha` over weights from 0 up that sum to 1.

    If Q is 0, all are equally good, and the node keeps its ``own`` head.

    For :math:`\beta=t\alpha` the least of :math:`\beta^\top Q\beta+(\mathbf 1^\top\beta-1)^2` over t is
    :math:`q/(1+q)` with :math:`q=\alpha^\top Q\alpha`, which rises with q: so SciPy's non-negative least squares finds
    beta, and alpha is beta scaled to a sum of 1.
    """
    scale = np.trace(q) / len(q)  # a factor of Q changes no alpha
    if scale <= 0:
        return np.asarray(np.eye(len(q))[own])
    alpha = shortest(q / scale)
    if alpha.max() > LEAST:  # else all are as small, as of a thousand nodes or more that are alike
        alpha[alpha <= LEAST] = 0
        alpha /= alpha.sum()
    return alpha
