"""All data sets by name, and reading them through the cache of decoded images."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

from datasets import cache, cifar, digits, domainnet, files, handwritten, office, pacs, trees, vlcs
from datasets.base import PLAIN, Dataset, Form, ImageSet, Source, Split, checked
from datasets.decode import Progress, no_progress
from datasets.listing import Arrays, Found, Listing
from fedshift_wire.extensions import Registry

_D = digits
_DIGIT5 = f"{_D.TITLE}; MNIST-M among them"
_CIFAR_TESTS = frozenset({"cifar10.1"})

_OURS = {
    d.name: d
    for d in (
        Dataset("handwritten", handwritten.TITLE, handwritten.DOMAINS, handwritten.CLASSES, 32, handwritten.find),
        Dataset("digits", _D.TITLE, _D.DOMAINS, _D.CLASSES, 32, _D.find, _D.COUNTS),
        Dataset("digit5", _DIGIT5, _D.DOMAINS, _D.CLASSES, 32, _D.find, _D.COUNTS),
        Dataset(pacs.NAME, pacs.TITLE, pacs.DOMAINS, pacs.CLASSES, 128, pacs.find, pacs.COUNTS),
        Dataset(office.NAME, office.TITLE, office.DOMAINS, office.CLASSES, 32, office.find, office.COUNTS),
        Dataset(vlcs.NAME, vlcs.TITLE, vlcs.DOMAINS, vlcs.CLASSES, 32, vlcs.find, vlcs.COUNTS),
        Dataset(
            domainnet.NAME, domainnet.TITLE, domainnet.DOMAINS, domainnet.CLASSES, 64, domainnet.find, domainnet.COUNTS
        ),
        Dataset(
            domainnet.NAME10, domainnet.TITLE10, domainnet.DOMAINS, domainnet.CLASSES10, 64,
            domainnet.find10, domainnet.COUNTS10,
        ),
        Dataset(cifar.NAME, cifar.TITLE, cifar.DOMAINS, cifar.CLASSES, 32, cifar.find, cifar.COUNTS, _CIFAR_TESTS),
    )
}  # fmt: skip

DATASETS: Registry[Dataset] = Registry("dataset", "fedshift.datasets", lambda: Dataset, _OURS)


def get(name: str) -> Dataset:
    """Return a data set by name.

    Raises:
        ConfigError: If there is none of that name, or its package cannot be used.
    """
    return DATASETS[name]


@functools.cache
def load(name: str, domain: str, split: Split, source: Source, size: int | None = None, form: Form = PLAIN) -> ImageSet:
    """Return one domain and split, decoded once per machine and mapped once per process.

    Args:
        name: The data set.
        domain: One of its domains.
        split: Which split.
        source: Where the images are.
        size: Height and width in pixels; None for the data set's own.
        form: How images become squares of 8 bits a channel.

    Raises:
        DataError: If the images are missing or broken, or the cache cannot be written.
    """
    dataset = get(name)
    found = dataset.find(domain, split, source)
    return _images(dataset, cache.Part(name, domain, split, size or dataset.size, form), found)


@functools.cache
def load_own(
    name: str, domain: str, split: Split, data_dir: Path, size: int | None = None, form: Form = PLAIN
) -> ImageSet:
    """Return the images in a real node's own folder, in the plain layouts that any data set may have.

    Raises:
        DataError: If the images are missing or broken, or the cache cannot be written.
    """
    dataset = get(name)
    found = trees.find_plain(data_dir, domain, split, dataset.classes)
    return _images(dataset, cache.Part(f"{name}-own", domain, split, size or dataset.size, form), found)


def content(
    name: str, domain: str, split: Split, source: Source, size: int | None = None, form: Form = PLAIN
) -> str | None:
    """Return a hash of one domain and split as it is trained and tested on; None where the images are drawn, not read.

    Raises:
        DataError: As for :func:`load`.
    """
    dataset = get(name)
    found = dataset.find(domain, split, source)
    return None if _drawn(found) else cache.content(cache.Part(name, domain, split, size or dataset.size, form), found)


def prepare(
    name: str, domain: str, split: Split, source: Source, size: int, show: Callable[[int], Progress], form: Form = PLAIN
) -> ImageSet:
    """Decode one domain and split into the cache, all cores at work, unless a good copy is kept.

    Args:
        name: The data set.
        domain: One of its domains.
        split: Which split.
        source: Where the images are.
        size: Height and width in pixels.
        show: Given the number of images to decode, returns what is told of finished ones.
        form: How images become squares of 8 bits a channel.

    Raises:
        DataError: As for :func:`load`.
    """
    dataset = get(name)
    found = dataset.find(domain, split, source)
    total = len(found) if isinstance(found, Listing) else 0
    part = cache.Part(name, domain, split, size, form)
    return _images(dataset, part, found, workers=os.cpu_count() or 1, progress=show(total))


def _images(
    dataset: Dataset, part: cache.Part, found: Found, *, workers: int = 1, progress: Progress = no_progress
) -> ImageSet:
    if _drawn(found):
        images = found.read()
        images = ImageSet(files.resize(images.x, part.size, part.form.resize), images.y)
    else:
        images = cache.load(part, found, workers=workers, progress=progress)
    where = f"{part.dataset} {part.domain} {part.split}"
    return checked(images, classes=len(dataset.classes), size=part.size, where=where)


def _drawn(found: Found) -> TypeGuard[Arrays]:
    """Tell whether images are drawn from a seed, not read from files."""
    return isinstance(found, Arrays) and not found.files
