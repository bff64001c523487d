"""FedCode strategy [Zhang et al., 2026].

Paper: "FedCode: Addressing Federated Domain Shift by Contrastive Feature Decoupling", Shaobo Zhang, Yijie Yin,
Wei Liang, Fan Wu, Weizhi Meng, Tian Wang; Neurocomputing 2026, doi 10.1016/j.neucom.2026.133151
(equations 3, 4, 9, algorithm 1). Reference code: none published.

Symbols: c_n semantic prototypes of node n, s_n its style prototype, G^k their mean over nodes, P^j the mean of
cluster j of the style prototypes, the node's pseudo-domain j.

Deviations: (1) the semantic encoder is averaged by share of images, without algorithm 1's further 1/N (A4);
(2) G^k is the mean over the nodes that hold class k, and stays where nobody does (A5).
"""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.clustering import Partition, finch_groups
from fedshift_core.methods.fedcode import FedCodeParams
from fedshift_strategies.method import ANY_COUNT, Arrays, Ask, Declaration, Node, Scalars, Shape, Update
from fedshift_strategies.methods.heads import mean_head
from fedshift_strategies.methods.prototypes import PROTOTYPES, FloatArray, PrototypeStrategy, stack_prototypes

STYLED: dict[str, Shape] = PROTOTYPES | {"style-prototype": ("D",)}
HEADS: dict[str, Shape] = {"head-weight": ("C", "D"), "head-bias": ("C",)}


class FedCodeStrategy(PrototypeStrategy[FedCodeParams]):
    """Averages encoders as FedAvg does, semantic prototypes by class, and clusters style prototypes.

    Knowledge: ``prototypes`` (K', D) and ``labels`` (K',); ``style-prototypes`` (J, D). State, of all nodes that ever
    contributed: ``nodes`` (N,), ``node-styles`` (N, D) and ``pseudo-labels`` (N,).
    """

    sends = ("prototypes", "labels", "style-prototypes", *HEADS)
    tells = {"pseudo-label": ANY_COUNT}
    contributes = STYLED | HEADS
    behind = {"style-prototype": "sum over classes", "head-weight": "model", "head-bias": "model"}
    optional = dict.fromkeys(HEADS, "method.global_model=average_heads")

    def expected(self) -> Declaration:
        """Return the prototypes if SemCL or StyCL is on, and the head if heads are averaged."""
        heads = HEADS if self.params.global_model == "average_heads" else {}
        return (STYLED if self.params.contrasts else {}) | heads

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Eqs 4 and 9 over the nodes of this round, and the mean of their heads."""
        merged: Arrays = {}
        if self.params.contrasts:
            merged |= self.merge_prototypes(*stack_prototypes(updates)) | self._styles(updates)
        if self.params.global_model == "average_heads":
            heads = [{name: update.knowledge[name] for name in HEADS} for update in updates]
            merged |= mean_head(heads, self.node_weights(updates))
        self.knowledge = merged

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Tell the node its own pseudo-label; nothing if it has not contributed yet."""
        labels = dict(zip(self.noted("nodes"), self.noted("pseudo-labels"), strict=True))
        return {"pseudo-label": labels[node.index]} if node.index in labels else {}

    def _styles(self, updates: list[Update]) -> Arrays:
        """Return P and the pseudo-labels (Eq. 9).

        Style encoders are private, so the style prototype of a node that was not asked this round is still what
        the node would send: it is clustered with the others.
        """
        known = dict(zip(self.noted("nodes"), self.state.get("node-styles", ()), strict=True))
        known |= {update.node.index: update.knowledge["style-prototype"] for update in updates}
        nodes = sorted(known)
        styles = np.stack([known[index] for index in nodes])  # N x D
        prototypes, pseudo = cluster_styles(styles, self.params.finch_partition)
        self.state = {"nodes": np.array(nodes, dtype=np.int64), "node-styles": styles, "pseudo-labels": pseudo}
        return {"style-prototypes": prototypes}


def cluster_styles(styles: FloatArray, partition: Partition) -> tuple[FloatArray, NDArray[np.int64]]:
    """Cluster the nodes' style prototypes by FINCH with cosine distance (Eq. 9).

    Args:
        styles: s_n, (N, D), float32.
        partition: FINCH's last and coarsest partition, or its first (A6).

    Returns:
        P, the mean of each cluster, (J, D), and the cluster of each node, (N,). J is at least 1.
    """
    groups = finch_groups(styles, partition)
    pseudo = np.zeros(len(styles), dtype=np.int64)
    for j, members in enumerate(groups):
        pseudo[members] = j
    means = [styles[members].mean(axis=0, dtype=np.float64) for members in groups]
    return np.stack(means).astype(np.float32), pseudo
