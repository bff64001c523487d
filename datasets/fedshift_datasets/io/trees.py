"""Lists a domain without decoding it: class folders, uncompressed tars, and missing images."""

import functools
import hashlib
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_core.same_names import key
from fedshift_datasets.arrays import Indices
from fedshift_datasets.base import Source, Split, check_range
from fedshift_datasets.io import files, layout, npz, pictures, presence
from fedshift_datasets.io import masks as outlines
from fedshift_datasets.listing import Arrays, Files, ImageFiles, Item, Listing

#: Starts of compressed files.
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

Finder = Callable[[Path, str], Path | None]


def locate(dataset: str, domain: str, source: Source, *, domains: Sequence[str], finder: Finder, layouts: str) -> Path:
    """Return the place of a domain.

    Args:
        dataset: The data set's name, for messages.
        domain: The domain.
        source: Names the data-dir.
        domains: All domains.
        finder: Returns the place of a domain below a folder; None if it is missing.
        layouts: The expected layouts, for messages; ``<domain>`` stands for the domain.

    Returns:
        An absolute path.

    Raises:
        DataError: If the domain is unknown or absent, or there is no data-dir.
    """
    if domain not in domains:
        raise DataError(f"{dataset} has no domain {domain}; allowed are {', '.join(domains)}")
    if source.data_dir is None:
        raise DataError(f"{dataset} needs the key data-dir: a folder with {layouts}")
    root = source.data_dir.absolute()
    files.check_data_dir(root)
    with files.reading(root):
        place = finder(root, domain)
        domains_there = [] if place else [known for known in domains if finder(root, known)]
    if place is None:
        raise DataError(
            f"{domain} not found in {shown(root)}; looked for {layouts.replace('<domain>', domain)}\n"
            f"Domains of {dataset} there: {', '.join(domains_there) or 'none'}"
        )
    return place


def children(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the entries of ``folder`` with the given lower-case names, in their order and any letter case."""
    if not folder.is_dir():
        return []
    matches = [path for path in folder.iterdir() if key(path.name) in names]
    for path in matches:
        presence.check(path)
    return sorted(matches, key=lambda path: (names.index(key(path.name)), path.name))


def places(root: Path, *levels: Sequence[str]) -> list[Path]:
    """Return ``root`` and the folders below it along optional ``levels`` of lower-case names."""
    folders = [root]
    for names in levels:
        folders += [path for base in folders for path in children(base, names) if path.is_dir()]
    return folders


def first_file(root: Path, levels: Sequence[Sequence[str]], names: Sequence[str]) -> Path | None:
    """Return the first file of these names in the folders of :func:`places`, None if there is none."""
    bases = places(root, *levels)
    return next((path for name in names for base in bases if (path := base / name).is_file()), None)


def find_plain(
    data_dir: Path, domain: str, split: Split, classes: tuple[str, ...], *, stated: bool = True, masks: bool = False
) -> ImageFiles:
    """Find one domain and split in the layouts of any data set and of a real node's folder.

    Args:
        data_dir: Holds ``<domain>_<split>.npz``, or ``<domain>/<split>/<class>/*``, with masks
            ``<domain>/<split>/images/*`` and ``masks/*``.
        domain: Name of the domain.
        split: Which split.
        classes: Class names; a label is an index into them.
        stated: Somebody stated their order.
        masks: Images have masks.

    Raises:
        DataError: If both are missing.
    """
    files.check_data_dir(data_dir)
    with files.reading(data_dir.absolute()):
        place = layout.find_domain(data_dir, domain, split)
    if place is None:
        raise files.absent(data_dir, domain, split)
    if place.is_dir() and masks:
        return list_outlined(place, len(classes))
    if place.is_dir():
        return list_folders(place, classes, complete=False)
    return npz_arrays(place, classes, stated=stated, masks=masks)


def list_outlined(folder: Path, classes: int) -> Listing:
    """Return the images of a folder with their masks (:func:`fedshift_datasets.io.masks.pairs`), by name.

    Raises:
        DataError: If there are none.
    """
    with files.reading(folder.absolute()):
        found = outlines.pairs(folder.absolute())
    if not found:
        raise DataError(f"{shown(folder.absolute())}: no images found; expected {outlines.LAYOUTS}")
    names, masks = zip(*found, strict=True)
    return Listing(Files(names, masks, classes), np.zeros(len(names), np.int64))


def npz_arrays(path: Path, classes: tuple[str, ...], *, stated: bool = True, masks: bool = False) -> Arrays:
    """Return the images of an npz file; its labels are read and checked now, its images later.

    Args:
        path: The file.
        classes: The classes of the run.
        stated: Somebody stated their order.
        masks: Images have masks, which are read later too.

    Raises:
        DataError: If the file is broken, or its labels are no labels of these classes
        (:mod:`fedshift_datasets.io.npz`).
    """
    arrays = npz.load(path, ("y", npz.GROUPS))
    y, own, where = arrays["y"], arrays.get(npz.KEY), str(path.absolute())
    npz.check_integers(y, where)
    labels = npz.of_run(y, own, where=where, classes=classes, stated=stated)
    check_range(labels.astype(np.int64), len(classes), where)
    mark = "" if own is None else f"labels {hashlib.sha256(labels.tobytes()).hexdigest()}"
    mark += " masks, spacing" * masks
    reading_it = partial(files.read_npz, path, classes=classes, stated=stated, masks=masks)
    return Arrays((path,), reading_it, mark, npz.groups(arrays.get(npz.GROUPS), len(labels), where))


def list_folders(
    folder: Path,
    classes: tuple[str, ...],
    *,
    aliases: Mapping[str, str] | None = None,
    others: Collection[str] = (),
    complete: bool = True,
) -> Listing:
    """Return the images of ``<folder>/<class>/*``, by class as in ``classes``, then by file name.

    A warning names files of other suffixes.

    Args:
        folder: The folder of one domain, or of one split of it.
        classes: Class names; a label is an index into them.
        aliases: Class name by a further, lower-case name of its folder.
        others: Lower-case names of folders to ignore.
        complete: Every class must have an image; otherwise at least one of them.

    Raises:
        DataError: If a folder is no class, images are missing, or a class folder has files of other suffixes alone.
    """
    where = folder.absolute()
    names: list[str] = []
    labels: list[int] = []
    ignored: list[str] = []
    with files.reading(where):
        for label, sub in files.class_folders(where, classes, aliases=aliases, others=others):
            images, left, _ = layout.class_folder(sub)
            names += [f"{sub}/{name}" for name in images]
            labels += [label] * len(images)
            ignored += left
    pictures.warn_of_ignored(where, pictures.not_taken(ignored))
    _check_classes(np.array(labels, np.int64), classes, where, "<class>", complete=complete)
    return Listing(Files(names), np.array(labels, np.int64))


def list_tar(path: Path, domain_names: Collection[str], classes: tuple[str, ...]) -> Listing:
    """List the members ``<domain>/<class>/<file>`` of an uncompressed tar, by class, then by file name.

    Only the headers are read. A warning names members of other suffixes. Where a member is there twice, the
    later one counts, as in unpacking.

    Args:
        path: The tar.
        domain_names: Lower-case names that the domain's folder may bear.
        classes: Class names; a label is an index into them.

    Raises:
        DataError: If the tar is compressed, cut short or damaged, a member is out of place, or a class has no image.
    """
    where = path.absolute()
    with files.reading(where):
        about = where.stat()
    state = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return _listed(where, state, frozenset(domain_names), classes)


@functools.lru_cache(maxsize=32)  # a run asks for each several times, and reading 10,000 headers takes a second
def _listed(where: Path, state: tuple[int, ...], domain_names: frozenset[str], classes: tuple[str, ...]) -> Listing:
    items: dict[tuple[int, str], Item] = {}
    members = [(member, PurePosixPath(member.name)) for member in _members(where) if member.isfile()]
    for member, name in members:
        if not pictures.is_image_name(name.name) or any(map(pictures.is_passed_over, name.parts)):
            continue
        if len(name.parts) < 3 or key(name.parts[-3]) not in domain_names or member.issparse():
            raise DataError(
                f"{shown(where)}: member {shown(member.name)}; allowed are <domain>/<class>/<file> of this domain"
            )
        label = files.label_of(name.parts[-2], classes, {})
        if label is None:
            raise DataError(
                f"{shown(where)}: member {shown(member.name)} is of no class; allowed are {', '.join(classes)}"
            )
        items[label, name.name] = Item(where, member.name, member.offset_data, member.size)
    # Only those in class folders, as in folders: a list next to them is not an ignored image.
    pictures.warn_of_ignored(where, pictures.not_taken(name.name for _, name in members if len(name.parts) > 2))
    ordered = sorted(items)
    labels = np.array([label for label, _ in ordered], np.int64)
    _check_classes(labels, classes, where, "<domain>/<class>", complete=True)
    return Listing(tuple(items[key] for key in ordered), labels)


def _members(path: Path) -> list[tarfile.TarInfo]:
    """Return the headers of a tar; tarfile itself accepts a truncated or damaged one."""
    with files.reading(path), path.open("rb") as file:
        start = file.read(6)
        kind = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
        if kind:
            raise DataError(f"{shown(path)}: compressed with {kind}; allowed is an uncompressed tar, or its folders")
        file.seek(0)
        members: list[tarfile.TarInfo] = []
        with tarfile.open(fileobj=file, mode="r:") as archive:
            at = -1
            for member in archive:
                if archive.offset <= at:  # a negative size would send tarfile into an endless loop
                    raise DataError(f"{shown(path)}: damaged after {plural(len(members), 'member')}")
                at = archive.offset
                members.append(member)
            file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"{shown(path)}: cut short or damaged after {plural(len(members), 'member')}")
    return members


def _check_classes(labels: Indices, classes: tuple[str, ...], place: Path, pattern: str, *, complete: bool) -> None:
    where = shown(place)
    empty = [name for name, count in class_counts(labels, classes).items() if count == 0]
    if len(empty) == len(classes):
        raise DataError(f"{where}: no images found; expected {pattern}/*{{{','.join(pictures.SUFFIXES)}}}")
    if complete and empty:
        raise DataError(
            f"{where}: images of {plural(len(classes) - len(empty), 'class', 'classes')}, expected {len(classes)}; "
            f"none of {', '.join(empty)} in {pattern}/"
        )


def class_counts(labels: Indices, classes: tuple[str, ...]) -> dict[str, int]:
    """Return the number of labels of every class, by its name."""
    counts = np.bincount(labels, minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}


def compare_counts(counts: Mapping[str, int], published: Mapping[str, int]) -> str | None:
    """Return a line on numbers of images that differ from the published ones; None if all agree.

    Args:
        counts: Number of images by name (of a domain, a split or a class); a missing name has none.
        published: The published numbers; other names are not compared.

    Returns:
        One line, for example ``dog: 180 of 189 images, 9 missing; horse: 201 of 199 images, 2 too many``;
        None if all agree.
    """
    notes = []
    for name, expected in published.items():
        count = counts.get(name, 0)
        if count < expected:
            notes.append(f"{name}: {count} of {plural(expected, 'image')}, {expected - count} missing")
        elif count > expected:
            notes.append(f"{name}: {count} of {plural(expected, 'image')}, {count - expected} too many")
    return "; ".join(notes) or None


def split_by_tens(listing: Listing, split: Split) -> Listing:
    """Return one split of a domain by F2DC's rule: the last two of every ten images are test."""
    test = np.arange(len(listing)) % 10 >= 8
    return listing.select(np.flatnonzero(test if split == "test" else ~test))
