"""How the images of a simulation are dealt to its nodes: which a node holds, by index into the pools of domains."""

import functools
from collections.abc import Mapping

import numpy as np

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.listing import joined
from fedshift_datasets.partition import mixing
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.partition.shares import Indices
from fedshift_datasets.partition.splits import Parts, domain_parts


def dealt(config: RunConfig, num_nodes: int) -> tuple[str, ...]:
    """Return the domain of each node of the simulation, worked out once per process and run.

    Raises:
        ConfigError: If the number of nodes does not fit the allocation.
    """
    return _dealt(config.allocation, config.dataset.domains, num_nodes, config.seed)


@functools.lru_cache(maxsize=8)
def _dealt(allocation: Allocation, domains: tuple[str, ...], num_nodes: int, seed: int) -> tuple[str, ...]:
    return allocation.deal(domains, num_nodes, seed)


def unheld(config: RunConfig, num_nodes: int) -> tuple[str, ...]:
    """Return the domains that no node of the simulation holds, in their order."""
    return _unheld(config.allocation, config.dataset.domains, num_nodes, config.seed)


@functools.lru_cache(maxsize=8)
def _unheld(allocation: Allocation, domains: tuple[str, ...], num_nodes: int, seed: int) -> tuple[str, ...]:
    held = set(_dealt(allocation, domains, num_nodes, seed))
    return tuple(domain for domain in domains if domain not in held)


# A process serves many nodes, and one node's part follows from those of all nodes of its domain: without the
# caches a round would cost nodes x nodes.
@functools.lru_cache(maxsize=32)
def _domain_parts(
    allocation: Allocation, dataset: DatasetConfig, source: Source, num_nodes: int, domain: str, seed: int
) -> Mapping[int, Parts]:
    """Return the part of a domain's pool that each simulated node holds, by index of the node."""
    pool = joined([read(dataset, domain, split, source, shared=True) for split in allocation.pool])
    held = _dealt(allocation, dataset.domains, num_nodes, seed)
    classes = len(dataset.known().classes)
    if allocation.validation_fraction > 0 and catalog.gives(dataset.kind, domain, "validation", source, own=False):
        allocation = allocation.cut(read(dataset, domain, "validation", source, shared=True).y)
    return domain_parts(
        allocation,
        held,
        domain,
        pool.y,
        classes,
        seed,
        dataset.public_share,
        pool.groups,
        only_test=dataset.patients == "listed",
    )


@functools.lru_cache(maxsize=4)
def _exchanged(
    allocation: Allocation, dataset: DatasetConfig, source: Source, num_nodes: int, seed: int
) -> list[tuple[dict[str, Indices], dict[str, Indices]]]:
    """Return by domain what each simulated node trains and validates on (``allocation.mixing``)."""
    homes = _dealt(allocation, dataset.domains, num_nodes, seed)
    held = [_domain_parts(allocation, dataset, source, num_nodes, home, seed)[node] for node, home in enumerate(homes)]
    return list(
        zip(
            mixing.exchanged(homes, [part.train for part in held], allocation.mixing, "train", seed),
            mixing.exchanged(homes, [part.validation for part in held], allocation.mixing, "validation", seed),
            strict=True,
        )
    )


def parts_of(config: RunConfig, num_nodes: int, domain: str) -> Mapping[int, Parts]:
    """Return by index of the node what each node of the simulation holds of a domain's pool."""
    return _domain_parts(config.allocation, config.dataset, config.dataset.source(), num_nodes, domain, config.seed)


@functools.lru_cache(maxsize=32)
def _test_parts(
    allocation: Allocation, dataset: DatasetConfig, source: Source, num_nodes: int, domain: str, seed: int
) -> Indices:
    if domain not in _dealt(allocation, dataset.domains, num_nodes, seed):
        return np.zeros(0, np.int64)
    parts = _domain_parts(allocation, dataset, source, num_nodes, domain, seed)
    return np.unique(np.concatenate([part.test for part in parts.values()]))


def test_parts(config: RunConfig, num_nodes: int, domain: str) -> Indices:
    """Return the indices, into the domain's pool, of the test sets of all its nodes; none where no node holds it."""
    return _test_parts(config.allocation, config.dataset, config.dataset.source(), num_nodes, domain, config.seed)


def mixed_parts(config: RunConfig, num_nodes: int, node: int) -> tuple[Mapping[str, Indices], Mapping[str, Indices]]:
    """Return by domain what a node of the simulation trains and validates on (``allocation.mixing``)."""
    return _exchanged(config.allocation, config.dataset, config.dataset.source(), num_nodes, config.seed)[node]


def read(dataset: DatasetConfig, domain: str, split: Split, source: Source, shared: bool) -> ImageSet:
    """Return images of a domain: of a simulation, or of a real node's own folder.

    Raises:
        DataError: If they are missing or broken.
    """
    if shared or source.data_dir is None:
        return catalog.load(dataset.kind, domain, split, source, dataset.size, dataset.form())
    return catalog.load_own(dataset.kind, domain, split, source, dataset.size, dataset.form())


_REMEMBERED = (_domain_parts, _exchanged, _test_parts)  # by the configuration, not by what is on the disk


def forget() -> None:
    """Forget how images are dealt, and the images: their files may have changed."""
    catalog.forget()
    for function in _REMEMBERED:
        function.cache_clear()
