"""Exact copies of a user's own images that are both trained and tested on."""

import functools
import logging

import numpy as np

from datasets import catalog
from datasets.base import SPLITS, ImageSet, Source, Split
from datasets.listing import joined
from datasets.quality import exact_copies
from datasets.quality.exact_copies import Place, Role
from fedshift_app.config.sections import DatasetConfig, RunConfig
from fedshift_app.node import holdings
from fedshift_core.limits import MOST_NAME, shown

log = logging.getLogger("fedshift")


def of_run(config: RunConfig, nodes: int) -> list[str]:
    """Return the lines that the log of a simulation has on exact copies.

    Images have no names here: `fedshift prepare` names the files.

    Args:
        config: The run's configuration.
        nodes: How many nodes there are.

    Raises:
        DataError: If images are missing or broken.
    """
    if catalog.get(config.dataset.kind).own is None:
        return []
    sets = [role for domain in config.dataset.domains for role in _roles(config, domain, nodes)]
    return _lines(sets)


def _roles(config: RunConfig, domain: str, nodes: int) -> list[Role]:
    """Return what the nodes of a domain train on, and what it is tested on. A held-out domain is a test alone."""
    cfg, allocation = config.dataset, config.allocation
    source = cfg.source()

    def read(split: Split) -> ImageSet:
        return catalog.load(cfg.kind, domain, split, source, cfg.size, cfg.form())

    if domain not in holdings.dealt(config, nodes):
        return [Role(domain, True, read(split)) for split in allocation.reads(domain)]
    if len(allocation.pool) == 1:
        return [Role(domain, split == "test", read(split)) for split in allocation.reads(domain)]
    parts = holdings.parts_of(config, nodes, domain).values()
    pool = [read(split) for split in allocation.pool]
    both = joined(pool)
    test = np.unique(np.concatenate([part.test for part in parts]))
    train = np.unique(np.concatenate([index for part in parts for index in (part.train, part.validation)]))
    return [Role(domain, False, both.select(train)), Role(domain, True, both.select(test))]


@functools.cache
def warn_node(dataset: DatasetConfig, domains: tuple[str, ...], source: Source) -> None:
    """Say once in a real node's own log how many of its test images are training images too.

    Raises:
        DataError: If images are missing or broken.
    """
    if catalog.get(dataset.kind).own is None:
        return
    tested = [domain for domain in domains if catalog.has_own(dataset.kind, domain, "test", source)]
    sets = [
        Role(
            domain, split == "test", catalog.load_own(dataset.kind, domain, split, source, dataset.size, dataset.form())
        )
        for domain in (domains if tested else ())
        for split in SPLITS
        if split != "test" or domain in tested
    ]
    for line in _lines(sets):
        log.warning("%s", line)


def _lines(sets: list[Role]) -> list[str]:
    def name(place: Place) -> str:
        role = sets[place[0]]
        return f"{shown(role.domain, MOST_NAME)} {'test' if role.is_test else 'train'} image {place[1]}"

    return exact_copies.lines(exact_copies.find(sets), sets, name)
