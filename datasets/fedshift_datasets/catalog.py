"""Lists all data sets by name, and reads them through the cache of decoded images."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeGuard

from fedshift_core.errors import ConfigError, DataError
from fedshift_core.extensions import Registry
from fedshift_core.limits import shown, some
from fedshift_datasets.base import OWN_SPLITS, PLAIN, SPLITS, Dataset, Form, ImageSet, Names, Source, Split, checked
from fedshift_datasets.io import cache, corrupt_files, layout, looks, resize, trees
from fedshift_datasets.io.decode import Progress, no_progress
from fedshift_datasets.listing import Arrays, Files, ImageFiles, Listing
from fedshift_datasets.sets import (
    camelyon,
    cifar,
    digits,
    domainnet,
    folders,
    handwritten,
    isic,
    office,
    pacs,
    partitioned,
    vlcs,
)

#: Name of a real node's copy of the public set in its folder, in place of a domain.
PUBLIC = "public"

_OURS = (
    handwritten.DATASET,
    handwritten.MASKED,
    digits.DATASET,
    digits.DIGIT5,
    pacs.DATASET,
    office.DATASET,
    vlcs.DATASET,
    domainnet.DATASET,
    domainnet.DATASET10,
    cifar.DATASET,
    camelyon.DATASET,
    isic.DATASET,
    folders.DATASET,
    partitioned.DATASET,
)

DATASETS: Registry[Dataset] = Registry("dataset", "fedshift.datasets", lambda: Dataset, {d.name: d for d in _OURS})


def get(name: str) -> Dataset:
    """Return a data set by name.

    Raises:
        ConfigError: If there is no such data set, or its package cannot be used.
    """
    return DATASETS[name]


def of_users() -> list[str]:
    """Return the names of the data sets that leave domains and classes to the user."""
    return [name for name, dataset in DATASETS.items() if dataset.own is not None]


def stated(name: str, names: Names, as_name: str = "") -> Dataset:
    """Return a data set as a run has it: one with a user's domains and classes gets those of the run.

    Args:
        name: The data set.
        names: The run's domains and classes.
        as_name: Its name in the run; empty for its own name.

    Raises:
        ConfigError: As :func:`get`.
    """
    dataset = get(name)
    if dataset.own is None:
        return dataset
    return replace(dataset, name=as_name or name, domains=names.domains, classes=names.classes)


def check_targets(dataset: Dataset, source: Source) -> None:
    """Refuse targets that a data set has not.

    Raises:
        ConfigError: With the data sets that have them.
    """
    if source.masks and True not in dataset.masked:
        raise ConfigError(
            f"dataset.masks (task=segmentation): the images of {dataset.name} have no masks; with masks are "
            f"{some([name for name, each in DATASETS.items() if True in each.masked], 6)}"
        )


@functools.cache
def load(name: str, domain: str, split: Split, source: Source, size: int | None = None, form: Form = PLAIN) -> ImageSet:
    """Return the images of one domain and split, decoded once per machine and mapped once per process.

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
    return _images(name, domain, split, source, size, form, get(name).find(domain, split, source))


@functools.cache
def load_own(
    name: str, domain: str, split: Split, source: Source, size: int | None = None, form: Form = PLAIN
) -> ImageSet:
    """Return the images in a real node's own folder: in the plain layouts, or those of the data set.

    Raises:
        DataError: If the images are missing or broken, or the cache cannot be written.
    """
    found = own_files(name, domain, split, source)
    if found is None:
        assert source.data_dir is not None
        raise DataError(f"{shown(source.data_dir)}: {domain} has no {split} images")
    return _images(name, domain, split, source, size, form, found, own=True)


@functools.cache
def load_public(name: str, source: Source, size: int | None = None, form: Form = PLAIN) -> ImageSet:
    """Return a real node's copy of the public set: ``public_train.npz`` or ``public/train/<class>/*`` in its folder.

    Raises:
        DataError: If it is missing or broken, or the cache cannot be written.
    """
    return _images(name, PUBLIC, "train", source, size, form, _plain(get(name), PUBLIC, "train", source), own=True)


def has_own(name: str, domain: str, split: Split, source: Source) -> bool:
    """Return whether a real node's own folder has a split.

    Raises:
        DataError: If the folder cannot be listed.
    """
    dataset = get(name)
    if dataset.find_own is not None:
        return dataset.find_own(domain, split, source) is not None
    if source.data_dir is None:
        return True
    return layout.find_domain(source.data_dir, domain, split) is not None


@functools.cache
def gives(name: str, domain: str, split: Split, source: Source, *, own: bool) -> bool:
    """Return whether a domain has images of a split that only a user's own sites may have.

    Args:
        name: The data set.
        domain: One of its domains.
        split: The split, such as ``validation``.
        source: Where the images are.
        own: It is a real node's own folder; data sets of FedShift have some only there.

    Raises:
        DataError: If the folder cannot be listed.
    """
    dataset = get(name)
    if dataset.find_own is not None:
        return dataset.validates and has_own(name, domain, split, source)
    return own and source.data_dir is not None and has_own(name, domain, split, source)


def splits(name: str, known: Dataset, domain: str, source: Source, *, own: bool) -> list[Split]:
    """Return the splits that a domain has here.

    Args:
        name: The data set that reads the images.
        known: It, with the run's domains and classes.
        domain: One of them.
        source: Where the images are.
        own: It is a real node's own folder.

    Raises:
        DataError: If the folder cannot be listed.
    """
    if own:
        return [split for split in OWN_SPLITS if has_own(name, domain, split, source)]
    here = [s for s in known.splits(domain) if known.own is None or has_own(name, domain, s, source)]
    more: list[Split] = ["validation"] if gives(name, domain, "validation", source, own=False) else []
    return [*here, *more]


def _plain(dataset: Dataset, domain: str, split: Split, source: Source) -> ImageFiles:
    """Return the images of a split in the plain layouts of any data set."""
    assert source.data_dir is not None
    classes, stated = dataset.classes, True
    if dataset.own is not None:
        classes, stated = source.classes, source.classes_stated
    masks = source.masks or False not in dataset.masked
    return trees.find_plain(source.data_dir, domain, split, classes, stated=stated, masks=masks)


def own_files(name: str, domain: str, split: Split, source: Source) -> ImageFiles | None:
    """Return the images of a split in a real node's own folder before they are decoded; None if it has none.

    Raises:
        DataError: If the images are missing or broken.
    """
    dataset = get(name)
    find = dataset.find_own or partial(_plain, dataset)
    return find(domain, split, source)


def named(
    name: str, domain: str, split: Split, source: Source, size: int, form: Form = PLAIN, *, own: bool
) -> tuple[list[str], ImageSet]:
    """Return the names of images as ``given_features`` has them and the images, in one order.

    Args:
        name: The data set.
        domain: One of its domains.
        split: Which split.
        source: Where the images are.
        size: Height and width in pixels.
        form: How images become squares of 8 bits a channel.
        own: It is a real node's own folder.

    Raises:
        DataError: As for :func:`load`.
    """
    files_of = own_files(name, domain, split, source) if own else get(name).find(domain, split, source)
    assert files_of is not None
    assert source.data_dir is not None
    images = (load_own if own else load)(name, domain, split, source, size, form)
    files_of = corrupt_files.usable(files_of, source, form)
    if not isinstance(files_of, Listing):
        return [f"{domain}/{split}/{place}" for place in range(len(images))], images
    root = source.data_dir
    items = files_of.items
    return [Path(item.path).relative_to(root).as_posix() if item.length < 0 else item.name for item in items], images


def check_files(name: str, parts: Iterable[tuple[str, Split]], source: Source) -> None:
    """Refuse a file of a user's own images in two domains or splits, through a link or another spelling.

    Raises:
        DataError: With both paths; and as for :func:`load`.
    """
    dataset = get(name)
    if dataset.own is None:
        return
    looks.refuse([_files(dataset.find(domain, split, source)) for domain, split in parts])


@functools.lru_cache(maxsize=8)
def check_own_files(name: str, domains: tuple[str, ...], source: Source) -> None:
    """Refuse a real node's own folder in which two of its domains have a file in common.

    Raises:
        DataError: With what there is; and as for :func:`load_own`.
    """
    seen: dict[str, str] = {}
    for domain in domains:
        for split in OWN_SPLITS:
            if split != SPLITS[0] and not has_own(name, domain, split, source):  # images to train on there must be
                continue
            own = own_files(name, domain, split, source)
            for path in () if own is None else _files(own):
                if seen.setdefault(path, domain) != domain:
                    raise DataError(
                        f"node-config: domain names {seen[path]!r} and {domain!r}, and {shown(path)} would be an image "
                        "of both; a node of several domains has a folder of each in data-dir"
                    )
    looks.refuse([tuple(seen)])


def _files(image_files: ImageFiles) -> tuple[str, ...]:
    """Return the files of images that are there for themselves, not as a piece of another file."""
    if not isinstance(image_files, Listing):
        return image_files.sources
    if isinstance(image_files.items, Files):
        return image_files.items.names
    return tuple(item.path for item in image_files.items if item.length < 0)


def content(
    name: str, domain: str, split: Split, source: Source, size: int | None = None, form: Form = PLAIN
) -> str | None:
    """Return a hash of the images of one domain and split, and of which are of one patient.

    None if they are generated, not read.

    Raises:
        DataError: As for :func:`load`.
    """
    dataset = get(name)
    image_files = corrupt_files.usable(dataset.find(domain, split, source), source, form)
    if _drawn(image_files):
        return None
    mark = cache.content(cache.Part(name, domain, split, size or dataset.size, form), image_files)
    if image_files.groups is None or source.patients == "listed":
        return mark
    groups = "\0".join(image_files.groups.tolist())
    return hashlib.sha256(f"{mark} {groups}".encode(errors="surrogateescape")).hexdigest()


def skipped(
    name: str, domain: str, split: Split, source: Source, form: Form = PLAIN
) -> tuple[corrupt_files.Broken, ...]:
    """Return the images of one domain and split that ``skip_broken`` leaves out.

    Raises:
        DataError: As for :func:`load`.
    """
    image_files = get(name).find(domain, split, source)
    return corrupt_files.of(image_files, form) if source.skip_broken and isinstance(image_files, Listing) else ()


def prepare(
    name: str, domain: str, split: Split, source: Source, size: int, show: Callable[[int], Progress], form: Form = PLAIN
) -> ImageSet:
    """Decode one domain and split into the cache with all cores, unless the cache has a valid copy.

    Args:
        name: The data set.
        domain: One of its domains.
        split: Which split.
        source: Where the images are.
        size: Height and width in pixels.
        show: Returns a progress function for a number of images to decode.
        form: How images become squares of 8 bits a channel.

    Raises:
        DataError: As for :func:`load`.
    """
    return _images(
        name,
        domain,
        split,
        source,
        size,
        form,
        get(name).find(domain, split, source),
        workers=os.cpu_count() or 1,
        show=show,
    )


def _images(
    name: str,
    domain: str,
    split: Split,
    source: Source,
    size: int | None,
    form: Form,
    found: ImageFiles,
    *,
    own: bool = False,
    workers: int = 1,
    show: Callable[[int], Progress] = lambda _: no_progress,
) -> ImageSet:
    dataset = get(name)
    image_files = corrupt_files.usable(found, source, form)
    part = cache.Part(f"{name}-own" if own else name, domain, split, size or dataset.size, form)
    if _drawn(image_files):
        images = resize.resized(image_files.read(), part.size, form.resize)
    else:
        progress = show(len(image_files) if isinstance(image_files, Listing) else 0)
        images = cache.load(part, image_files, workers=workers, progress=progress)
        if image_files.groups is not None:  # which the cache does not hold
            images = replace(images, groups=image_files.groups)
    classes = dataset.classes if dataset.own is None else source.classes
    return checked(images, classes=len(classes), size=part.size, where=f"{part.dataset} {domain} {split}")


def _drawn(image_files: ImageFiles) -> TypeGuard[Arrays]:
    """Return whether images are generated from a seed, not read from files."""
    return isinstance(image_files, Arrays) and not image_files.files


#: What is remembered of images by what a configuration says of them, not by what is on the disk.
_REMEMBERED = (load, load_own, load_public, gives, check_own_files)


def forget() -> None:
    """Forget all images of this process, as their files may have changed; who has some keeps them."""
    for function in _REMEMBERED:
        function.cache_clear()
