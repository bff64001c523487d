r"""FedDAP strategy [Le et al., 2026].

Paper: "FedDAP: Domain-Aware Prototype Learning for Federated Learning under Domain Shift", Huy Q. Le, Loc X. Nguyen, Yu
Qiao, Seong Tae Kim, Eui-Nam Huh, Choong Seon Hong; CVPR 2026, https://arxiv.org/abs/2604.06795. Reference code:
quanghuy6997/FedDAP at commit 988211e (``models/feddap.py``, ``proto_aggregation_attn``), which does not run as it is.

Symbols: p_i^k prototype of class k of node i, P_d^k prototype of class k and domain d, a_i weight of a node.

    a = softmax_i(sum_j cos(p_i^k, p_j^k) / tau) over the nodes of domain d that hold k,  P_d^k = sum_i a_i p_i^k

Deviations: (1) a class and domain that no node of a round holds keep their prototype (the code drops it); (2) the
weights are worked out in float64: with tau = 0.001 the rounding of float32 moves them by about 1e-4.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedshift_core.methods.feddap import FedDAPParams
from fedshift_strategies.method import ANY_COUNT, Arrays, Ask, Node, Scalars, Update
from fedshift_strategies.methods.prototypes import FloatArray, PrototypeStrategy, keep_absent_classes, stack_prototypes

SHORTEST = 1e-8  # norms below it count as it


class FedDAPStrategy(PrototypeStrategy[FedDAPParams]):
    """Averages weights as FedAvg does; merges class prototypes within each domain.

    Knowledge: ``prototypes`` (P, D), ``labels`` (P,) and ``domains`` (P,), places in ``federation.domains``.
    """

    sends = ("prototypes", "labels", "domains")
    tells = {"domain": ANY_COUNT}

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Send a node the place of its own domain."""
        return {"domain": self.federation.domains.index(node.domain)}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Merge the prototypes of this round by class and domain."""
        p, counts = stack_prototypes(updates)  # N x C x D, N x C
        home = np.array([self.federation.domains.index(update.node.domain) for update in updates])  # N
        rows: list[FloatArray] = [np.zeros((0, p.shape[2]), np.float32)]
        pairs: list[int] = []
        for place in np.unique(home).tolist():
            for k in range(p.shape[1]):
                members = p[(home == place) & (counts[:, k] > 0), k]  # nodes of the domain that hold k, x D
                if len(members):
                    mean = np.asarray(members.mean(axis=0, dtype=np.float64), np.float32)
                    by_mean = self.params.merge_by == "mean"
                    rows.append((mean if by_mean else by_similarity(members, self.params.merge_tau))[None])
                    pairs.append(place * p.shape[1] + k)
        self.knowledge = self._with_past(np.concatenate(rows), np.array(pairs, np.int64), p.shape[1])

    def _with_past(self, prototypes: FloatArray, pairs: NDArray[np.int64], classes: int) -> Arrays:
        """Add the pairs of a class and a domain, by their number, that nobody held this time."""
        past: Arrays = {}
        if self.knowledge:
            known = self.knowledge["domains"] * classes + self.knowledge["labels"]
            past = {"prototypes": self.knowledge["prototypes"], "labels": known}
        kept = keep_absent_classes(prototypes, pairs, past)
        number = kept["labels"]
        return {"prototypes": kept["prototypes"], "labels": number % classes, "domains": number // classes}


def by_similarity(members: FloatArray, tau: float) -> FloatArray:
    r"""Weigh prototypes by how similar each is to all: :math:`a=\mathrm{softmax}_i(\sum_j\cos(p_i,p_j)/\tau)`.

    Args:
        members: p, (N, D), float32, N from 1.
        tau: Temperature, above 0.

    Returns:
        sum_i a_i p_i, (D,), float32.
    """
    p = members.astype(np.float64)
    unit = p / np.maximum(np.linalg.norm(p, axis=1), SHORTEST)[:, None]
    return np.asarray(softmax((unit @ unit.T).sum(axis=1) / tau) @ p, np.float32)
