"""Dividing the images of one domain among its nodes, and the images of one node among its parts.

Images are indices (n,), int64, into the N images of the domain; ``labels`` (N,) are those of all of them.
"""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.errors import DataError
from fedshift_core.seeding import generator

Indices = NDArray[np.int64]


def skew_labels(images: Indices, labels: Indices, nodes: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Divide images so that each class is spread over the nodes by a draw from Dirichlet(alpha).

    A node that would be left without an image gets one from the node that has most; only where there
    are more nodes than images does one stay empty.

    Args:
        images: What is divided.
        labels: Labels of the domain.
        nodes: Number of nodes.
        alpha: Concentration, above 0; the smaller, the fewer classes a node has most of its images from.
        rng: What to draw from.
    """
    parts: list[list[Indices]] = [[] for _ in range(nodes)]
    for label in np.unique(labels[images]):
        members = images[labels[images] == label]
        proportions = rng.dirichlet(np.full(nodes, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    divided = [np.concatenate(part) if part else images[:0] for part in parts]
    for node in (empty for empty in range(nodes) if len(divided[empty]) == 0):
        richest = max(range(nodes), key=lambda other: len(divided[other]))
        if len(divided[richest]) <= 1:
            break
        divided[node], divided[richest] = divided[richest][-1:], divided[richest][:-1]
    return divided


def cover_classes(
    parts: list[Indices], spare: Indices, labels: Indices, num_classes: int, domain: str
) -> list[Indices]:
    """Swap images until every node holds each class at least once; sizes stay and nothing is held twice.

    A node gives an image of the class it has most of. It gets one that nobody holds, or else one from the
    node that has most of the missing class.

    Args:
        parts: What each node holds, no image twice.
        spare: Images that no node holds.
        labels: Labels of the domain.
        num_classes: Number of classes C.
        domain: Name of the domain, for the message.

    Raises:
        DataError: If a node is smaller than C, or a class has fewer images than there are nodes.
    """
    _check_coverable(parts, spare, labels, num_classes, domain)
    held = [images.copy() for images in (*parts, spare)]  # the last belongs to nobody
    counts = np.stack([np.bincount(labels[images], minlength=num_classes) for images in held])
    for node, missing in np.argwhere(counts[:-1] == 0):
        if counts[node, missing] > 0:  # it was given one in an earlier swap
            continue
        surplus = counts[node].argmax()
        giver = len(parts) if counts[-1, missing] else counts[:-1, missing].argmax()
        mine = np.flatnonzero(labels[held[node]] == surplus)[0]
        theirs = np.flatnonzero(labels[held[giver]] == missing)[0]
        held[node][mine], held[giver][theirs] = held[giver][theirs], held[node][mine]
        counts[node, [surplus, missing]] += (-1, 1)
        counts[giver, [surplus, missing]] += (1, -1)
    return held[:-1]


def _check_coverable(parts: list[Indices], spare: Indices, labels: Indices, num_classes: int, domain: str) -> None:
    smallest = min(len(images) for images in parts)
    if smallest < num_classes:
        raise DataError(
            f"allocation.class_coverage: a node of {domain!r} gets {smallest} training images, "
            f"too few for one of each of {num_classes} classes"
        )
    totals = np.bincount(labels[np.concatenate([*parts, spare])], minlength=num_classes)
    if totals.min() < len(parts):
        raise DataError(
            f"allocation.class_coverage: {domain!r} has {totals.min()} training images of class {totals.argmin()}, "
            f"too few for one on each of {len(parts)} nodes"
        )


def draw_mix(labels: Indices, mix: Indices, size: int, rng: np.random.Generator, where: str) -> Indices:
    """Draw images whose labels are in given proportions.

    Within a class no image comes twice before all have come once; what is asked for beyond that is drawn
    with replacement.

    Args:
        labels: Labels of the images to draw from, shape (N,).
        mix: How many labels of each class make the proportions, shape (C,), their sum above 0.
        size: How many images to draw.
        rng: What to draw from.
        where: Who draws, and from what, for the message.

    Returns:
        What is drawn, shape (size,), ascending; an image drawn k times stands there k times.

    Raises:
        DataError: If a class is asked for that has no image.
    """
    pieces = [labels[:0]]
    for label, wanted in enumerate(largest_remainders(mix, size)):
        members = np.flatnonzero(labels == label)
        if wanted > 0 and len(members) == 0:
            raise DataError(f"{where}: {wanted} images of class {label} are to be drawn, there is none")
        pieces.append(rng.permutation(members)[:wanted])
        if wanted > len(members):
            pieces.append(rng.choice(members, wanted - len(members)))
    return np.sort(np.concatenate(pieces))


def largest_remainders(mix: Indices, size: int) -> Indices:
    """Divide ``size`` in the proportions of ``mix`` (C,): whole shares, what is left by the largest remainder.

    Of equal remainders the lower class comes first.
    """
    # Whole numbers only: a share that is rounded could let the sum miss the size.
    shares, remainders = np.divmod(mix * size, mix.sum())
    left = size - int(shares.sum())
    shares[np.argsort(-remainders, kind="stable")[:left]] += 1
    drawn: Indices = shares
    return drawn


def cut(images: Indices, labels: Indices, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Cut off a part of a node's images with the classes in proportion: train and test, or train and validation.

    The part has the fraction's share of the images, rounded, and at least one. An image of every class
    stays behind, so a class that is there once is never in the part.

    Args:
        images: What the node holds.
        labels: Labels of the domain.
        fraction: Size of the part, from 0 (an empty part) to below 1.
        rng: What to draw from.

    Returns:
        What stays and what is cut off, both ascending; the latter is empty where no class is there twice.
    """
    if fraction == 0:
        return np.sort(images), images[:0]
    present, counts = np.unique(labels[images], return_counts=True)
    taken = _proportional(counts, fraction)
    pieces = [
        rng.permutation(images[labels[images] == label])[:size] for label, size in zip(present, taken, strict=True)
    ]
    off = np.sort(np.concatenate([images[:0], *pieces]))
    return np.setdiff1d(images, off), off


def _proportional(counts: Indices, fraction: float) -> Indices:
    """Return how many of each class to take: their share, the rest where the remainder is largest."""
    most = counts - 1
    wanted = min(max(1, round(fraction * int(counts.sum()))), int(most.sum()))
    taken: Indices = np.minimum(np.floor(fraction * counts).astype(np.int64), most)
    while taken.sum() < wanted:
        lack = np.where(taken < most, fraction * counts - taken, -np.inf)
        taken[lack.argmax()] += 1
    return taken


def spread(labels: Indices, nodes: int, rng: np.random.Generator) -> list[Indices]:
    """Divide images equally among nodes, each class in turn, so that its images lie on as many nodes as there are.

    Args:
        labels: Labels of the images, shape (N,).
        nodes: How many nodes.
        rng: Draws who gets which image.

    Returns:
        Indices into the images of each node, shape (n,), int64, ascending; no image comes twice.
    """
    drawn = rng.permutation(len(labels))
    by_class = drawn[np.argsort(labels[drawn], kind="stable")]
    return [np.sort(by_class[place::nodes]) for place in range(nodes)]


def given_validation(domain: str, labels: Indices, nodes: int, seed: int) -> list[Indices]:
    """Return which of a domain's own images to validate on each of its nodes gets.

    Args:
        domain: Its name.
        labels: Labels of these images, shape (N,).
        nodes: How many nodes hold the domain.
        seed: The run's seed.

    Raises:
        DataError: If a node would get none.
    """
    if len(labels) < nodes:
        raise DataError(
            f"domain {domain!r} has {len(labels)} validation images for {nodes} nodes; allowed is one for each at least"
        )
    return spread(labels, nodes, generator(seed, f"validation-{domain}"))
