"""Computes the numbers of the report from features, predictions and prototypes."""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TSNE_IMAGES = 150  # of each domain
TSNE_LEAST = 5  # smallest number of points for t-SNE
TSNE_STEPS = 1000
PERPLEXITY = 30.0


def confusion(y: Ints, predicted: Ints, classes: int) -> Ints:
    """Return the confusion matrix (C, C): true classes as rows, predicted classes as columns.

    Args:
        y: True classes, (N,).
        predicted: Predicted classes, (N,).
        classes: C.
    """
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def singular_values(features: Floats) -> Floats:
    """Return the singular values of the covariance of features (N, D), largest first, min(N - 1, D) of them.

    F2DC (Wang et al., CVPR 2026), figure 1. The covariance is symmetric, so they equal the squared singular values of
    the centred features divided by N - 1.
    """
    n, d = features.shape
    if n < 2:
        return np.zeros(0)
    centred = features - features.mean(axis=0)
    values: Floats = np.linalg.svd(centred, compute_uv=False) ** 2 / (n - 1)
    return values[: min(n - 1, d)]


def effective_rank(values: Floats) -> float:
    r"""Return the effective rank :math:`\exp(-\sum_ip_i\log p_i)`, with :math:`p_i` the shares of the values.

    Roy & Vetterli, "The effective rank", EUSIPCO 2007. It is 0 if all values are 0.
    """
    total = values.sum()
    if total <= 0:
        return 0.0
    p = values[values > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def cosines(vectors: Floats) -> Floats:
    """Return the cosines (P, P) of all pairs of rows (P, D); a zero row has cosine 0."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return np.asarray(np.clip(unit @ unit.T, -1.0, 1.0))


def class_means(features: Floats, y: Ints, classes: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the mean feature of each class, (C, D), and which classes have images, (C,)."""
    counts = np.bincount(y, minlength=classes)
    sums = np.zeros((classes, features.shape[1]))
    np.add.at(sums, y, features)
    return sums / np.maximum(counts, 1)[:, None], counts > 0


def tsne(features: Floats, seed: int) -> Floats:
    """Return the t-SNE of features (N, D) in the plane, (N, 2); N is at least ``TSNE_LEAST``."""
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]

    scale = features.std()
    scaled = (features - features.mean(axis=0)) / (scale if scale > 0 else 1.0)
    if not scaled.any():  # all alike: PCA has no direction to start from
        return np.zeros((len(features), 2))
    start = "pca" if scaled.shape[1] > 1 else "random"
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    placed: Floats = TSNE(
        init=start, perplexity=perplexity, random_state=seed % 2**32, max_iter=TSNE_STEPS
    ).fit_transform(scaled)
    return placed


def contingency(rows: Ints, columns: Ints, shape: tuple[int, int]) -> Ints:
    """Count pairs of labels (N,) and (N,) in a table of this shape."""
    table = np.zeros(shape, np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


def mutual_information(rows: Ints, columns: Ints) -> float:
    """Return the normalised mutual information of two labellings, 0 (unrelated) to 1 (the same groups)."""
    from sklearn.metrics import normalized_mutual_info_score  # type: ignore[import-untyped]

    return float(normalized_mutual_info_score(rows, columns))


def nearest_of_class(features: Floats, y: Ints, prototypes: Floats, labels: Ints) -> Ints:
    """Return the nearest prototype of each image's class by cosine, (N,); -1 without one.

    Args:
        features: (N, D).
        y: Classes of the images, (N,).
        prototypes: (P, D).
        labels: Classes of the prototypes, (P,).
    """
    norms = np.linalg.norm(prototypes, axis=1)
    near = (
        features @ (prototypes / np.maximum(norms, 1e-12)[:, None]).T
    )  # N x P; the norm of the image does not change the order
    near[y[:, None] != labels[None, :]] = -np.inf
    nearest = near.argmax(axis=1)
    return np.where(np.isfinite(near[np.arange(len(y)), nearest]), nearest, -1)


def global_prototypes(knowledge: Arrays, width: int | None = None) -> tuple[Floats, Ints] | None:
    """Return the server's prototypes (P, D) and their classes (P,); None if there are none.

    Args:
        knowledge: The arrays that the method shares in addition to weights.
        width: The required D; None for any.
    """
    prototypes, labels = knowledge.get("prototypes"), knowledge.get("labels")
    if prototypes is None or labels is None or prototypes.ndim != 2 or len(prototypes) != len(labels):
        return None
    if len(labels) == 0 or (width is not None and prototypes.shape[1] != width):
        return None
    return prototypes.astype(np.float64), labels.astype(np.int64)


def variance_over_domains(means: Floats, present: NDArray[np.bool_]) -> Floats:
    r"""Return the variance over domains of each class's prototypes, (C,); NaN for fewer than two.

    .. math:: \frac1Q\sum_q\Bigl\|\hat p_q^k-\frac1Q\sum_r\hat p_r^k\Bigr\|_2^2,\quad \hat p=p/\|p\|

    Prototypes are scaled to unit length, so that networks with longer features do not look worse. The variance is 0 if
    all domains agree, and below 1.

    Args:
        means: Prototypes by domain and class, (Q, C, D).
        present: Which prototypes exist, (Q, C).
    """
    norms = np.linalg.norm(means, axis=2, keepdims=True)
    unit = np.divide(means, norms, out=np.zeros_like(means), where=norms > 0) * present[..., None]
    count = present.sum(axis=0)  # C
    centre = unit.sum(axis=0) / np.maximum(count, 1)[:, None]  # C x D
    distances = np.square(unit - centre).sum(axis=2) * present  # Q x C
    return np.where(count > 1, distances.sum(axis=0) / np.maximum(count, 1), np.nan)
