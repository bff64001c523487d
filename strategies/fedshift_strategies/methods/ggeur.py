r"""GGEUR strategy [Ma et al., 2025].

Paper: "Geometric Knowledge-Guided Localized Global Distribution Alignment for Federated Learning", Yanbiao Ma,
Wei Dai, Wenke Huang, Jiayi Chen; CVPR 2025, https://arxiv.org/abs/2503.06457. Reference code:
WeiDai-David/2025CVPR_GGEUR at commit 02624d5 (``clip_tensor2aggregate_covariance_matrix.py``).

Symbols: f frozen feature of an image (F numbers), n_n^k images of class k on node n, mu_n^k mean and Sigma_n^k
covariance of their f; mu^k, Sigma^k those over all nodes; mu_d^k over the nodes of domain d.

    Sigma^k = sum_n n_n^k / n^k [ Sigma_n^k + (mu_n^k - mu^k)(mu_n^k - mu^k)^T ]

A covariance travels as its eigenvalues and eigenvectors, which are no more than the images behind it, and at most
``pca``. Nodes tell theirs once, in the first round in which they are asked.

Deviations: (1) the pooled covariance is decomposed here, once, and not on each node for each image; (2) prototypes of
several nodes of a domain are averaged by images (the code takes one node of each domain).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedshift_core.methods.ggeur import GGEURParams
from fedshift_core.plural import plural
from fedshift_strategies.method import (
    Arrays,
    Ask,
    Declaration,
    DomainStrategy,
    Floats,
    Node,
    Own,
    Range,
    Scalars,
    Update,
    decode,
)

SMALLEST = 1e-10  # an eigenvalue below so much of the largest is rounding
TOLD = ("counts", "means", "eigenvalues", "eigenvectors")  # names of what ClassStatistics holds
PROJECTION = "encoder.projection.0.weight"  # of the layer that is given frozen features


class ClassStatistics(NamedTuple):
    """What a node sends of one class.

    Attributes:
        images: Of it.
        mean: Of their features, (F,).
        values: Eigenvalues of their covariance, (R,).
        vectors: The eigenvectors, (R, F).
    """

    images: float
    mean: Floats
    values: Floats
    vectors: Floats


class GGEURStrategy(DomainStrategy[GGEURParams]):
    """Averages weights as FedAvg does; pools what nodes tell of their frozen features.

    Knowledge: ``eigenvalues`` (C, R), largest first, and ``eigenvectors`` (C, R, F) of the pooled covariances, 0 where
    a class has fewer. A node is sent them with ``prototypes`` (P, F) and ``labels`` (P,) of all other domains. State:
    ``nodes`` (N,), those whose statistics are in, and of M domains ``domains`` (M,), by their place in the run's,
    ``means`` (M, C, F) and ``counts`` (M, C).
    """

    sends = ("eigenvalues", "eigenvectors", "prototypes", "labels")
    tells = {"statistics": Range(1, 1)}
    contributes = {"means": ("C", "F"), "counts": ("C",), "eigenvalues": ("C", "R"), "eigenvectors": ("C", "R", "F")}
    behind = {"means": "class", "eigenvalues": "class", "eigenvectors": "class"}

    def expected(self) -> Declaration:
        """Return statistics if samples are drawn; a node that has sent them before sends them without a number."""
        if not self.params.samples:
            return {}
        width = self._width(decode(self.sent))
        own = {"F": Own("F", width), "R": Own("R", self._rank(width))}
        return {name: tuple(own.get(str(part), part) for part in shape) for name, shape in self.contributes.items()}

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Ask a node for its statistics until it has sent them."""
        lacking = ask.trains and self.params.samples and node.index not in self.noted("nodes")
        return {"statistics": 1} if lacking else {}

    def knowledge_for(self, node: Node, ask: Ask) -> Arrays:
        """Return the pooled covariances, and the prototypes of all domains but the node's; nothing for a score."""
        if not ask.trains or not self.knowledge:
            return {}
        counts = self.state["counts"]
        own = self.state["domains"] == self.federation.domains.index(node.domain)
        places, labels = np.nonzero((counts > 0) & ~own[:, None])
        return self.knowledge | {"prototypes": self.state["means"][places, labels], "labels": labels.astype(np.int64)}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Pool the statistics that nodes send in this round with those sent before."""
        if not self.params.samples:
            return
        known, width = self.noted("nodes"), self._width(decode(self.sent))
        fresh = [u for u in updates if u.node.index not in known and u.knowledge["means"].shape[1]]
        for update in fresh:
            if (sent := update.knowledge["means"].shape[1]) != width:
                self._leave_out(
                    update.node, f"its statistics are of {plural(sent, 'number')}, a frozen feature has {width}"
                )
        fresh = [u for u in fresh if u.knowledge["means"].shape[1] == width]
        if not fresh:
            return
        self.knowledge = stacked([self._pooled(k, fresh) for k in range(self.federation.num_classes)], width)
        self._average(fresh, width)

    # --- parts ---------------------------------------------------------------------------------------

    def _rank(self, width: int) -> int:
        """Return the most eigenvalues of a class."""
        return min(width, self.params.pca or width)

    def _width(self, weights: Arrays) -> int:
        """Return F: what a projection is given, or the feature itself."""
        return int(weights[PROJECTION].shape[1]) if PROJECTION in weights else self.federation.feature_dim

    def _pooled(self, k: int, fresh: Sequence[Update]) -> tuple[Floats, Floats]:
        rows = [] if not self.knowledge else [self._before(k)]
        for update in fresh:
            rows.append(ClassStatistics(*(update.knowledge[name][k].astype(np.float64) for name in TOLD)))
        return pooled(rows, self.params.pca)

    def _before(self, k: int) -> ClassStatistics:
        """Return the statistics of a class over all nodes that sent theirs before."""
        counts, means = self.state["counts"][:, k].astype(np.float64), self.state["means"][:, k].astype(np.float64)
        number = float(counts.sum())
        values, vectors = (self.knowledge[name][k].astype(np.float64) for name in ("eigenvalues", "eigenvectors"))
        return ClassStatistics(number, counts @ means / max(number, 1.0), values, vectors)

    def _average(self, fresh: Sequence[Update], width: int) -> None:
        """Take the class means of nodes into those of their domains."""
        homes = [self.federation.domains.index(update.node.domain) for update in fresh]
        known = self.noted("domains")
        domains = sorted({*known, *homes})
        counts = np.zeros((len(domains), self.federation.num_classes), np.int64)
        sums = np.zeros((*counts.shape, width))
        parts = [
            *zip(self.state.get("counts", ()), self.state.get("means", ()), strict=True),
            *((update.knowledge["counts"], update.knowledge["means"]) for update in fresh),
        ]
        for domain, (number, means) in zip(known + homes, parts, strict=True):
            place = domains.index(domain)
            counts[place] += number
            sums[place] += number[:, None] * means.astype(np.float64)
        self.state = {
            "nodes": np.array(sorted([*self.noted("nodes"), *(update.node.index for update in fresh)]), np.int64),
            "domains": np.array(domains, np.int64),
            "means": (sums / np.maximum(counts, 1)[..., None]).astype(np.float32),
            "counts": counts,
        }


def pooled(statistics: Sequence[ClassStatistics], most: int = 0) -> tuple[Floats, Floats]:
    r"""Return the eigenvalues, largest first, and eigenvectors of a class's covariance over all nodes.

    .. math:: \Sigma=\sum_n\frac{n_n}{n}\big[\Sigma_n+(\mu_n-\mu)(\mu_n-\mu)^\top\big]=A^\top A

    with a row of A for each :math:`\sqrt{\lambda n_n/n}\,v` of a node, and one for each
    :math:`\sqrt{n_n/n}\,(\mu_n-\mu)`: A's singular values are the roots of the eigenvalues.

    Args:
        statistics: Of each node, at least one; a negative eigenvalue, which no honest node sends, counts as 0.
        most: How many to return at most; 0: all that are not rounding.

    Returns:
        (R,) and (R, F).
    """
    held = [each for each in statistics if each.images > 0]
    if not held:
        return np.zeros(0), np.zeros((0, len(statistics[0].mean)))
    shares = np.array([each.images for each in held], np.float64)
    shares /= shares.sum()
    mean = sum(share * each.mean for share, each in zip(shares, held, strict=True))
    rows = []
    for share, each in zip(shares, held, strict=True):
        rows.append(np.sqrt(share * np.maximum(each.values, 0))[:, None] * each.vectors)
        rows.append(np.sqrt(share) * (each.mean - mean)[None])
    _, roots, vectors = np.linalg.svd(np.concatenate(rows), full_matrices=False)
    values = roots**2
    number = int((values > SMALLEST * values[0]).sum())
    number = min(number, most) if most else number
    return values[:number], vectors[:number]


def stacked(of_classes: Sequence[tuple[Floats, Floats]], width: int) -> Arrays:
    """Return eigenvalues (C, R) and eigenvectors (C, R, F) of all classes, float32, filled up with 0."""
    most = max(len(values) for values, _ in of_classes)
    values = np.zeros((len(of_classes), most), np.float32)
    vectors = np.zeros((len(of_classes), most, width), np.float32)
    for k, (own, directions) in enumerate(of_classes):
        values[k, : len(own)], vectors[k, : len(own)] = own, directions
    return {"eigenvalues": values, "eigenvectors": vectors}
