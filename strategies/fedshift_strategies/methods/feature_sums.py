"""Heads that are solved of sums over nodes of frozen features: what the strategies of Fed3R and FedCGS share."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord
from typing_extensions import TypeVar

from fedshift_core.disclosure import Word
from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused
from fedshift_core.methods.feature_sums import COUNTS, CROSS, GRAM, UNIT, unpacked
from fedshift_core.params import Params
from fedshift_strategies.contributions import check_contribution
from fedshift_strategies.federation.context import SINGLE
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
    Sum,
    Update,
    Whole,
    decode,
    encode,
)

P = TypeVar("P", bound=Params, default=Params)
Head = tuple[Floats, Floats]  # weights (C, F) and bias (C,)
WEIGHT, BIAS = "classifier.weight", "classifier.bias"
SUMS = (COUNTS, GRAM, CROSS)
MEMBERS = ("nodes", "members")
ABSENT = -1e5  # the bias of a class without images: nodes send it back, within federation.max_value


class FeatureSumsStrategy(DomainStrategy[P]):
    """Asks each node once for sums of its features, and puts the head that is solved of them into the model.

    With secure sums each round has the sum of its own nodes, and that of the most images counts: a node that is in two
    such sums could not be taken out of one.

    State: ``nodes`` (N,), those whose own sums are in, or ``members`` (N,), the nodes of a secure sum; ``counts`` (C,),
    ``gram`` (F(F+1)/2,) and ``cross`` (C, F), whole numbers, over these nodes. The run folder keeps a node's own sums
    (``SINGLE``), so that they can be taken out.
    """

    contributes: ClassVar[Declaration] = {COUNTS: ("C",), GRAM: Whole("G"), CROSS: Whole("C", "W")}
    behind: ClassVar[Mapping[str, Word]] = {GRAM: "sum over classes", CROSS: "class"}
    summed: ClassVar[Mapping[str, Sum]] = {COUNTS: "images", GRAM: "total", CROSS: "rows"}
    sends: ClassVar[tuple[str, ...]] = ()
    tells = {"sums": Range(1, 1)}
    of_sums = ("merge",)

    @abstractmethod
    def solve(self, counts: Floats, gram: Floats, cross: Floats) -> Head:
        """Return the head.

        Args:
            counts: Images of each class, (C,).
            gram: sum of f f^T, (F, F).
            cross: sum of f over the images of each class, (C, F).
        """

    def expected(self) -> Declaration:
        """Return sums of features of the width of this run; a node that has sent its own sends them empty."""
        width = self.federation.feature_dim
        return {COUNTS: ("C",), GRAM: Whole(Own("G", width * (width + 1) // 2)), CROSS: Whole("C", Own("W", width))}

    def comparable(self, knowledge: Arrays, nodes: Sequence[Node]) -> Arrays:
        r"""Return class means (C, W) and the root mean square of each feature (F,); empty if the sums were sent before.

        Sums that pass are those of some features, none of them longer than these say: sum f f^T less
        :math:`\sum_kN_k\mu_k\mu_k^\top` is a sum of squares, so it has no negative eigenvalue.

        Raises:
            Refused: If the sums are of no features.
        """
        counts, half, cross = (knowledge[name] for name in (COUNTS, GRAM, CROSS))
        if not cross.shape[1]:
            return {CROSS: np.zeros(cross.shape), GRAM: np.zeros(0)}
        means = cross * UNIT / np.maximum(counts, 1)[:, None]
        gram = unpacked(half * UNIT, cross.shape[1])
        if cross[counts == 0].any() or not _is_square(gram, gram - (counts[:, None] * means).T @ means):
            raise Refused(f"{GRAM} and {CROSS} are sums of no features of as many images as {COUNTS} says")
        return {CROSS: means, GRAM: np.sqrt(np.diag(gram) / max(counts.sum(), 1))}

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Ask a node for its sums until it has sent them."""
        return {"sums": 1} if ask.trains and node.index not in self.noted("nodes") else {}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Add the sums that nodes send in this round to those of before."""
        width, known = self.federation.feature_dim, self.noted("nodes")
        fresh = [u for u in updates if u.node.index not in known and u.knowledge[CROSS].shape[1] == width]
        if fresh and fresh[0].stands_for > 1:
            self._take_sum(fresh[0])
            return
        for update in fresh:
            before = self.state or {name: np.zeros_like(update.knowledge[name]) for name in SUMS}
            self.state = {name: before[name] + update.knowledge[name] for name in SUMS}
            own = {name: update.knowledge[name] for name in SUMS}
            self._result.passing.setdefault(SINGLE, {})[update.node.index] = own
        self.state["nodes"] = np.array(sorted([*known, *(update.node.index for update in fresh)]), np.int64)

    def _take_sum(self, update: Update) -> None:
        """Take in a sum over nodes of which none is known by itself."""
        if not self.state or update.knowledge[COUNTS].sum() >= self.state[COUNTS].sum():
            members = np.array([node.index for node in update.nodes], np.int64)
            self.state = {name: update.knowledge[name] for name in SUMS} | {"members": members}

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the weights that were sent, with the head that is solved of all sums."""
        return encode(decode(self.sent) | self.head())

    def head(self) -> Arrays:
        """Return the head that is solved of all sums, under the names that it has in a model, float32."""
        weight, bias = self.solve(*self.totals())
        return {WEIGHT: weight.astype(np.float32), BIAS: bias.astype(np.float32)}

    @property
    def members(self) -> list[int]:
        """Indices of the nodes whose images are in the sums."""
        return [index for key in MEMBERS for index in self.noted(key)]

    def take_out(self, sums: Arrays, node: Node, others: Sequence[Node] | None = None) -> None:
        """Take sums of a node's images out of all sums, as if nobody had sent them.

        Args:
            sums: Of these images.
            node: The one whose images they are; it is among :attr:`members`.
            others: The other members, where the node goes as a whole; None where its other images stay.

        Raises:
            Refused: If they cannot be the node's, or what would be left is of no images.
        """
        declared = {name: shape for name, shape in self.expected().items() if name in SUMS}
        check_contribution(sums, declared, self.federation.sizes, node.class_counts, math.inf)
        left = {name: self.state[name] - sums[name] for name in SUMS}
        if not sums[CROSS].shape[1] or not sums[COUNTS].any() or not left[COUNTS].any():
            raise Refused(f"{COUNTS} says {sums[COUNTS].sum()} of {self.state[COUNTS].sum()} images, allowed are some")
        if others is not None:
            most = np.sum([each.class_counts for each in others], axis=0)
            if (left[COUNTS] > most).any():
                raise Refused(f"{COUNTS} leaves {left[COUNTS].tolist()}, the other nodes announced {most.tolist()}")
        for part in (sums, left):
            FeatureSumsStrategy.comparable(self, part, (node,))
        self.state |= left
        if others is not None:
            self.state |= {key: np.array([each.index for each in others]) for key in self.state if key in MEMBERS}

    def totals(self) -> tuple[Floats, Floats, Floats]:
        """Return counts (C,), the gram matrix (F, F) and the sums of features by class (C, F) of all nodes together."""
        cross = self.state[CROSS] * UNIT
        return self.state[COUNTS].astype(np.float64), unpacked(self.state[GRAM] * UNIT, cross.shape[1]), cross


def _is_square(gram: Floats, within: Floats) -> bool:
    """Tell whether a difference of the gram matrix has no negative eigenvalue, but for the rounding of float64."""
    rounding = len(gram) * np.finfo(np.float64).eps * max(float(np.trace(gram)), 0.0) + UNIT
    try:
        np.linalg.cholesky(within + rounding * np.eye(len(gram)))
    except np.linalg.LinAlgError:
        return False
    return True


def centred(counts: Floats, gram: Floats, cross: Floats) -> tuple[Floats, Floats, Floats]:
    r"""Return the mean feature, the centred gram matrix and the centred sums by class.

    .. math:: \bar f=\frac1N\sum_if_i,\quad A=\sum_if_if_i^\top-N\bar f\bar f^\top,\quad
        B_k=\sum_{i:y_i=k}f_i-N_k\bar f
    """
    total = max(counts.sum(), 1.0)
    mean = cross.sum(axis=0) / total
    return mean, gram - total * np.outer(mean, mean), cross - counts[:, None] * mean


def _solved(matrix: Floats, share: float, right: Floats, key: str) -> Floats:
    """Return X of (M + share tr(M) / F I) X = R.

    Raises:
        FederationError: If there is none, for the value of a key.
    """
    mean = max(float(np.trace(matrix)) / len(matrix), UNIT)  # features may be 0, all of them
    try:
        return np.asarray(np.linalg.solve(matrix + share * mean * np.eye(len(matrix)), right), np.float64)
    except np.linalg.LinAlgError:
        raise FederationError(
            f"{key}={share:g}: the covariance of the features has no inverse; a larger value gives it one"
        ) from None


def ridge_head(counts: Floats, gram: Floats, cross: Floats, ridge: float) -> Head:
    r"""Return the ridge regression of one-hot labels with a bias that is not penalised.

    .. math:: W=\Big(A+\lambda\frac{\mathrm{tr}A}{F}I\Big)^{-1}B,\qquad b=\bar y-W\bar f

    with A and B of :func:`centred`: the intercept of a regression takes the means away.

    Args:
        counts: Images of each class, (C,).
        gram: sum of f f^T, (F, F).
        cross: sum of f by class, (C, F).
        ridge: lambda.
    """
    mean, a, b = centred(counts, gram, cross)
    weight = _solved(a, ridge, b.T, "method.ridge").T
    return weight, counts / max(counts.sum(), 1.0) - weight @ mean


def gaussian_head(counts: Floats, gram: Floats, cross: Floats, shrinkage: float) -> Head:
    r"""Return the head of Gaussian classes with one covariance (linear discriminant analysis).

    .. math:: S=\frac1N\Big(\sum_if_if_i^\top-\sum_kN_k\mu_k\mu_k^\top\Big),\quad
        W_k=\tilde S^{-1}(\mu_k-\bar f),\quad b_k=-\frac12W_k^\top(\mu_k+\bar f)+\log\pi_k

    with :math:`\tilde S=S+\gamma\,\mathrm{tr}(S)/F\cdot I`. The mean :math:`\bar f` of all features takes the same
    number off all logits, :math:`\bar f^\top\tilde S^{-1}(f-\bar f/2)`, whose digits float32 would lose. A class
    without images has weights of 0 and, in the place of -inf, ``ABSENT`` as its bias.
    """
    total = max(counts.sum(), 1.0)
    mean, a, b = centred(counts, gram, cross)
    means = b / np.maximum(counts, 1.0)[:, None]
    s = (a - (counts[:, None] * means).T @ means) / total
    weight = _solved(s, shrinkage, means.T, "method.shrinkage").T
    with np.errstate(divide="ignore"):
        bias = np.log(counts / total) - (weight * (means / 2 + mean)).sum(axis=1)
    return weight, np.where(counts > 0, bias, ABSENT)
