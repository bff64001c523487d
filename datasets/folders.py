"""Data set `folders`: a user's own images, in folders by site and class or named by a table.

| layout | below data-dir |
|---|---|
| classes | `<site>/<class>/*`; the split follows from the names (:mod:`datasets.stratified`) |
| splits | `<site>/{train,test}/<class>/*` |
| table | `labels.csv`, or `dataset.labels`: columns file, label, domain; split, patient or group where there are any |
| npz | `<site>_{train,test}.npz`, as `fedshift export` writes them; the classes must be stated |

A table, where there is one, is all that counts. Else each site may have another layout. In a real node's data-dir the
level `<site>/` may be left out, and so may the table's column domain.
"""

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from datasets import files, pictures, stratified, table
from datasets.base import SPLITS, Names, Source, Split
from datasets.listing import Arrays, Found, Item, Listing
from fedshift_wire.bounds import MOST_NAME, as_found, shown
from fedshift_wire.errors import DataError

NAME = "folders"
TITLE = "Your own images: class folders by site, or labels.csv"
SIZE = 64  # pixels, where dataset.size says nothing
LABELS = "labels.csv"
LAYOUTS = f"<site>/<class>/*, <site>/{{train,test}}/<class>/* or {LABELS}"
MOST_CLASSES, MOST_DOMAINS = 2000, 1000  # they stand in config.yaml and in each message to a node
_MARKS = frozenset(" ._-+()&")

log = logging.getLogger("fedshift")


@dataclass(frozen=True, slots=True)
class Picture:
    """One image file of a site.

    Attributes:
        path: Where it is, absolute.
        name: Its path below the site's folder, with the class as the run spells it: what the split goes by.
        label: Index of its class.
        split: Its split: as given, or drawn.
        group: What it stays together with; empty for nothing.
    """

    path: Path
    name: str
    label: int
    split: Split
    group: str = ""


@dataclass(frozen=True)
class Site:
    """Everything that was found of one domain.

    Attributes:
        domain: Its name.
        layout: ``classes``, ``splits``, ``table`` or ``npz``.
        pictures: Its images, by class, then by name.
        archives: Of the layout npz the file by split; its images are not looked at.
        not_taken: Files of other suffixes in its class folders.
        notes: What could not be as it should, in a line each.
    """

    domain: str
    layout: str
    pictures: tuple[Picture, ...] = ()
    archives: tuple[tuple[Split, Path], ...] = ()
    not_taken: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that it has."""
        found = {picture.split for picture in self.pictures} | {split for split, _ in self.archives}
        return tuple(split for split in SPLITS if split in found)


@dataclass(frozen=True)
class Survey:
    """Everything that was found in a data-dir.

    Attributes:
        classes: The classes, in the order of labels.
        sites: The sites, in the order of domains.
        beside: What else lies right in data-dir and is neither hidden nor a by-product: no site.
    """

    classes: tuple[str, ...]
    sites: tuple[Site, ...]
    beside: tuple[Path, ...]

    def files(self, domain: str, split: Split, kind: str) -> tuple[Path, ...]:
        """Return the image files of one class in one domain and split."""
        wanted = self.classes.index(kind), split
        site = next(site for site in self.sites if site.domain == domain)
        return tuple(picture.path for picture in site.pictures if (picture.label, picture.split) == wanted)


def check_domain(name: str) -> None:
    """Refuse a site's name that could not stand in a file's name, on a command line, or in the name of a number.

    Raises:
        ValueError: With what is allowed.
    """
    fits = name and all(letter.isalnum() or letter in _MARKS for letter in name) and name == name.strip(" ")
    if not fits or name[0] in ".-" or len(name.encode()) > MOST_NAME:
        raise ValueError(
            f"{as_found(name)}; allowed are letters, digits, inner spaces and ._-+()& in a name of at most {MOST_NAME} "
            "bytes that begins with neither . nor -"
        )


def check_class(name: str) -> None:
    """Refuse a class's name that could not be shown.

    Raises:
        ValueError: With what is allowed.
    """
    if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
        raise ValueError(f"{as_found(name)}; allowed are names that print, of at most {MOST_NAME} characters")


def names(source: Source, domains: tuple[str, ...] = ()) -> Names:
    """Return the domains and classes that a data-dir holds, by name.

    Args:
        source: Where the images are; ``classes`` are returned as they are, if there are any.
        domains: Those of the run, if they are stated; then the classes are theirs alone.

    Raises:
        DataError: If there are none, or a name cannot be one.
    """
    root = _root(source)
    with files.reading(root):
        rows = _rows(source)
        if rows is not None:
            there = sorted({row.domain for row in rows})
            known = domains or tuple(there)
            if missing := [name for name in known if name not in there]:
                raise _absent(missing[0], source, own=False)
            kinds = {row.label for row in rows if row.domain in set(known)}
        else:
            known = domains or _sites(root)
            if missing := [name for name in known if not (root / name).is_dir() and not _archives(root, name)]:
                raise _absent(missing[0], source, own=False)
            kinds = {kind for domain in known for kind in _class_names(root, domain)}
    classes = source.classes or _ordered(kinds)
    _check_names(root, known, classes)
    return Names(known, classes)


def survey(source: Source, domains: tuple[str, ...] = ()) -> Survey:
    """Return everything that a data-dir holds.

    Args:
        source: Where the images are; without ``classes`` they are those that are found.
        domains: Those of the run; empty for all.

    Raises:
        DataError: As :func:`names` and :func:`find`.
    """
    found = names(source, domains)
    whole = Source(source.data_dir, False, source.seed, found.classes, source.labels, source.test_share)
    sites = [_site(domain, whole, own=False) for domain in found.domains]
    for domain, site in zip(found.domains, sites, strict=True):
        if site is None:
            raise _absent(domain, whole, own=False)
    root = _root(source)
    used = {root / domain for domain in found.domains} | {path for site in sites if site for _, path in site.archives}
    beside = [path for path in files.visible(root) if path not in used and path != _table_path(source)]
    taken = [path for path in beside if path.is_dir() or pictures.not_taken([path.name]) or _is_image(path)]
    return Survey(found.classes, tuple(site for site in sites if site), tuple(taken))


def find(domain: str, split: Split, source: Source) -> Found:
    """Find one domain and split below data-dir.

    Raises:
        DataError: If it is not there, a class folder or a row of the table is of no class of the run, or no image is
            taken.
    """
    found = _find(domain, split, source, own=False)
    if found is None:
        raise DataError(f"{shown(_root(source))}: {domain} has no {split} images; allowed are both splits, or none")
    return found


def find_own(domain: str, split: Split, source: Source) -> Found | None:
    """Find one split in a real node's own folder; None if that has no such split.

    Raises:
        DataError: As :func:`find`.
    """
    return _find(domain, split, source, own=True)


def _find(domain: str, split: Split, source: Source, *, own: bool) -> Found | None:
    site = _site(domain, source, own=own)
    if site is None:
        raise _absent(domain, source, own=own)
    if split not in site.splits:
        return None
    for name, path in site.archives:
        if name == split:
            return Arrays((path,), partial(files.read_npz, path, classes=source.classes, size=None))
    for note in site.notes:
        _warn(note)
    taken = [picture for picture in site.pictures if picture.split == split]
    pictures.tell_not_taken(_root(source) / domain, pictures.not_taken(path.name for path in site.not_taken))
    items = tuple(Item(picture.path, str(picture.path)) for picture in taken)
    return Listing(items, np.array([picture.label for picture in taken], np.int64))


@functools.cache
def _warn(text: str) -> None:
    """Say something once in a process."""
    log.warning("%s", text)


def _root(source: Source) -> Path:
    """Return the absolute data-dir.

    Raises:
        DataError: If there is none.
    """
    if source.data_dir is None:
        raise DataError(f"{NAME} needs the key data-dir: a folder with {LAYOUTS}")
    root = source.data_dir.absolute()
    files.check_data_dir(root)
    return root


def _site(domain: str, source: Source, *, own: bool) -> Site | None:
    """Return what there is of a domain, None if nothing."""
    root = _root(source)
    with files.reading(root):
        rows = _rows(source)
        if rows is not None:
            return _from_table(domain, rows, source, own=own)
        if archives := _archives(root, domain):
            return Site(domain, "npz", archives=archives)
        folder = _folder(root, domain, source.classes, own=own)
        return None if folder is None else _from_folder(domain, folder, source)


def _archives(root: Path, domain: str) -> tuple[tuple[Split, Path], ...]:
    paths = ((split, root / f"{domain}_{split}.npz") for split in SPLITS)
    return tuple((split, path) for split, path in paths if path.is_file())


# --- a table ---------------------------------------------------------------------------------------


def _table_path(source: Source) -> Path:
    return _root(source) / (source.labels or LABELS)


def _rows(source: Source) -> tuple[table.Row, ...] | None:
    """Return the rows of the table, None where there is none.

    Raises:
        DataError: If there is none though it is named, or it cannot be read.
    """
    path = _table_path(source)
    if not path.is_file():
        if source.labels:
            raise DataError(f"dataset.labels: there is no file {shown(path)}")
        return None
    return table.read(path, table.COLUMNS, table.labelled)


def _from_table(domain: str, rows: Sequence[table.Row], source: Source, *, own: bool) -> Site | None:
    path = _table_path(source)
    if any(not row.domain for row in rows) and not own:
        raise DataError(f"{shown(path)} line 1: no column domain; only a real node's own table may leave it out")
    mine = [row for row in rows if row.domain == domain or not row.domain]
    if not mine:
        return None
    given = {row.split is not None for row in mine}
    if len(given) > 1:
        first = next(row for row in mine if row.split is None)
        raise DataError(f"{shown(path)} line {first.line}: split is empty; other rows of {domain} have one")
    found = [_picture(row, path, domain, source.classes) for row in mine]
    return _split_up(domain, "table", found, source, drawn=given == {False})


def _picture(row: table.Row, path: Path, domain: str, classes: tuple[str, ...]) -> Picture:
    label = files.label_of(row.label, classes, {})
    where = path.parent / row.file
    if label is None:
        raise DataError(
            f"{shown(path)} line {row.line}: label {as_found(row.label)}; the classes are {', '.join(classes)}"
        )
    if not _is_image(where):
        taken = f"; taken are {', '.join(pictures.SUFFIXES)}" if not pictures.is_image_name(where.name) else ""
        raise DataError(f"{shown(path)} line {row.line}: no image file {shown(where)}{taken}")
    parts = PurePosixPath(row.file).parts
    below = parts[1:] if len(parts) > 1 and parts[0].casefold() == domain.casefold() else parts
    return Picture(where, "/".join(below), label, row.split or "train", row.group)


def _is_image(path: Path) -> bool:
    return pictures.is_image_name(path.name) and path.is_file()


# --- folders ---------------------------------------------------------------------------------------


def _folder(root: Path, domain: str, classes: tuple[str, ...], *, own: bool) -> Path | None:
    """Return a domain's folder; of a real node it may be data-dir itself."""
    if (root / domain).is_dir():
        return root / domain
    if own and any(_is_split(sub) or files.label_of(sub.name, classes, {}) is not None for sub in _folders(root)):
        return root
    return None


def _from_folder(domain: str, folder: Path, source: Source) -> Site:
    splits = _split_folders(folder)
    found: list[Picture] = []
    left: list[Path] = []
    notes: list[str] = []
    for split, place in splits or [(SPLITS[0], folder)]:
        for label, sub in files.class_folders(place, source.classes):
            inside = files.visible(sub)
            images = [path for path in inside if _is_image(path)]
            others = [path for path in inside if path.is_file() and pictures.not_taken([path.name])]
            if others and not images:
                counts = pictures.not_taken(path.name for path in others)
                raise DataError(f"{shown(sub)}: no images found; {pictures.describe(counts)}")
            found += [Picture(path, f"{source.classes[label]}/{path.name}", label, split) for path in images]
            left += others
            notes += [f"{shown(path)}: a folder in a class folder is not looked into" for path in _folders(sub)]
    if not found:
        raise DataError(f"{shown(folder)}: no images found; expected <class>/*{{{','.join(pictures.SUFFIXES)}}}")
    layout = "splits" if splits else "classes"
    return _split_up(domain, layout, found, source, drawn=not splits, left=left, notes=notes)


def _split_up(
    domain: str, layout: str, found: Sequence[Picture], source: Source,
    *, drawn: bool, left: Sequence[Path] = (), notes: Sequence[str] = (),
) -> Site:  # fmt: skip
    """Return a site with its images in order, its split drawn where none is given."""
    ordered = sorted(found, key=lambda picture: (picture.label, picture.name))
    labels = [picture.label for picture in ordered]
    told = list(notes)
    where = f"{shown(_root(source))}: {domain}"
    if drawn:
        units = [f"/{picture.group}" if picture.group else picture.name for picture in ordered]  # no name starts so
        test = stratified.test_part(labels, units, source.test_share, source.seed)
        ordered = [
            Picture(one.path, one.name, one.label, SPLITS[int(is_test)], one.group)
            for one, is_test in zip(ordered, test.tolist(), strict=True)
        ]
        for label, in_test in stratified.uncovered(labels, test):
            sides = ("train", "test") if in_test else ("test", "train")
            told.append(
                f"{where}: all {labels.count(label)} images of class {source.classes[label]} are in {sides[0]}, none "
                f"is in {sides[1]}: they are one image, or their groups allow no other split"
            )
    both = _on_both_sides(ordered)
    if both:
        told.append(f"{where}: {len(both)} groups are in train and in test, {as_found(both[0])} among them")
    return Site(domain, layout, tuple(ordered), (), tuple(left), tuple(told))


def _on_both_sides(found: Sequence[Picture]) -> list[str]:
    sides = {(picture.group, picture.split) for picture in found if picture.group}
    return sorted(group for group, count in Counter(group for group, _ in sides).items() if count > 1)


def _folders(folder: Path) -> list[Path]:
    return [path for path in files.visible(folder) if path.is_dir()] if folder.is_dir() else []


def _is_split(folder: Path) -> bool:
    """Tell whether a folder is ``train`` or ``test`` with class folders, not a class of that name."""
    return folder.name.lower() in SPLITS and bool(_folders(folder))


def _split_folders(folder: Path) -> list[tuple[Split, Path]]:
    """Return the split folders of a site; none where its class folders lie right in it.

    Raises:
        DataError: If another folder lies beside them.
    """
    inside = _folders(folder)
    if not any(map(_is_split, inside)):
        return []
    other = next((path for path in inside if path.name.lower() not in SPLITS), None)
    if other is not None:
        raise DataError(
            f"{shown(other)}: lies beside a folder train or test; allowed are these two, with class folders"
        )
    return [(split, path) for split in SPLITS for path in inside if path.name.lower() == split]


def _sites(root: Path) -> tuple[str, ...]:
    """Return the names of the folders that are sites, and of those that npz files name.

    Raises:
        DataError: If a folder has images but no class folders, or there is no site.
    """
    found = {path.name.removesuffix(f"_{split}.npz") for split in SPLITS for path in root.glob(f"*_{split}.npz")}
    for folder in _folders(root):
        inside = _folders(folder)
        places = [sub for top in inside for sub in (_folders(top) if _is_split(top) else [top])]
        if any(_is_image(path) for place in places for path in place.iterdir()):
            found.add(folder.name)
        elif not inside and any(map(_is_image, folder.iterdir())):
            raise DataError(f"{shown(folder)}: images right in it, no class folders; expected {LAYOUTS}")
    if wrong := sorted(name for name in found if name.lower() in SPLITS):
        raise DataError(f"{shown(root)}: {wrong[0]} is no site; expected {LAYOUTS}")
    if not found:
        raise DataError(f"{shown(root)}: no site found; expected {LAYOUTS}")
    return tuple(sorted(found))


def _class_names(root: Path, domain: str) -> set[str]:
    folder = root / domain
    places = [path for _, path in _split_folders(folder)] or [folder]
    return {path.name for place in places for path in _folders(place)}


def _ordered(kinds: set[str]) -> tuple[str, ...]:
    """Return class names in their order; of names that differ in letter case alone the first."""
    first: dict[str, str] = {}
    for kind in sorted(kinds):
        first.setdefault(kind.casefold(), kind)
    return tuple(sorted(first.values()))


def _check_names(root: Path, domains: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse names that cannot be those of domains and classes, too many of them, and too few."""
    if len(domains) > MOST_DOMAINS or len(classes) > MOST_CLASSES:
        raise DataError(
            f"{shown(root)}: {len(domains)} sites with {len(classes)} classes; allowed are {MOST_DOMAINS} and "
            f"{MOST_CLASSES} at most"
        )
    if len(classes) < 2:
        found = ", ".join(map(as_found, classes)) or "none"
        raise DataError(
            f"{shown(root)}: expected at least two classes, found {found}; state dataset.classes, or {LAYOUTS}"
        )
    for kind, known, check in (("site", domains, check_domain), ("class", classes, check_class)):
        for name in known:
            try:
                check(name)
            except ValueError as problem:
                raise DataError(f"{shown(root)}: {kind} {problem}") from None


def _absent(domain: str, source: Source, *, own: bool) -> DataError:
    root, rows = _root(source), _rows(source)
    if rows is not None:
        there = files.listed(sorted({row.domain for row in rows}))
        return DataError(f"{shown(_table_path(source))}: no row of {domain}; its domains are {there}")
    start = f"[{domain}/]" if own else f"{domain}/"
    return DataError(
        f"{domain} not found in {shown(root)}; looked for {start}<class>/*, {start}{{train,test}}/<class>/*, {LABELS} "
        f"and {domain}_train.npz\nFolders there: {files.listed(path.name for path in _folders(root)) or 'none'}"
    )
