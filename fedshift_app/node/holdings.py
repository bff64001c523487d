"""How the images of a simulation are dealt to its nodes: which a node holds, by index into the pools of domains.

A process serves many nodes, and one node's part follows from those of all nodes of its domain: without the caches a
round would cost nodes x nodes.
"""

import functools
from collections.abc import Mapping

import numpy as np

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_datasets import catalog
from fedshift_datasets.arrays import Indices
from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.listing import joined
from fedshift_datasets.partition import shares
from fedshift_datasets.partition.splits import Parts, domain_parts


@functools.lru_cache(maxsize=8)
def dealt(config: RunConfig, num_nodes: int) -> tuple[str, ...]:
    """Return the domain of each node of the simulation.

    Raises:
        ConfigError: If the number of nodes does not fit the allocation.
    """
    return config.allocation.deal(config.dataset.domains, num_nodes, config.seed)


def unheld(config: RunConfig, num_nodes: int) -> tuple[str, ...]:
    """Return the domains that no node of the simulation holds, in their order."""
    held = set(dealt(config, num_nodes))
    return tuple(domain for domain in config.dataset.domains if domain not in held)


@functools.lru_cache(maxsize=32)
def parts_of(config: RunConfig, num_nodes: int, domain: str) -> Mapping[int, Parts]:
    """Return by index of the node what each node of the simulation holds of a domain's pool."""
    cfg, allocation = config.dataset, config.allocation
    pool = joined([read(cfg, domain, split) for split in allocation.pool])
    if validates(config, domain):
        allocation = allocation.cut(read(cfg, domain, "validation").y)
    return domain_parts(
        allocation,
        dealt(config, num_nodes),
        domain,
        pool.y,
        len(cfg.known().classes),
        config.seed,
        cfg.public_share,
        pool.groups,
        only_test=cfg.patients == "listed",
    )


def validates(config: RunConfig, domain: str) -> bool:
    """Tell whether nodes of the simulation validate on images that a domain states for that."""
    cfg = config.dataset
    given = config.allocation.validation_fraction > 0
    return given and catalog.gives(cfg.kind, domain, "validation", cfg.source(), own=False)


@functools.lru_cache(maxsize=32)
def test_parts(config: RunConfig, num_nodes: int, domain: str) -> Indices:
    """Return the indices, into the domain's pool, of the test sets of all its nodes; none where no node holds it."""
    if domain not in dealt(config, num_nodes):
        return np.zeros(0, np.int64)
    return np.unique(np.concatenate([part.test for part in parts_of(config, num_nodes, domain).values()]))


@functools.lru_cache(maxsize=4)
def exchanged(config: RunConfig, num_nodes: int) -> list[tuple[dict[str, Indices], dict[str, Indices]]]:
    """Return by domain what each node of the simulation trains and validates on (``allocation.mixing``)."""
    homes, share, seed = dealt(config, num_nodes), config.allocation.mixing, config.seed
    held = [parts_of(config, num_nodes, home)[node] for node, home in enumerate(homes)]
    train = shares.exchanged(homes, [part.train for part in held], share, "train", seed)
    validation = shares.exchanged(homes, [part.validation for part in held], share, "validation", seed)
    return list(zip(train, validation, strict=True))


def read(
    dataset: DatasetConfig, domain: str, split: Split, source: Source | None = None, shared: bool = True
) -> ImageSet:
    """Return images of a domain: of a simulation, or of a real node's own folder.

    Raises:
        DataError: If they are missing or broken.
    """
    source = source or dataset.source()
    load = catalog.load if shared or source.data_dir is None else catalog.load_own
    return load(dataset.kind, domain, split, source, dataset.size, dataset.form())


def forget() -> None:
    """Forget how images are dealt, and the images: their files may have changed."""
    catalog.forget()
    for function in (parts_of, exchanged, test_parts):  # remembered by the configuration, not by what is on the disk
        function.cache_clear()
