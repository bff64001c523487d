"""Divides the images of one domain among its nodes, and the images of one node among its parts.

Images are indices (n,), int64, into the N images of the domain; ``labels`` (N,) are those of all of them.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.plural import plural
from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Flags, Indices, Texts
from fedshift_datasets.partition import stratified


def skew_labels(images: Indices, labels: Indices, nodes: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Return the images of each node, with each class divided by a draw from Dirichlet(alpha).

    A node without an image gets one from the node that has most; a node stays empty only if there are more nodes than
    images.

    Args:
        images: The images to divide.
        labels: Labels of the domain.
        nodes: Number of nodes.
        alpha: Concentration, above 0; a smaller value gives a node most of its images from fewer classes.
        rng: The random generator.
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
    """Return the images of each node after swaps that give every node each class; sizes stay the same.

    A node gives an image of its most frequent class. It gets one that no node holds, or else one from the node that has
    most of the missing class.

    Args:
        parts: The images of each node, no image twice.
        spare: Images that no node holds.
        labels: Labels of the domain.
        num_classes: Number of classes C.
        domain: Name of the domain, for the message.

    Raises:
        DataError: If a node is smaller than C, or a class has fewer images than there are nodes.
    """
    _check_coverable(parts, spare, labels, num_classes, domain)
    held = [images.copy() for images in (*parts, spare)]  # the last entry belongs to no node
    counts = np.stack([np.bincount(labels[images], minlength=num_classes) for images in held])
    for node, missing in np.argwhere(counts[:-1] == 0):
        if counts[node, missing] > 0:  # an earlier swap gave it one
            continue
        surplus = counts[node].argmax()
        giver = len(parts) if counts[-1, missing] else counts[:-1, missing].argmax()
        own_place = np.flatnonzero(labels[held[node]] == surplus)[0]
        giver_place = np.flatnonzero(labels[held[giver]] == missing)[0]
        held[node][own_place], held[giver][giver_place] = held[giver][giver_place], held[node][own_place]
        counts[node, [surplus, missing]] += (-1, 1)
        counts[giver, [surplus, missing]] += (1, -1)
    return held[:-1]


def _check_coverable(parts: list[Indices], spare: Indices, labels: Indices, num_classes: int, domain: str) -> None:
    smallest = min(len(images) for images in parts)
    if smallest < num_classes:
        raise DataError(
            f"allocation.class_coverage: a node of {domain!r} gets {plural(smallest, 'training image')}, "
            f"too few for one of each of {plural(num_classes, 'class', 'classes')}"
        )
    totals = np.bincount(labels[np.concatenate([*parts, spare])], minlength=num_classes)
    if totals.min() < len(parts):
        raise DataError(
            f"allocation.class_coverage: {domain!r} has {plural(totals.min(), 'training image')} of class "
            f"{totals.argmin()}, too few for one on each of {plural(len(parts), 'node')}"
        )


def draw_mix(labels: Indices, mix: Indices, size: int, rng: np.random.Generator, where: str) -> Indices:
    """Return drawn images whose labels have given proportions.

    Within a class every image comes once before any comes twice; further images are drawn with replacement.

    Args:
        labels: Labels of the images to draw from, shape (N,).
        mix: Number of labels of each class, which gives the proportions, shape (C,), sum above 0.
        size: Number of images to draw.
        rng: The random generator.
        where: The node and the images, for the message.

    Returns:
        The drawn images, shape (size,), ascending; an image drawn k times is there k times.

    Raises:
        DataError: If a required class has no image.
    """
    pieces = [labels[:0]]
    for label, number in enumerate(largest_remainders(mix, size)):
        members = np.flatnonzero(labels == label)
        if number > 0 and len(members) == 0:
            raise DataError(f"{where}: {plural(number, 'image')} of class {label} must be drawn, but there is none")
        pieces.append(rng.permutation(members)[:number])
        if number > len(members):
            pieces.append(rng.choice(members, number - len(members)))
    return np.sort(np.concatenate(pieces))


def largest_remainders(mix: Indices, size: int) -> Indices:
    """Return ``size`` divided in the proportions of ``mix`` (C,), by the method of largest remainders.

    The lower class comes first among equal remainders.
    """
    # Whole numbers only: rounded shares could miss the sum.
    shares, remainders = np.divmod(mix * size, mix.sum())
    left = size - int(shares.sum())
    shares[np.argsort(-remainders, kind="stable")[:left]] += 1
    drawn: Indices = shares
    return drawn


def cut(images: Indices, labels: Indices, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Return a node's images in two parts with the classes in proportion: train and test, or train and validation.

    The second part has the fraction's share of the images, rounded, and at least one. An image of every class stays in
    the first part, so a class with one image is never in the second.

    Args:
        images: The node's images.
        labels: Labels of the domain.
        fraction: Size of the second part, from 0 (empty) to below 1.
        rng: The random generator.

    Returns:
        Both parts, ascending; the second is empty if no class has two images.
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


def units_of(groups: Texts) -> list[str]:
    """Return what is not divided: the name of each image's group after a slash, or its own place.

    Spellings of one patient, which two files may have, are one unit.
    """
    names = same_names.patients(groups.tolist(), unknown=())
    return [f"/{name}" if name else str(place) for place, name in enumerate(names)]


def part_of_groups(
    part: Literal["test", "validation"],
    among: Indices,
    labels: Indices,
    groups: Texts,
    fraction: float,
    seed: int,
) -> Flags:
    """Return which images of a domain are set aside for a part, where all images of a group stay on one side.

    Args:
        part: The part; of a test part each class is on both sides, as far as groups allow.
        among: The images that may be set aside.
        labels: Labels of the domain's images, shape (N,).
        groups: The group of each, shape (N,), texts; an image without one is on its own.
        fraction: Share of each class that is wanted, above 0 and below 1.
        seed: The run's seed.

    Returns:
        True for these images, shape (N,); none or all of them where groups allow no other cut.
    """
    all_units = units_of(groups)
    units = [all_units[place] for place in among.tolist()]
    chosen = np.zeros(len(labels), bool)
    if part == "test":
        chosen[among] = stratified.test_part(labels[among].tolist(), units, fraction, seed)
    else:  # drawn apart, so that it is not of those who were nearly chosen for the test
        chosen[among] = stratified.some_part(labels[among].tolist(), [f"validation {u}" for u in units], fraction, seed)
    return chosen


def _proportional(counts: Indices, fraction: float) -> Indices:
    """Return the number of images to take of each class: its share, with the rest by largest remainder."""
    most = counts - 1
    wanted = min(max(1, round(fraction * int(counts.sum()))), int(most.sum()))
    taken: Indices = np.minimum(np.floor(fraction * counts).astype(np.int64), most)
    while taken.sum() < wanted:
        lack = np.where(taken < most, fraction * counts - taken, -np.inf)
        taken[lack.argmax()] += 1
    return taken


def spread(labels: Indices, nodes: int, rng: np.random.Generator) -> list[Indices]:
    """Return images divided equally among nodes, each class in turn over as many nodes as possible.

    Args:
        labels: Labels of the images, shape (N,).
        nodes: Number of nodes.
        rng: The random generator.

    Returns:
        Indices into the images of each node, shape (n,), int64, ascending; no image comes twice.
    """
    drawn = rng.permutation(len(labels))
    by_class = drawn[np.argsort(labels[drawn], kind="stable")]
    return [np.sort(by_class[place::nodes]) for place in range(nodes)]


def spread_groups(labels: Indices, groups: Texts | None, nodes: int, rng: np.random.Generator) -> list[Indices]:
    """Return images divided about equally among nodes, of each class too, all images of a group with one node.

    Where there are fewer groups than nodes, images are divided whatever their groups.

    Args:
        labels: Labels of the images, shape (N,).
        groups: The group of each, shape (N,), texts, an empty one is an image on its own; None for no groups.
        nodes: Number of nodes.
        rng: The random generator.

    Returns:
        As :func:`spread`. A group goes where fewest images are of its most frequent class, then fewest at all.
    """
    if groups is None:
        return spread(labels, nodes, rng)
    units: dict[str, list[int]] = {}
    names = units_of(groups)
    for place in rng.permutation(len(labels)).tolist():
        units.setdefault(names[place], []).append(place)
    if len(units) < nodes:
        return spread(labels, nodes, rng)
    parts: list[list[int]] = [[] for _ in range(nodes)]
    held = np.zeros((nodes, int(labels.max()) + 1), np.int64)  # images by node and class
    for unit in sorted(units.values(), key=len, reverse=True):
        of_unit = np.bincount(labels[unit], minlength=held.shape[1])
        mine = int(np.lexsort((held.sum(axis=1), held[:, of_unit.argmax()]))[0])
        parts[mine] += unit
        held[mine] += of_unit
    return [np.sort(np.array(part, np.int64)) for part in parts]


def divide_given(domain: str, labels: Indices, nodes: int, seed: int) -> list[Indices]:
    """Return the validation images of each node of a domain that has such images of its own.

    Args:
        domain: Its name.
        labels: Labels of these images, shape (N,).
        nodes: Number of nodes of the domain.
        seed: The run's seed.

    Raises:
        DataError: If a node would get none.
    """
    if len(labels) < nodes:
        raise DataError(
            f"domain {domain!r} has {len(labels)} validation images for {plural(nodes, 'node')}; allowed is one for "
            "each at least"
        )
    return spread(labels, nodes, generator(seed, f"validation-{domain}"))


def exchanged(
    homes: Sequence[str], held: Sequence[Indices], mixing: float, purpose: str, seed: int
) -> list[dict[str, Indices]]:
    """Return what each node holds after it has given a part of its images and got as many of the common mixture.

    As the heterogeneous partition of FedDG_Benchmark (Bai, Bagchi, Inouye; https://arxiv.org/abs/2307.04942): a part of
    each node's images is replaced by images of the common mixture. Here a node gets as many as it gives, so that it
    keeps its size, and all nodes together keep their images; there, with lambda 1, all nodes are equally large.

    Given images are ordered so that each stretch of them has the domains in the same proportions, to within one image
    of each, and nodes take theirs one after the other.

    Args:
        homes: The domain of each node.
        held: Which images of it the node holds, indices (n,), int64.
        mixing: The part lambda of each node's images that it gives, from 0 to 1, to the nearest image.
        purpose: Which images they are, such as ``train``: they are drawn apart.
        seed: The run's seed.

    Returns:
        Of each node the indices (n,), int64, ascending, by domain, home first; a domain without images is not there.
    """
    kept, given = [], []
    for node, images in enumerate(held):
        order = generator(seed, f"mixing-{purpose}", node).permutation(images)
        size = round(mixing * len(images))
        kept.append(order[size:])
        given.append(order[:size])
    domains = list(dict.fromkeys(homes))
    pool = {name: _shuffled(name, homes, given, purpose, seed) for name in domains}
    of_domain = np.concatenate([np.full(len(pool[name]), number) for number, name in enumerate(domains)])
    image = np.concatenate([pool[name] for name in domains])
    time = np.concatenate([(np.arange(len(pool[name])) + 0.5) / max(1, len(pool[name])) for name in domains])
    even = np.lexsort((of_domain, time))
    outcome = []
    for node, taken in enumerate(np.split(even, np.cumsum([len(images) for images in given])[:-1])):
        pieces = {homes[node]: kept[node]}
        for number, name in enumerate(domains):
            got = image[taken[of_domain[taken] == number]]
            pieces[name] = np.concatenate([pieces[name], got]) if name in pieces else got
        outcome.append({name: np.sort(images) for name, images in pieces.items() if len(images)})
    return outcome


def _shuffled(domain: str, homes: Sequence[str], given: Sequence[Indices], purpose: str, seed: int) -> Indices:
    """Return what the nodes of a domain give, in an order that is drawn."""
    together = np.concatenate([images for home, images in zip(homes, given, strict=True) if home == domain])
    drawn: Indices = generator(seed, f"mixing-{purpose}-{domain}").permutation(together)
    return drawn
