r"""FedTGP strategy [Zhang et al., 2024].

Paper: "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and Model
Heterogeneity in Federated Learning", Jianqing Zhang, Yang Liu, Yang Hua, Jian Cao; AAAI 2024,
https://arxiv.org/abs/2401.03230. Reference code: TsingZ0/FedTGP at commit c77cbbb (``flcore/servers/servertgp.py``).

Symbols: p_n^k prototype of node n and class k, P^k trained global prototype, e^k embedding of class k, F a network of
two linear layers with a ReLU between, delta the margin.

    P^k = F(e^k);  minimise over e and F the mean over all p_n^k of
    -log exp(-(||p_n^k - P^k|| + delta)) / (exp(-(||p_n^k - P^k|| + delta)) + sum_{c != k} exp(-||p_n^k - P^c||))

delta is the largest, over classes, of the distance from the mean of the class's prototypes to the nearest other mean,
but ``margin_cap`` at most.

Deviations: (1) the server learns at a rate and in batches of its own (``server_lr``, ``server_batch``; the code: the
nodes'); (2) distances of 0 have gradient 0 (the code: none, NaN); (3) a class that no node ever held gets no prototype:
the code sends one that nothing was drawn to.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedshift_core.methods.fedtgp import FedTGPParams
from fedshift_strategies.method import Arrays, Floats, Ints, generator
from fedshift_strategies.methods.prototypes import (
    FloatArray,
    PrototypeStrategy,
    as_kept,
    mean_prototypes,
    minibatches,
    uploaded,
)


@dataclass(frozen=True)
class TrainedPrototypes:
    """Embeddings e (C, D) and F, which make the prototypes; all float64 while they train.

    Attributes:
        embedding: e, (C, D).
        weight1: Of F's first layer, (D, D), output by input.
        bias1: (D,).
        weight2: Of the second, (D, D).
        bias2: (D,).
    """

    embedding: Floats
    weight1: Floats
    bias1: Floats
    weight2: Floats
    bias2: Floats

    def hidden(self) -> Floats:
        """Return what is between F's layers, (C, D)."""
        return np.maximum(self.embedding @ self.weight1.T + self.bias1, 0)

    def made_of(self, hidden: Floats) -> Floats:
        """Return P, (C, D)."""
        return hidden @ self.weight2.T + self.bias2

    def gradients(self, hidden: Floats, slope: Floats) -> "TrainedPrototypes":
        """Return the gradient of a loss by each part. ``slope`` (C, D) is that with respect to P."""
        inner = slope @ self.weight2 * (hidden > 0)  # C x D
        return TrainedPrototypes(
            inner @ self.weight1, inner.T @ self.embedding, inner.sum(axis=0), slope.T @ hidden, slope.sum(axis=0)
        )

    def stepped(self, points: Floats, labels: Ints, delta: float, rate: float) -> "TrainedPrototypes":
        """Return what a step of plain SGD on some nodes' prototypes (B, D) of classes (B,) leaves."""
        hidden = self.hidden()
        slope = contrast(points, labels, self.made_of(hidden), delta)
        # Gradients are linear in the slope; the step is taken in their memory, as F's weights are large.
        steps = vars(self.gradients(hidden, rate * slope))
        return TrainedPrototypes(
            **{name: np.subtract(part, steps[name], out=steps[name]) for name, part in vars(self).items()}
        )


class FedTGPStrategy(PrototypeStrategy[FedTGPParams]):
    """Trains global prototypes on those of the nodes; averages whatever weights they share, as FedAvg does.

    State: the parts of :class:`TrainedPrototypes`, float32. Knowledge: ``prototypes`` (K, D) and ``labels`` (K,) of the
    classes that some node has held so far.
    """

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Train embeddings and F on the prototypes of this round.

        Raises:
            FederationError: If it comes to numbers that are not finite.
        """
        points, labels = uploaded(p, counts)
        if not len(labels):
            return self.knowledge
        made = self._trained(points.astype(np.float64), labels, margin(p, counts > 0, self.params.margin_cap))
        parts = vars(made) | {"prototypes": made.made_of(made.hidden())}
        kept = as_kept(parts, self.server_round, self.params.server_lr)
        known = np.union1d(self.knowledge.get("labels", labels), labels)
        prototypes = kept.pop("prototypes")[known]
        self.state = kept
        return {"prototypes": prototypes, "labels": known}

    def _trained(self, points: Floats, labels: Ints, delta: float) -> TrainedPrototypes:
        """Return what this round's epochs on prototypes (U, D) of classes (U,) make of the state."""
        run, p = self.federation, self.params
        kept = self.state or initial(run.num_classes, run.feature_dim, generator(run.seed, "fedtgp-initial"))
        made = TrainedPrototypes(**{name: part.astype(np.float64) for name, part in kept.items()})
        rng = generator(run.seed, "fedtgp-order", self.server_round)
        with np.errstate(over="ignore", invalid="ignore"):  # reported in one line afterwards
            for some in minibatches(rng, p.server_epochs, len(labels), p.server_batch):
                made = made.stepped(points[some], labels[some], delta, p.server_lr)
        return made


def initial(classes: int, width: int, rng: np.random.Generator) -> Arrays:
    """Return the parts of :class:`TrainedPrototypes` before round 1, distributed as PyTorch's layers, float32."""
    bound = width**-0.5
    shapes = {"weight1": (width, width), "bias1": (width,), "weight2": (width, width), "bias2": (width,)}
    parts = {"embedding": rng.normal(size=(classes, width))}
    parts |= {name: rng.uniform(-bound, bound, shape) for name, shape in shapes.items()}
    return {name: part.astype(np.float32) for name, part in parts.items()}


def margin(p: NDArray[np.float32], holds: NDArray[np.bool_], most: float) -> float:
    r"""Return :math:`\delta=\min(\max_k\min_{c\ne k}\|Q^k-Q^c\|_2,\tau)`, Q the mean of a class's prototypes.

    Args:
        p: Local prototypes, (N, C, D), float32.
        holds: Whether node n holds class k, (N, C).
        most: tau; it is the margin where there are fewer than two classes.
    """
    means, held = mean_prototypes(p, holds)
    q = means[held].astype(np.float64)  # K x D
    if len(q) < 2:
        return most
    distances = np.linalg.norm(q[:, None] - q[None], axis=2)  # K x K
    np.fill_diagonal(distances, np.inf)
    return float(min(distances.min(axis=1).max(), most))


def contrast(points: Floats, labels: Ints, prototypes: Floats, delta: float) -> Floats:
    r"""Return the gradient of the loss of some nodes' prototypes with respect to the global ones.

    With :math:`d_{ic}=\|p_i-P^c\|_2+\delta[c=y_i]` the loss is the mean cross-entropy of :math:`-d`, and

    .. math:: \frac{\partial L}{\partial P^c}=\frac1B\sum_i\big([c=y_i]-\mathrm{softmax}_c(-d_i)\big)
        \frac{P^c-p_i}{\|p_i-P^c\|_2}

    Args:
        points: p, (B, D).
        labels: y, the class of each, (B,).
        prototypes: P, (C, D).
        delta: The margin.

    Returns:
        (C, D). A distance of 0 has gradient 0.
    """
    squared = (points**2).sum(axis=1)[:, None] - 2 * points @ prototypes.T + (prototypes**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squared, 0))  # B x C
    own = np.arange(len(prototypes)) == labels[:, None]  # B x C
    logits = -(distances + delta * own)
    logits -= logits.max(axis=1, keepdims=True)
    total = np.exp(logits).sum(axis=1, keepdims=True)
    slope = (own - np.exp(logits) / total) / len(labels)  # with respect to the distances
    pull = np.divide(slope, distances, out=np.zeros_like(slope), where=distances > 0)
    return np.asarray(pull.sum(axis=0)[:, None] * prototypes - pull.T @ points)
