"""Styles and attention of StableFDG. B images, S channels of a map, P places (pixels) of it, E width of the attention.

A style is a row of 2 S numbers or two tensors: mu and sigma, mean and deviation of the channels over the places.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-6  # the code's, under each root

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def summary(mu: Tensor, sigma: Tensor) -> Tensor:
    r"""Return what a node tells of its styles: their mean and deviation over its images.

    Args:
        mu: (N, S), N from 1.
        sigma: (N, S).

    Returns:
        (2, 2, S), float32: mean and deviation; of mu and of sigma. The deviation is
        :math:`\sqrt{\mathrm{var}+\epsilon}` with the unbiased variance, 0 of one image.
    """
    styles = torch.stack([mu, sigma], dim=1).double()  # N x 2 x S
    variance = styles.var(dim=0, correction=int(len(styles) > 1))
    return torch.stack([styles.mean(dim=0), (variance + EPS).sqrt()]).float()


def centres(styles: Floats, number: int, rng: np.random.Generator) -> Floats:
    """Return the centres of clusters: the seeds of k-means++, then one step of k-means.

    Args:
        styles: (B, 2 S).
        number: K, from 1 to B.
        rng: Of the seeds.

    Returns:
        (K, 2 S). A seed to which no style is nearest, which happens to equal ones, stays.
    """
    from sklearn.cluster import kmeans_plusplus  # type: ignore[import-untyped]

    seeds, _ = kmeans_plusplus(styles, number, random_state=int(rng.integers(2**31)))
    distances = ((styles[:, None] - seeds) ** 2).sum(axis=2)  # B x K
    member = distances.argmin(axis=1)[:, None] == np.arange(number)  # B x K
    sizes = member.sum(axis=0)
    means = member.T.astype(np.float64) @ styles / np.maximum(sizes, 1)[:, None]
    return np.asarray(np.where(sizes[:, None] > 0, means, seeds), np.float64)


def drawn_style(style: Floats, number: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return styles of another node, mu and sigma (number, S); no sigma is below 0.

    Args:
        style: What that node sent, (2, 2, S).
        number: How many are drawn.
        rng: Of the draws: each number is normal by itself.
    """
    noise = rng.standard_normal((2, number, style.shape[2]))
    mu, sigma = style[0][:, None] + noise * style[1][:, None]
    return mu, np.maximum(sigma, 0)


def levelled(labels: Places, number: int, rng: np.random.Generator) -> Places:
    """Return which images of a batch come twice: one after another of a class that has fewest.

    Args:
        labels: (B,).
        number: How many are added; an image may be added more than once.
        rng: Says which of the classes that have fewest comes next, and which of its images.

    Returns:
        Places in the batch, (number,).
    """
    classes, counts = np.unique(labels, return_counts=True)
    of_class = [np.flatnonzero(labels == label) for label in classes]
    chosen: list[int] = []
    while len(chosen) < number:
        fewest = rng.permutation(np.flatnonzero(counts == counts.min()))[: number - len(chosen)]
        chosen += [int(rng.choice(of_class[k])) for k in fewest]
        counts[fewest] += 1
    return np.array(chosen, np.int64)


def explored(value: Tensor, again: Tensor, level: float) -> Tensor:
    r"""Return a half of the styles of a batch, with that of each image that comes twice led away from the batch's mean.

    .. math:: \mu_i'=\mu_i+\alpha(\mu_i-\bar\mu)

    Args:
        value: mu or sigma, (B, S, 1, 1).
        again: Places i of these images, (B',).
        level: alpha.

    Returns:
        (B + B', S, 1, 1).
    """
    twice = value[again]
    return torch.cat([value, twice + level * (twice - value.mean(dim=0, keepdim=True))])


def next_of_class(labels: Places) -> Places:
    """Return for each image the next one of its class in the batch, the first after the last, (B,); itself if alone."""
    partner = np.arange(len(labels))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        partner[own] = np.roll(own, -1)
    return partner


def attention(query: Tensor, key: Tensor, partner: Tensor | None = None) -> Tensor:
    r"""Return how much each place of a map counts.

    .. math:: a_i=\mathrm{softmax}_p\frac1P\sum_r\Big\langle\frac{\hat q_{ir}+\hat q_{jr}}2,\hat k_{ip}\Big\rangle

    with unit vectors at each place. The mean over r is taken first, so that no P x P scores are made.

    Args:
        query: q, (B, E, H, W).
        key: k, (B, E, H, W).
        partner: j of each image, (B,); None: itself.

    Returns:
        (B, P), of sum one.
    """
    q = F.normalize(query.float().flatten(2), dim=1).mean(dim=2)  # B x E
    k = F.normalize(key.float().flatten(2), dim=1)  # B x E x P
    if partner is not None:
        q = (q + q[partner]) / 2
    return (q[:, :, None] * k).sum(dim=1).softmax(dim=1)
