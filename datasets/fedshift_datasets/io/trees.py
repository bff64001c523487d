"""Lists a domain without decoding it: class folders, uncompressed tars, and missing images."""

import hashlib
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_core.same_names import key
from fedshift_datasets.arrays import Indices
from fedshift_datasets.base import Source, Split, check_range
from fedshift_datasets.io import layout, looks, npz, pictures, presence, table
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
        finder: Returns the place of a domain below an absolute folder; None if it is missing.
        layouts: The expected layouts, for messages; ``<domain>`` stands for the domain.

    Raises:
        DataError: If the domain is unknown or absent, or there is no data-dir.
    """
    if domain not in domains:
        raise DataError(f"{dataset} has no domain {domain}; allowed are {', '.join(domains)}")
    if source.data_dir is None:
        raise DataError(f"{dataset} needs the key data-dir: a folder with {layouts}")
    root = source.data_dir.absolute()
    layout.check_data_dir(root)
    with presence.reading(root):
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
    matches = [path for path in folder.iterdir() if key(path.name) in names] if folder.is_dir() else []
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
    layout.check_data_dir(data_dir)
    root = data_dir.absolute()
    with presence.reading(root):
        place = layout.find_domain(data_dir, domain, split)
    if place is None:
        raise DataError(
            f"{domain} {split} not found in {shown(root)}: neither {domain}_{split}.npz nor {domain}/{split}/<class>/\n"
            f"Domains with a {split} split there: {presence.listed(_domains_in(root, split)) or 'none'}"
        )
    if not place.is_dir():
        return npz_arrays(place, classes, stated=stated, masks=masks)
    return list_outlined(place, len(classes)) if masks else list_folders(place, classes, complete=False)


def _domains_in(root: Path, split: Split) -> list[str]:
    """Return the sorted names of all domains that a folder has in a plain layout."""
    with presence.reading(root):
        packed = {name for name, named in layout.all_archives(root).values() if named == split}
        return sorted(
            packed | {folder.name for folder in layout.folders_in(root) if split in layout.split_folders(folder)}
        )


def list_outlined(folder: Path, classes: int) -> Listing:
    """Return the images of a folder with their masks (:func:`fedshift_datasets.io.masks.pairs`), by name.

    Raises:
        DataError: If there are none.
    """
    with presence.reading(folder.absolute()):
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
    read = partial(npz.read, path, classes=classes, stated=stated, masks=masks)
    groups = npz.groups(arrays.get(npz.GROUPS), len(labels), where)
    return Arrays((path,), read, mark + " masks, spacing" * masks, groups)


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
    with presence.reading(where):
        found = list(layout.class_folders(where, classes, aliases, others))
    names = Files(f"{each.folder}/{name}" for each in found for name in each.images)
    labels = np.array([each.label for each in found for _ in each.images], np.int64)
    pictures.warn_of_ignored(where, (name for each in found for name in each.others))
    _check_classes(labels, classes, where, "<class>", complete=complete)
    return Listing(names, labels)


@looks.remembered(32)  # a run asks for each several times, and reading 10,000 headers takes a second
def list_tar(where: Path, domain_names: tuple[str, ...], classes: tuple[str, ...]) -> Listing:
    """List the members ``<domain>/<class>/<file>`` of an uncompressed tar, by class, then by file name.

    Only the headers are read. A warning names members of other suffixes. Where a member is there twice, the
    later one counts, as in unpacking.

    Args:
        where: The tar.
        domain_names: Lower-case names that the domain's folder may bear.
        classes: Class names; a label is an index into them.

    Raises:
        DataError: If the tar is compressed, cut short or damaged, a member is out of place, or a class has no image.
    """
    items: dict[tuple[int, str], Item] = {}
    members = [(member, PurePosixPath(member.name)) for member in _members(where) if member.isfile()]
    for member, name in members:
        if not pictures.is_image_name(name.name) or any(map(pictures.is_passed_over, name.parts)):
            continue
        text = f"{shown(where)}: member {shown(member.name)}"
        if len(name.parts) < 3 or key(name.parts[-3]) not in domain_names or member.issparse():
            raise DataError(f"{text}; allowed are <domain>/<class>/<file> of this domain")
        label = layout.label_of(name.parts[-2], classes)
        if label is None:
            raise DataError(f"{text} is of no class; allowed are {', '.join(classes)}")
        items[label, name.name] = Item(str(where), member.name, member.offset_data, member.size)
    # Only those in class folders, as in folders: a list next to them is not an ignored image.
    pictures.warn_of_ignored(where, (name.name for _, name in members if len(name.parts) > 2))
    ordered = sorted(items)
    labels = np.array([label for label, _ in ordered], np.int64)
    _check_classes(labels, classes, where, "<domain>/<class>", complete=True)
    return Listing(tuple(items[key] for key in ordered), labels)


def _members(path: Path) -> list[tarfile.TarInfo]:
    """Return the headers of a tar; tarfile itself accepts a truncated or damaged one."""
    with presence.reading(path), path.open("rb") as file:
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
    empty = lacking(labels, classes)
    if len(empty) == len(classes):
        raise DataError(f"{shown(place)}: no images found; expected {pattern}/*{{{','.join(pictures.SUFFIXES)}}}")
    if complete and empty:
        raise DataError(
            f"{shown(place)}: images of {plural(len(classes) - len(empty), 'class', 'classes')}, expected "
            f"{len(classes)}; none of {', '.join(empty)} in {pattern}/"
        )


def lacking(labels: Indices, classes: Sequence[str]) -> list[str]:
    """Return the classes of which there is no label."""
    return [classes[label] for label in np.setdiff1d(range(len(classes)), labels)]


def compared(name: str, count: int, published: int) -> str | None:
    """Return a line on a number of images that is not the published one, ``dog: 180 of 189 images, 9 missing``."""
    off = f"{published - count} missing" if count < published else f"{count - published} too many"
    return None if count == published else f"{name}: {count} of {plural(published, 'image')}, {off}"


def split_by_tens(listing: Listing, split: Split) -> Listing:
    """Return one split of a domain by F2DC's rule: the last two of every ten images are test."""
    test = np.arange(len(listing)) % 10 >= 8
    return listing.select(np.flatnonzero(test if split == "test" else ~test))


@dataclass(frozen=True)
class Tree:
    """A data set that a few words describe: ``<domain>/<class>/*``, or a CSV file that names images and their splits.

    Letter case does not matter; a domain's folder may be an uncompressed tar.

    Attributes:
        name: The data set's name, for messages.
        domains: Its domains.
        classes: Its class names; a label is an index into them.
        layouts: What is looked for, for messages; ``<domain>`` stands for the domain.
        levels: Lower-case names of the folders between data-dir and what is looked for; each level may be left out.
        divide: Returns one split of a domain that comes undivided.
        folders: Lower-case names of the folder of a domain, where it has others than its own.
        archives: Suffixes of tars that stand for the folder of a domain.
        inner: Lower-case names of a folder between domain and classes, which may be left out.
        aliases: Class name by a further, lower-case name of its folder.
        others: Lower-case names of class folders to pass over.
        splits: The folders between domain and classes that hold each split; the first is called like the split and
            has every class. Empty where all domains come undivided.
        whole: The folder next to them that holds the images of a domain that comes undivided.
        row: Makes a row of the CSV file, with its split, of a line and its cells.
        tables: Names of that file; the first that is there counts.
        columns: Lower-case names of the columns that it must have.
        images: Folders next to it for the images; the first that is there, else its own folder.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    layouts: str
    levels: tuple[tuple[str, ...], ...] = ()
    divide: Callable[[Listing, Split], Listing] = split_by_tens
    folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    archives: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    others: Collection[str] = ()
    splits: Mapping[Split, tuple[str, ...]] = field(default_factory=dict)
    whole: str = ""
    row: table.Make | None = None
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    images: tuple[str, ...] = ()

    def find(self, domain: str, split: Split, source: Source) -> Listing:
        """List one domain and split.

        Raises:
            DataError: If the domain is unknown, absent or incomplete, or not as published.
        """
        place = locate(self.name, domain, source, domains=self.domains, finder=self._place, layouts=self.layouts)
        if self.row is not None:
            folder = next((path for name in self.images if (path := place.parent / name).is_dir()), place.parent)
            return table.listing(place, table.read(place, self.columns, self.row), domain, split, folder, self.classes)
        if not place.is_dir():
            return self.divide(list_tar(place, (domain,), self.classes), split)
        names = [name for folders in self.splits.values() for name in folders]
        parts = {path.name.lower(): path for path in children(place, [*names, self.whole])} if names else {}
        if not parts.keys() & self.splits.keys():
            return self.divide(self._list(parts.get(self.whole, place)), split)
        if split not in parts:
            both = " and ".join(self.splits)
            raise DataError(f"{shown(place)}: no folder {split}, only {', '.join(parts)}; expected both {both}")
        listings = [self._list(parts[name], complete=name == split) for name in self.splits[split] if name in parts]
        items = Files(name for listing in listings for name in listing.names)
        joined = Listing(items, np.concatenate([listing.labels for listing in listings]))
        return joined.select(np.argsort(joined.labels, kind="stable"))  # by class

    def _place(self, root: Path, domain: str) -> Path | None:
        if self.tables:
            return first_file(root, self.levels, self.tables)
        bases, tars = places(root, *self.levels), [f"{domain}{suffix}" for suffix in self.archives]
        names = self.folders.get(domain, (domain,))
        folders = [path for base in bases for path in children(base, names) if path.is_dir()]
        files = [path for base in bases for path in children(base, tars) if path.is_file()]
        return next((places(path, self.inner)[-1] for path in (*folders, *files)), None)

    def _list(self, folder: Path, *, complete: bool = True) -> Listing:
        return list_folders(folder, self.classes, aliases=self.aliases, others=self.others, complete=complete)
