"""Which images a node sees.

Its own are to train on, to choose a round by, to be tested on; others are domains' test sets.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import holdings
from fedshift_app.node.place import Place as Place
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.seeding import generator
from fedshift_datasets import catalog, corruptions
from fedshift_datasets.arrays import Indices
from fedshift_datasets.base import SPLITS, ImageSet, Source, Split
from fedshift_datasets.listing import joined
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.partition.shares import divide_given
from fedshift_datasets.partition.splits import Parts, domain_parts, mixed_test, public_part


@dataclass(frozen=True)
class Own:
    """A node's own images.

    Attributes:
        train: What it trains on.
        validation: Labelled images that it does not train on, or None.
        test: Its own test set, or None where it is tested on its domain's test split.
    """

    train: ImageSet
    validation: ImageSet | None
    test: ImageSet | None

    @property
    def sets(self) -> dict[str, ImageSet]:
        """What it does not train on, by split."""
        named = {"validation": self.validation, "test": self.test}
        return {split: images for split, images in named.items() if images is not None}


@dataclass(frozen=True)
class Public:
    """The public set.

    Attributes:
        images: In an order that is drawn from the run's seed.
        sha256: Of its images and labels, in the order in which they lie in a node's copy.
    """

    images: ImageSet
    sha256: str


def public_set(config: RunConfig, where: Place) -> Public:
    """Return the images that all nodes have (``dataset.public``): of a real node its own copy.

    Raises:
        DataError: If they are missing or broken, or there are none.
    """
    return _public(config, where.source, where.num_partitions if where.shared else 0)


@functools.lru_cache(maxsize=2)
def _public(config: RunConfig, source: Source, nodes: int) -> Public:
    """Return the public set of a simulation with so many nodes, or the copy of a real node, for 0."""
    cfg, held = config.dataset, tuple(dict.fromkeys(holdings.dealt(config, nodes) if nodes else ()))
    if nodes:
        images = public_images(cfg, config.allocation, source, held, config.seed)
    else:
        images = catalog.load_public(cfg.kind, source, cfg.size, cfg.form())
    digest = hashlib.sha256(repr((images.x.shape, images.y.shape)).encode())
    digest.update(np.ascontiguousarray(images.x).data)
    digest.update(np.ascontiguousarray(images.y, dtype=np.int64).data)
    if images.targets is not images.y:
        digest.update(np.ascontiguousarray(images.targets).data)
    order = generator(config.seed, "public-order").permutation(len(images))
    return Public(images.select(order), digest.hexdigest())


def public_images(
    dataset: DatasetConfig, allocation: Allocation, source: Source, held: tuple[str, ...], seed: int
) -> ImageSet:
    """Return the images of a simulation's public set, domain after domain, as a real node's copy has them.

    Args:
        dataset: Its ``public`` says which.
        allocation: Which images of a domain its nodes divide.
        source: Where the images are.
        held: The domains that nodes hold; of the others all test images stay unseen, and nothing is public.
        seed: The run's seed.

    Raises:
        DataError: If they are missing or broken, or a share is no image.
    """
    if dataset.public_domain:
        split = dataset.known().splits(dataset.public_domain)[0]  # of a domain that is a test set only: that
        return holdings.read(dataset, dataset.public_domain, split, source)
    parts = []
    for domain in held:  # of what its nodes divide: its training, then maybe its test split
        both = len(allocation.pool) > 1
        images = _both_splits(dataset, source, domain) if both else holdings.read(dataset, domain, "train", source)
        groups = images.groups if dataset.patients == "all" else None
        parts.append(images.select(public_part(domain, images.y, dataset.public_share, seed, groups)))
    return joined(parts)


def own_images(config: RunConfig, where: Place) -> Own:
    """Return a node's own images; of one of several domains what a node of each alone has, one after the other.

    Raises:
        DataError: If they are missing or broken, the domain has too few, two domains are one folder, or images are to
            be mixed and the site states which ones to validate on.
    """
    if where.others:  # a real node of several domains
        catalog.check_own_files(config.dataset.kind, where.domains, where.source)
        each = {domain: own_images(config, where.alone(domain)) for domain in where.domains}
        validated = {domain: own.validation for domain, own in each.items() if own.validation is not None}
        return _together(config, {domain: own.train for domain, own in each.items()}, validated)
    given = given_validation(config, where) if config.allocation.validation_fraction > 0 else None
    if where.shared and config.allocation.mixing > 0:
        if given is not None:
            raise DataError(
                f"allocation.mixing={config.allocation.mixing:g}: {where.domain!r} states which images are for "
                "validation, and these stay where they are; allowed is allocation.validation_fraction=0, or mixing=0"
            )
        train, validation = (
            {domain: _take(config, where, domain, index) for domain, index in parts.items()}
            for parts in holdings.exchanged(config, where.num_partitions)[where.partition_id]
        )
        return _together(config, train, validation)
    parts = _parts(config, where, given)

    def taken(index: Indices) -> ImageSet | None:
        return _take(config, where, where.domain, index) if len(index) else None

    return Own(_take(config, where, where.domain, parts.train), given or taken(parts.validation), taken(parts.test))


def _parts(config: RunConfig, where: Place, given: ImageSet | None) -> Parts:
    """Return which images of its domain's pool a node holds; ``given`` are those that its site states to validate on.

    A real node brings its own images, and cuts off what it validates on, unless it brings that too. A guarded one then
    trains on no class of few images (:meth:`Guard.without_few`).
    """
    if where.shared:
        return holdings.parts_of(config, where.num_partitions, where.domain)[where.partition_id]
    alone = Allocation(validation_fraction=config.allocation.validation_fraction)
    alone = alone.cut(None if given is None else given.y)
    pool, only_test = _split(config, where, "train", where.domain), config.dataset.patients == "listed"
    seed = config.seed if where.guard is None else where.guard.secret
    dealt = (where.domain,)
    parts = domain_parts(
        alone, dealt, where.domain, pool.y, _classes(config), seed, groups=pool.groups, only_test=only_test
    )[0]
    return parts if where.guard is None else where.guard.without_few(parts, pool.y, where.domain)


def class_counts(config: RunConfig, where: Place) -> list[int]:
    """Return how many training images of each class a node has."""
    counts: list[int] = np.bincount(own_images(config, where).train.y, minlength=_classes(config)).tolist()
    return counts


def train_places(config: RunConfig, where: Place) -> Mapping[str, Indices]:
    """Return by domain which images of its pool a node trains on.

    Raises:
        DataError: As :func:`own_images`.
    """
    if where.shared and config.allocation.mixing > 0:
        return holdings.exchanged(config, where.num_partitions)[where.partition_id][0]
    if where.others:
        return {domain: train_places(config, where.alone(domain))[domain] for domain in where.domains}
    given = given_validation(config, where) if config.allocation.validation_fraction > 0 else None
    return {where.domain: _parts(config, where, given).train}


def _together(config: RunConfig, train: Mapping[str, ImageSet], validation: Mapping[str, ImageSet]) -> Own:
    """Return the images of a node of several domains, each with its domain if nodes know it."""
    known = config.allocation.domain_labels == "known"

    def of_all(sets: Mapping[str, ImageSet]) -> ImageSet:
        places = [config.dataset.domains.index(domain) for domain in sets] if known else None
        return joined(list(sets.values()), places)

    return Own(of_all(train), of_all(validation) if validation else None, None)


def given_validation(config: RunConfig, where: Place) -> ImageSet | None:
    """Return a node's images that its site states to be for validation. It is None if the site states none.

    They are neither trained nor tested on, whether the run validates or not.

    Raises:
        DataError: If they are broken, or too few for the nodes of the domain.
    """
    if not catalog.gives(config.dataset.kind, where.domain, "validation", where.source, own=not where.shared):
        return None
    given = _split(config, where, "validation", where.domain)
    if not where.shared:
        return given
    held = holdings.dealt(config, where.num_partitions)
    parts = divide_given(where.domain, given.y, held.count(where.domain), config.seed)
    return given.select(parts[held[: where.partition_id].count(where.domain)])


def test_images(config: RunConfig, where: Place, domain: str) -> ImageSet:
    """Return the test images of a domain that this node can see, shifted if the configuration says so.

    They are the domain's test split; with ``allocation.test_on=domain`` all images of the domain; where nodes have
    test sets of their own (``allocation.test_fraction``), those of the domain's nodes together. With
    ``shift.label_mix=own`` a simulated node gets its own draw from the test split of any domain; a real node's test
    images are its own already.

    Raises:
        DataError: If they are missing or broken, or lack a class that the node is to be scored on.
        ConfigError: If a real node is asked for a domain that is not its own.
    """
    if not where.shared and domain not in where.domains:
        held = ", ".join(map(repr, where.domains))
        raise ConfigError(f"this node holds {held}, it has no test images of {domain!r}")
    shift = config.shift
    if shift.name == "corruption" and shift.severity > 0:
        images = _corrupted(config, domain, where.source, where.shared)
    elif where.shared and config.allocation.test_on == "domain":
        images = _both_splits(config.dataset, where.source, domain)
    else:
        images = _split(config, where, "test", domain)
    if where.shared and shift.label_mix == "own":
        dealt = holdings.dealt(config, where.num_partitions)
        parts = holdings.parts_of(config, where.num_partitions, where.domain)[where.partition_id]
        # With the validation part, which is no reason to be tested on other images.
        held = _split(config, where, "train", where.domain).y[np.concatenate([parts.train, parts.validation])]
        mix = np.bincount(held, minlength=_classes(config))
        return images.select(mixed_test(dealt, where.partition_id, domain, mix, images.y, config.seed))
    if not where.shared or config.allocation.test_fraction == 0:
        return images
    chosen = holdings.test_parts(config, where.num_partitions, domain)
    return _take(config, where, domain, chosen) if len(chosen) else images  # nobody divides a held-out domain


def num_test(config: RunConfig, where: Place, domain: str = "") -> int:
    """Return how many test images the node sees of a domain of its own, by default its home; it may have none."""
    domain = domain or where.domain
    if not where.shared and not catalog.has_own(config.dataset.kind, domain, "test", where.source):
        return 0
    # A corruption changes no number, and corrupting a test set only to count it takes seconds.
    return len(test_images(uncorrupted(config), where, domain))


def unheld_tests(config: RunConfig, where: Place) -> dict[str, int]:
    """Return how many test images the node sees of each domain that no node holds. A real node sees none."""
    if not where.shared:
        return {}
    unheld = holdings.unheld(config, where.num_partitions)
    return {domain: len(test_images(uncorrupted(config), where, domain)) for domain in unheld}


def uncorrupted(config: RunConfig) -> RunConfig:
    """Return the configuration without its corruption of test images."""
    if config.shift.name != "corruption":
        return config
    return config.model_copy(update={"shift": config.shift.model_copy(update={"severity": 0})})


def fingerprints(config: RunConfig) -> dict[str, dict[str, str]]:
    """Return a hash of the images of a simulation by domain and split, without those that are drawn.

    Drawn images follow from the seed and the size, which belong to the configuration.

    Raises:
        DataError: If they are missing or broken.
    """
    cfg = config.dataset
    catalog.check_files(cfg.kind, read_parts(config), cfg.source())
    stamps: dict[str, dict[str, str]] = {}
    for domain, split in read_parts(config):
        mark = catalog.content(cfg.kind, domain, split, cfg.source(), cfg.size, cfg.form())
        if mark is not None:
            stamps.setdefault(domain, {})[split] = mark
    return stamps


def read_parts(config: RunConfig) -> list[tuple[str, Split]]:
    """Return the domains and splits that a simulation reads, that of a public domain last."""
    cfg = config.dataset
    splits: list[tuple[str, Split]] = []
    for domain in cfg.domains:
        splits += [(domain, split) for split in config.allocation.reads(domain)]
        if domain not in config.allocation.held_out and holdings.validates(config, domain):
            splits.append((domain, "validation"))
    if cfg.public_domain:
        splits.append((cfg.public_domain, cfg.known().splits(cfg.public_domain)[0]))
    return splits


def skipped(config: RunConfig) -> list[dict[str, str]]:
    """Return the images that a simulation does without because they cannot be read: domain, split, file and reason.

    Raises:
        DataError: If images are missing, or the cache cannot be written.
    """
    cfg = config.dataset
    return [
        {"domain": domain, "split": split, "file": image.name, "reason": image.reason}
        for domain, split in read_parts(config)
        for image in catalog.skipped(cfg.kind, domain, split, cfg.source(), cfg.form())
    ]


def _take(config: RunConfig, where: Place, domain: str, index: Indices) -> ImageSet:
    """Return images by their index into the domain's pool: its training, then maybe its test split."""
    train = _split(config, where, "train", domain)
    if not where.shared or len(config.allocation.pool) == 1:
        return train.select(index)
    test = _split(config, where, "test", domain)
    first, second = train.select(index[index < len(train)]), test.select(index[index >= len(train)] - len(train))
    return joined([first, second])


def _classes(config: RunConfig) -> int:
    return len(config.dataset.known().classes)


def _split(config: RunConfig, where: Place, split: Split, domain: str) -> ImageSet:
    return holdings.read(config.dataset, domain, split, where.source, where.shared)


@functools.lru_cache(maxsize=8)
def _both_splits(dataset: DatasetConfig, source: Source, domain: str) -> ImageSet:
    """Return all images of a domain: its training, then its test split."""
    train, test = (holdings.read(dataset, domain, split, source) for split in SPLITS)
    return joined([train, test])


@functools.lru_cache(maxsize=32)
def _corrupted(config: RunConfig, domain: str, source: Source, shared: bool) -> ImageSet:
    """Return a domain's test images after the configured corruption; the same for every node and round."""
    clean, shift = holdings.read(config.dataset, domain, "test", source, shared), config.shift
    more = (clean.x, shift.severity, np.arange(len(clean)), config.seed)
    if shift.corruption == "random":
        broken = corruptions.random_corruption(*more)
    else:
        broken = corruptions.corrupt(clean.x, shift.corruption, *more[1:])
    return clean.but(x=broken)


def forget() -> None:
    """Forget images and who holds them, at a run's start: files may have changed since the last of this process."""
    holdings.forget()
    for function in (_public, _both_splits, _corrupted):  # remembered by the configuration, not by what is on the disk
        function.cache_clear()
