"""Statistics and drawn rows of GGEUR. N images, C classes, F width of a frozen feature, R eigenvalues."""

import torch
from torch import Tensor

SMALLEST = 1e-10  # an eigenvalue below so much of the largest is rounding


def covariance(features: Tensor, most: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return mean, eigenvalues and eigenvectors of the covariance of features.

    .. math:: \mu=\frac1n\sum_if_i,\qquad\frac1n\sum_i(f_i-\mu)(f_i-\mu)^\top=\sum_m\lambda_m\xi_m\xi_m^\top

    They come from the singular values of the centred features, so a covariance (F, F) is never made.

    Args:
        features: f, (n, F), at least one.
        most: How many eigenvalues to return at most; 0: all that are not rounding, at most n - 1.

    Returns:
        (F,), (R,) largest first, and (R, F); float64.
    """
    f = features.double()
    mean = f.mean(dim=0)
    _, roots, vectors = torch.linalg.svd((f - mean) / len(f) ** 0.5, full_matrices=False)
    values = roots.square()
    number = int((values > SMALLEST * values[0]).sum())
    number = min(number, len(f) - 1, most or number)
    return mean, values[:number], vectors[:number]


def nothing(classes: int) -> dict[str, Tensor]:
    """Return :func:`statistics` of a node that has sent them before: no number."""
    return {
        "means": torch.zeros(classes, 0), "eigenvalues": torch.zeros(classes, 0),
        "eigenvectors": torch.zeros(classes, 0, 0),
    }  # fmt: skip


def statistics(features: Tensor, y: Tensor, classes: int, least: int, most: int) -> dict[str, Tensor]:
    """Return what a node tells of its features, float32.

    Args:
        features: f, (N, F).
        y: Labels (N,).
        classes: C.
        least: Images of a class whose covariance is sent, at least; of fewer the mean alone.
        most: Eigenvalues of a class, at most; 0: all.

    Returns:
        ``means`` (C, F), ``eigenvalues`` (C, R) and ``eigenvectors`` (C, R, F), 0 where a class has none.
    """
    width = features.shape[1]
    means = features.new_zeros(classes, width)
    of_classes = [(features.new_zeros(0), features.new_zeros(0, width))] * classes
    for k in range(classes):
        own = features[y == k]
        if not len(own):
            continue
        mean, values, vectors = covariance(own, most)
        means[k] = mean
        if len(own) >= least:
            of_classes[k] = values.float(), vectors.float()
    number = max(len(values) for values, _ in of_classes)
    eigenvalues, eigenvectors = features.new_zeros(classes, number), features.new_zeros(classes, number, width)
    for k, (values, vectors) in enumerate(of_classes):
        eigenvalues[k, : len(values)], eigenvectors[k, : len(values)] = values, vectors
    return {"means": means, "eigenvalues": eigenvalues, "eigenvectors": eigenvectors}


def scaled(values: Tensor, width: int, number: int, scale: float, which: str) -> Tensor:
    """Return eigenvalues of which some are scaled, by factors that fall evenly from ``scale`` to 1.

    Args:
        values: lambda, (R,), largest first; the others of F are 0.
        width: F.
        number: How many are scaled.
        scale: The first factor.
        which: ``largest``, the largest first; ``smallest``, the smallest of all F first.
    """
    factors = torch.linspace(scale, 1.0, number, dtype=values.dtype, device=values.device)
    place = torch.arange(len(values), device=values.device)
    place = place if which == "largest" else width - 1 - place
    inside = place < number
    result = values.clone()
    result[inside] *= factors[place[inside]]
    return result


def drawn(
    own: Tensor, prototypes: Tensor, values: Tensor, vectors: Tensor, samples: int, rng: torch.Generator
) -> Tensor:
    r"""Return the rows of a class: the node's own features, and as many around them and prototypes as are missing.

    .. math:: a+\sum_m\epsilon_m\sqrt{\lambda_m}\,\xi_m,\qquad\epsilon_m\sim\mathcal N(0,1)

    around anchors a. The own features and each prototype have the same number of rows, but for the rounding; of the
    own features each has.

    Args:
        own: The node's features of the class, (n, F).
        prototypes: Of other domains, (M, F).
        values: lambda, scaled, (R,).
        vectors: xi, (R, F).
        samples: How many rows there are in all. Of more own features so many are chosen, and none is drawn.
        rng: CPU generator.

    Returns:
        (samples, F), the own features first; none of a class without anchors.
    """
    number = len(own)
    if number >= samples:
        return own[torch.randperm(number, generator=rng)[:samples].to(own.device)]
    places = anchors(number, len(prototypes), samples - number, rng).to(own.device)
    noise = torch.randn(len(places), len(values), generator=rng).to(own.device)
    around = torch.cat([own, prototypes])[places]
    return torch.cat([own, around + (noise * values.clamp(min=0).sqrt()) @ vectors])


def anchors(own: int, prototypes: int, needed: int, rng: torch.Generator) -> Tensor:
    """Return the places (needed,) among own features and then prototypes around which rows are drawn; none of none."""
    sources = (own > 0) + prototypes
    if not sources:
        return torch.zeros(0, dtype=torch.int64)
    sizes = [needed // sources + (place < needed % sources) for place in range(sources)]
    parts = []
    if own:
        first = sizes.pop(0)
        passes = [torch.randperm(own, generator=rng) for _ in range(-(-first // own))]
        parts.append(torch.cat([*passes, torch.zeros(0, dtype=torch.int64)])[:first])
    parts += [torch.full((size,), own + place) for place, size in enumerate(sizes)]
    return torch.cat(parts)
