r"""FedSA strategy [Zhou et al., 2025].

Paper: "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based Federated Learning", Yanbing
Zhou, Xiangmou Qu, Chenlong You, Jiyang Zhou, Jingyue Tang, Xin Zheng, Chunmao Cai, Yingbo Wu; AAAI 2025,
https://arxiv.org/abs/2501.05496. Reference code: lokinko/FedSA at commit 75bf106 (``flcore/servers/serversa.py``).

Symbols: a^k semantic anchor of class k, p_n^k prototype of node n, G^k their plain mean over nodes, m the momentum.

    a^k <- m a^k + (1 - m) G^k

Before round 1 the anchors are what a random network (linear, BatchNorm over the classes, ReLU, twice) makes of normal
numbers; the network never trains.

Deviation: a class that no node of a round holds keeps its anchor, as in the code, and its G^k, which the code drops.
"""

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.methods.fedsa import FedSAParams
from fedshift_strategies.method import Arrays, generator
from fedshift_strategies.methods.prototypes import (
    BY_NODES,
    FloatArray,
    PrototypeStrategy,
    mean_prototypes,
    one_per_class,
)

EPS = 1e-5  # of BatchNorm


class FedSAStrategy(PrototypeStrategy[FedSAParams]):
    """Moves anchors towards the nodes' prototypes; averages whatever weights they share, as FedAvg does.

    Knowledge: ``anchors`` (C, D); with ``predict_by=prototype`` also ``prototypes`` (K, D) and ``labels`` (K,), G^k.
    """

    sends = ("anchors", "prototypes", "labels")
    summed = BY_NODES

    def start_run(self, weights: ArrayRecord) -> None:
        """Draw the anchors."""
        run = self.federation
        anchors = initial_anchors(run.num_classes, run.feature_dim, generator(run.seed, "fedsa-anchors"))
        self.knowledge = {"anchors": anchors}

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Average the prototypes of this round and move the anchors towards them."""
        g, held = mean_prototypes(p, counts > 0)
        known = one_per_class(g, held, self.knowledge) if self.params.predict_by == "prototype" else {}
        return {"anchors": moved(self.knowledge["anchors"], g, held, self.params.momentum)} | known


def initial_anchors(classes: int, width: int, rng: np.random.Generator) -> FloatArray:
    """Return the anchors of a run, (C, D), float32, none below 0.

    Weights are distributed as PyTorch's linear layers, before BatchNorm, whose scale is 1 and shift 0.
    """
    bound = width**-0.5
    x = rng.normal(size=(classes, width))
    for _ in range(2):
        x = x @ rng.uniform(-bound, bound, (width, width)) + rng.uniform(-bound, bound, width)
        x = np.maximum((x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + EPS), 0)
    return x.astype(np.float32)


def moved(anchors: FloatArray, g: FloatArray, held: NDArray[np.bool_], momentum: float) -> FloatArray:
    r"""Return :math:`a^k\leftarrow m\,a^k+(1-m)G^k` of the classes that some node held.

    Args:
        anchors: a, (C, D), float32.
        g: Mean prototypes, (C, D).
        held: (C,).
        momentum: m.
    """
    mixed = momentum * anchors.astype(np.float64) + (1 - momentum) * g
    return np.where(held[:, None], mixed, anchors).astype(np.float32)
