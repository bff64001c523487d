"""Images, and patients, of a user's own data that are both trained and tested on."""

import functools
import logging
from collections.abc import Mapping

import numpy as np

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import holdings
from fedshift_app.node.data import read_parts
from fedshift_core.limits import MOST_NAME, shown
from fedshift_datasets import catalog
from fedshift_datasets.base import OWN_SPLITS, ImageSet, Source, Split
from fedshift_datasets.io import patients
from fedshift_datasets.listing import joined
from fedshift_datasets.quality import exact_copies
from fedshift_datasets.quality.exact_copies import Place, Role

log = logging.getLogger("fedshift")


def of_run(config: RunConfig, nodes: int) -> list[str]:
    """Return the lines that the log of a simulation has on patients and exact copies.

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
    validated = {
        domain: holdings.read(config.dataset, domain, split)
        for domain, split in read_parts(config)
        if split == "validation"
    }
    return _lines(sets, validated)


def _roles(config: RunConfig, domain: str, nodes: int) -> list[Role]:
    """Return what the nodes of a domain train on, and what it is tested on. A held-out domain is a test alone."""
    allocation = config.allocation

    def read(split: Split) -> ImageSet:
        return holdings.read(config.dataset, domain, split)

    held = domain in holdings.dealt(config, nodes)
    if not held or len(allocation.pool) == 1:
        return [Role(domain, not held or split == "test", read(split)) for split in allocation.reads(domain)]
    parts = holdings.parts_of(config, nodes, domain).values()
    both = joined([read(split) for split in allocation.pool])
    test = np.unique(np.concatenate([part.test for part in parts]))
    train = np.unique(np.concatenate([index for part in parts for index in (part.train, part.validation)]))
    return [Role(domain, False, both.select(train)), Role(domain, True, both.select(test))]


@functools.cache
def warn_node(dataset: DatasetConfig, domains: tuple[str, ...], source: Source) -> None:
    """Say once in a real node's own log how many of its test images, and patients, are trained on too.

    Raises:
        DataError: If images are missing or broken.
    """
    if catalog.get(dataset.kind).own is None:
        return
    there = [
        (domain, split, holdings.read(dataset, domain, split, source, shared=False))
        for domain in domains
        for split in OWN_SPLITS
        if split == "train" or catalog.has_own(dataset.kind, domain, split, source)
    ]
    sets = [Role(domain, split == "test", images) for domain, split, images in there if split != "validation"]
    for line in _lines(sets, {domain: images for domain, split, images in there if split == "validation"}):
        log.warning("%s", line)


def _lines(sets: list[Role], validated: Mapping[str, ImageSet]) -> list[str]:
    def name(place: Place) -> str:
        role = sets[place[0]]
        return f"{shown(role.domain, MOST_NAME)} {'test' if role.is_test else 'train'} image {place[1]}"

    parts = [patients.Part(role.domain, "test" if role.is_test else "train", role.images) for role in sets]
    parts += [patients.Part(domain, "validation", images) for domain, images in validated.items()]
    return [*patients.lines(parts), *exact_copies.lines(exact_copies.find(sets), sets, name)]
