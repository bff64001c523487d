"""Which images of its domain a node trains, validates and tests on."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedshift_core import said_once
from fedshift_core.errors import DataError
from fedshift_core.plural import plural
from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Flags, Indices, Texts
from fedshift_datasets.partition import shares
from fedshift_datasets.partition.allocation import Allocation


@dataclass(frozen=True)
class Parts:
    """Which images of its domain a node holds: indices (n,), int64, ascending; no image is in two parts.

    Attributes:
        train: Images to train on, at least one.
        validation: Images to choose a round by; empty where none are set aside.
        test: The node's own test set; empty if ``test_fraction`` is 0: it is tested on its domain's test split.

    No group of images (a patient) is in one of them on this node and in another one on any node of the domain.
    """

    train: Indices
    validation: Indices
    test: Indices


_CUT: tuple[Literal["test"], Literal["validation"]] = ("test", "validation")  # parts of what a node holds, in turn
MOST_KEPT = 1000  # nodes of a domain whose parts are in memory at once, where they are worked out when asked for


class DomainParts(Mapping[int, Parts]):
    """What each node of a domain holds, by its index; worked out when it is asked for, as nodes may be very many."""

    def __init__(self, nodes: Indices, parts: Callable[[int, int], Parts]) -> None:
        """Take the indices of nodes (n,), and what returns the parts of the one at a place of them, of an index."""
        self._places = {index: place for place, index in enumerate(nodes.tolist())}
        self._parts = functools.lru_cache(MOST_KEPT)(parts)

    def __getitem__(self, index: int) -> Parts:
        """Return what a node holds."""
        return self._parts(self._places[index], index)

    def __iter__(self) -> Iterator[int]:
        """Return the indices of the nodes."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of the nodes."""
        return len(self._places)


#: How many images each node of a domain holds, and what returns those of the one at a place.
_Held = tuple[Sequence[int], Callable[[int], Indices]]


def public_part(domain: str, labels: Indices, share: float, seed: int, groups: Texts | None = None) -> Indices:
    """Return which images of a domain belong to the public set (``dataset.public``), and so to no node.

    They are the end of the order in which nodes draw from the front, so that a node holds the same images with a public
    set as without one, where there are enough.

    Args:
        domain: Its name.
        labels: Labels of the images that its nodes divide, shape (N,).
        share: The part of them that is public, above 0 and below 1.
        seed: The run's seed.
        groups: As ``ImageSet.groups``, of the same images: whole groups are public, as many as come nearest to the
            share. None to draw images whatever their group.

    Returns:
        Indices (n,), int64, ascending.

    Raises:
        DataError: If that is no image, or all of them.
    """
    size, order = round(share * len(labels)), _order(domain, len(labels), seed)
    if groups is not None:
        units: dict[str, list[int]] = {}
        names = shares.units_of(groups)
        for place in order[::-1].tolist():
            units.setdefault(names[place], []).append(place)
        ends = np.cumsum([len(unit) for unit in units.values()])
        number = 1 + int(np.abs(ends[:-1] - size).argmin()) if len(units) > 1 else 0
        order = np.array([place for unit in list(units.values())[:number] for place in unit][::-1], np.int64)
        size = len(order)
    if not 0 < size < len(labels):
        raise DataError(
            f"dataset.public={share:g}: of the {plural(len(labels), 'image')} of {domain!r} that is {size}; at "
            "least one must be public, and one left for a node"
        )
    return np.sort(order[len(order) - size :])


def _order(domain: str, number: int, seed: int) -> Indices:
    """Return the order in which the nodes of a domain draw from it."""
    return generator(seed, f"share-{domain}").permutation(number)


def domain_parts(
    allocation: Allocation,
    dealt: tuple[str, ...],
    domain: str,
    labels: Indices,
    num_classes: int,
    seed: int,
    public: float = 0.0,
    groups: Texts | None = None,
    *,
    only_test: bool = False,
) -> Mapping[int, Parts]:
    """Return which of a domain's images each of its nodes holds, by its index.

    The images of a domain are shuffled once, by ``seed``, and cut: no two nodes hold the same image,
    unless they draw with replacement.

    Args:
        allocation: The shares.
        dealt: The domain of each node, from :meth:`Allocation.deal`.
        domain: The domain.
        labels: Labels of the images that the domain's nodes divide, shape (N,): of its training split, or,
            where :attr:`Allocation.pool` says so, of its training and then its test split.
        num_classes: Number of classes of the data set.
        seed: The run's seed.
        public: Which share of them is public (:func:`public_part`); 0 for none.
        groups: As ``ImageSet.groups``, of the same images, shape (N,): all parts are cut by group then.
        only_test: Only the test set is cut by group (``dataset.patients=listed``).

    Raises:
        DataError: If the domain has too few images, or groups allow no test set.
    """
    nodes = np.array([index for index, held in enumerate(dealt) if held == domain], np.int64)
    whole = None if only_test else groups
    sizes, held = _holdings(allocation, domain, len(nodes), labels, num_classes, seed, public, whole)
    if 0 in sizes:
        raise DataError(
            f"node {nodes[sizes.index(0)]} gets no image: domain {domain!r} has {len(labels)} for "
            f"{plural(len(nodes), 'node')}"
        )
    by_group = _by_group(allocation, domain, labels, groups, seed, public, only_test)
    parts = DomainParts(
        nodes, lambda place, index: _parts_of(allocation, domain, held(place), index, labels, seed, by_group)
    )
    return dict(parts) if allocation.test_fraction or allocation.validation_fraction else parts  # cuts may be refused


#: Parts that are cut by group, each as a mask of the images of a domain, (N,).
_ByGroup = Mapping[str, Flags]


def _by_group(
    allocation: Allocation,
    domain: str,
    labels: Indices,
    groups: Texts | None,
    seed: int,
    public: float,
    only_test: bool,
) -> _ByGroup:
    """Return the parts that are cut by group: one cut for all nodes of a domain, as they may divide a group's images.

    Images that are public belong to none.
    """
    cut: dict[str, Flags] = {}
    if groups is None:
        return cut
    left = np.ones(len(labels), bool)
    if public:
        left[public_part(domain, labels, public, seed, None if only_test else groups)] = False
    for part in _CUT[: 1 if only_test else 2]:
        if fraction := allocation.fraction_of(part):
            cut[part] = shares.part_of_groups(part, np.flatnonzero(left), labels, groups, fraction, seed)
            left &= ~cut[part]
    if "validation" in cut and not cut["validation"].any():
        said_once.warn(
            f"allocation.validation_fraction: {domain!r} has no validation part, as all its "
            f"{plural(int(left.sum()), 'training image')} are of one patient or group"
        )
    return cut


def _parts_of(
    allocation: Allocation, domain: str, train: Indices, index: int, labels: Indices, seed: int, by_group: _ByGroup
) -> Parts:
    """Divide what one node holds into its parts."""
    parts = {}
    for part in _CUT:
        if part not in by_group:
            train, parts[part] = _cut(allocation, part, train, index, labels, seed)
            continue
        held, aside = train, by_group[part][train]
        train, parts[part] = np.sort(held[~aside]), np.sort(held[aside])
        if len(train) == 0 or (part == "test" and not aside.any()):
            raise DataError(
                f"allocation.{part}_fraction: node {index} holds {plural(len(held), 'image')} of {domain!r}, and all "
                f"of them are to {'train on' if len(train) else f'be its {part} part'}, as images of a group (a "
                "patient) stay together"
            )
    return Parts(train, parts["validation"], parts["test"])


def mixed_test(dealt: tuple[str, ...], index: int, domain: str, mix: Indices, labels: Indices, seed: int) -> Indices:
    """Return which test images of a domain a node is scored on where their labels follow its training labels.

    All nodes get equally many, so that the accuracy over all of them is the mean of the nodes' accuracies: the
    domain's test images divided by the nodes that answer for it, at least one. Those are the nodes of the
    domain, or, where no node holds it, all. Each node draws for itself.

    Args:
        dealt: The domain of each node, from :meth:`Allocation.deal`.
        index: The node.
        domain: Whose test images.
        mix: How many images of each class the node holds, shape (C,).
        labels: Labels of the domain's test images, shape (N,).
        seed: The run's seed.

    Returns:
        Indices into the test images, shape (n,), int64, ascending; some twice where a class runs out.

    Raises:
        DataError: If the domain has no test image of a class that the node is to get.
    """
    size = max(1, len(labels) // (dealt.count(domain) or len(dealt)))
    where = f"shift.label_mix=own: node {index} on the test images of {domain!r}"
    return shares.draw_mix(labels, mix, size, generator(seed, f"label-mix-{domain}", index), where)


def _holdings(
    allocation: Allocation,
    domain: str,
    nodes: int,
    labels: Indices,
    num_classes: int,
    seed: int,
    public: float,
    groups: Texts | None,
) -> _Held:
    """Return what each node of a domain holds."""
    share = allocation.share_of(domain)
    aside = public_part(domain, labels, public, seed, groups) if public else labels[:0]
    if public and share is not None:
        _check_left(allocation, domain, nodes, share, public)
    if share is not None and allocation.with_replacement:

        def drawn(part: int) -> Indices:
            order = generator(seed, f"own-share-{domain}", part).permutation(len(labels))
            return order[~np.isin(order, aside)] if public else order

        size = min(allocation.size_of(share, len(labels)), len(labels) - len(aside))
        if not allocation.class_coverage:
            return [size] * nodes, lambda part: drawn(part)[:size]
        orders = [drawn(part) for part in range(nodes)]
        covered = [
            shares.cover_classes([order[:size]], order[size:], labels, num_classes, domain)[0] for order in orders
        ]
        return [size] * nodes, covered.__getitem__
    order = _order(domain, len(labels), seed)
    order = order[~np.isin(order, aside)] if public else order
    sizes = _sizes(allocation, domain, nodes, len(labels), len(order))
    chosen, spare = order[: sum(sizes)], order[sum(sizes) :]
    if allocation.label_skew is None:
        starts = np.concatenate([[0], np.cumsum(sizes)])
        if not allocation.class_coverage:
            return sizes, lambda place: chosen[starts[place] : starts[place + 1]]
        parts = np.split(chosen, starts[1:-1])
    else:
        rng = generator(seed, f"label-skew-{domain}")
        parts = shares.skew_labels(chosen, labels, nodes, allocation.label_skew, rng)
    if allocation.class_coverage:
        parts = shares.cover_classes(parts, spare, labels, num_classes, domain)
    return [len(part) for part in parts], parts.__getitem__


def _check_left(allocation: Allocation, domain: str, nodes: int, share: float, public: float) -> None:
    """Refuse nodes that ask for more than a public set leaves. A last node that takes the rest takes what is there."""
    times = 1 if allocation.with_replacement or allocation.share_per == "domain" else nodes
    if not allocation.last_takes_rest and share * times + public > 1 + 1e-9:
        raise DataError(
            f"{times} times {100 * share:g} % of {domain!r} (allocation.share) and {100 * public:g} % for all "
            "(dataset.public) are more than there is; allowed is 100 % together"
        )


def _sizes(allocation: Allocation, domain: str, nodes: int, num_examples: int, left: int) -> list[int]:
    """Return how many of a domain's images each of its nodes gets, all different; ``left`` are not public."""
    share = allocation.share_of(domain)
    if share is None or allocation.share_per == "domain":
        together = left if share is None else min(allocation.size_of(share, num_examples), left)
        each, more = divmod(together, nodes)
        return [each + 1] * more + [each] * (nodes - more)
    size = allocation.size_of(share, num_examples)
    if allocation.last_takes_rest:
        return [max(0, min(size, left - place * size)) for place in range(nodes)]
    if share * nodes > 1 + 1e-9:
        raise DataError(
            f"{plural(nodes, 'node')} of {domain!r} {'asks' if nodes == 1 else 'ask'} for "
            f"{plural(size, 'training image')} each, {size * nodes} together; "
            f"it has {num_examples}; allowed is less, allocation.with_replacement or allocation.last_takes_rest"
        )
    return [min(size, left // nodes)] * nodes  # rounding up must not ask for more than all


def _cut(
    allocation: Allocation, part: Literal["test", "validation"], images: Indices, index: int, labels: Indices, seed: int
) -> tuple[Indices, Indices]:
    """Cut the configured part from a node's images.

    Raises:
        DataError: If nothing can be cut off that should be.
    """
    fraction = allocation.fraction_of(part)
    rest, off = shares.cut(images, labels, fraction, generator(seed, f"{part}-part", index))
    if fraction > 0 and len(off) == 0:
        raise DataError(
            f"allocation.{part}_fraction: node {index} holds {plural(len(images), 'image')} with no class twice, "
            f"so none can be set aside for {part}"
        )
    return rest, off
