"""Nodes that hold images of several domains (``allocation.mixing``), between one domain a node and one mixture for all.

As the heterogeneous partition of FedDG_Benchmark (Bai, Bagchi, Inouye; https://arxiv.org/abs/2307.04942): a part of
each node's images is replaced by images of the common mixture. Here a node gets as many as it gives, so that it keeps
its size, and all nodes together keep their images; there, with lambda 1, all nodes are equally large.
"""

from collections.abc import Sequence

import numpy as np

from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Indices


def exchanged(homes: Sequence[str], held: Sequence[Indices], mixing: float, purpose: str, seed: int) -> list[
    dict[str, Indices]
]:  # fmt: skip
    """Return what each node holds after it has given a part of its images and got as many of the common mixture.

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
