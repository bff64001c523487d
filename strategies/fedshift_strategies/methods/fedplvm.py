"""FedPLVM strategy [Wang et al., 2024].

Paper: "Taming Cross-Domain Representation Variance in Federated Prototype Learning with Heterogeneous Data Domains",
Lei Wang, Jieming Bian, Letian Zhang, Chen Chen, Jie Xu; NeurIPS 2024, https://arxiv.org/abs/2403.09048.
Reference code: TriStonesWang/FedPLVM at commit 867b5f1 (``main.py``, ``utils/util.py``).

Symbols: v_n^kj prototype j of class k of node n, P^k the global cluster prototypes of class k.

Deviations: (1) weights are averaged by number of images, as in the code where labels are skewed; where they are not,
it takes equal weights (``aggregation.weights=equal``); (2) a class that no node of a round holds keeps its clusters.
"""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.clustering import MOST_CLUSTERS
from fedshift_core.methods.fedplvm import FedPLVMParams
from fedshift_strategies.method import Arrays, Declaration, DomainStrategy, Own, Update
from fedshift_strategies.methods.prototypes import FloatArray, cluster_means, keep_absent_classes

P = Own("P", MOST_CLUSTERS)
MOST_CLUSTERED = 5000  # prototypes of a class that are compared with each other: those of the most images


class FedPLVMStrategy(DomainStrategy[FedPLVMParams]):
    """Averages weights as FedAvg does; clusters all nodes' prototypes of each class by FINCH once more.

    Knowledge: ``prototypes`` (P, D) and ``labels`` (P,).
    """

    sends = ("prototypes", "labels")
    contributes = {"prototypes": (P, "D"), "labels": (P,), "counts": (P,)}

    def expected(self) -> Declaration:
        """Return nothing where the loss takes no prototypes."""
        return self.contributes if self.params.lambda_proto > 0 else {}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Turn all prototypes of a class into the means of their clusters, in which each counts the same."""
        if not self.expected():
            return
        prototypes, labels = collected([update.knowledge for update in updates], MOST_CLUSTERED)
        if self.params.cluster_globally:
            prototypes, labels = cluster_means(prototypes, labels, early_exit=False, dtype=np.float64)
        self.knowledge = keep_absent_classes(prototypes, labels, self.knowledge)


def collected(contributions: list[Arrays], most: int) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the prototypes of all nodes, (P, D), and their classes, (P,), in the order of the nodes.

    A prototype of no image is none. Of a class that has more than ``most``, those of the most images are taken.
    """
    names = ("prototypes", "labels", "counts")
    prototypes, labels, counts = (np.concatenate([arrays[name] for arrays in contributions]) for name in names)
    places = [np.flatnonzero((labels == k) & (counts > 0)) for k in np.unique(labels)]
    kept = [np.sort(own[np.argsort(-counts[own], kind="stable")[:most]]) for own in places]
    taken = np.sort(np.concatenate([np.zeros(0, np.int64), *kept]))
    return prototypes[taken], labels[taken]
