"""Lists a folder by name: folders, split folders, npz files; an unreadable entry is an error, not absent."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import OWN_SPLITS, Split
from fedshift_datasets.io import pictures, presence, split_names

LABELS = "labels.csv"
LAYOUTS = f"<site>/<class>/*, <site>/{{train,validation,test}}/<class>/* or {LABELS}"
DEEPER = f"list the images in {LABELS}, with a column patient where a folder is one"


def visible(folder: Path) -> list[Path]:
    """Return the entries of a folder by name, without hidden ones and by-products."""
    entries = (path for path in folder.iterdir() if not pictures.is_passed_over(path.name))
    return sorted(entries, key=lambda path: path.name)


def divided(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the folders in a folder, and the names of all else, by name and without hidden ones.

    No file is looked at for it.

    Raises:
        DataError: As :func:`is_folder`, of a link.
    """
    folders: list[Path] = []
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if pictures.is_passed_over(entry.name):
                continue
            # Of a link, Path says it: one to itself is no folder, and no error.
            if (folder / entry.name).is_dir() if entry.is_symlink() else entry.is_dir():
                folders.append(folder / entry.name)
                continue
            if entry.is_symlink() and not pictures.is_image_name(entry.name):
                is_folder(folder / entry.name)
            names.append(entry.name)
    return sorted(folders, key=lambda path: path.name), sorted(names)


def class_folder(folder: Path) -> tuple[list[str], list[str], list[Path]]:
    """Return the names of the images of a class folder, of its other files, and its folders, which have no image.

    Raises:
        DataError: If images lie in folders below, or it has other files alone.
    """
    presence.check(folder)
    folders, names = divided(folder)
    images = list(filter(pictures.is_image_name, names))
    others = [name for name in names if pictures.not_taken([name])] if len(images) < len(names) else []
    if folders and (deeper := [path for path in files_below(folders) if pictures.is_image_name(path.name)]):
        raise DataError(
            f"{shown(folder)}: {plural(len(images), 'image')} right in this class folder and "
            f"{len(deeper):d} in folders below, such as {shown(deeper[0].relative_to(folder))}; expected {LAYOUTS}: "
            f"{DEEPER}"
        )
    if others and not images:
        raise DataError(f"{shown(folder)}: no images found; {pictures.describe(pictures.not_taken(others))}")
    return images, others, folders


def files_below(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files in folders, at any depth, broken links too; a folder that two links lead to counts once.

    Raises:
        DataError: If a folder there cannot be listed.
    """
    parents = {folder.parent.resolve() for folder in folders}
    seen = {place for parent in parents for place in (parent, *parent.parents)}
    waiting = list(folders)
    while waiting:
        folder = waiting.pop(0)
        if (place := folder.resolve()) in seen:  # a link, as to a folder above
            continue
        seen.add(place)
        presence.check(folder)
        inside, names = divided(folder)
        yield from (folder / name for name in names)
        waiting += inside


#: Returns the entries of a folder by the key of their names.
ByKey = Callable[[Path], Mapping[str, Sequence[Path]]]


def by_key(folder: Path) -> Mapping[str, Sequence[Path]]:
    """Return the entries of a folder by the key of their names (:mod:`fedshift_core.same_names`), without hidden ones.

    Entries of one key are in the order of their names.
    """
    entries: dict[str, list[Path]] = {}
    for path in visible(folder):
        entries.setdefault(same_names.key(path.name), []).append(path)
    return entries


def named(folder: Path, name: str, entries: ByKey = by_key) -> Path:
    """Return the entry of a folder with a name, or with another spelling of it.

    Args:
        folder: The folder; it may be missing.
        name: The name.
        entries: Lists a folder, for callers that ask for many names.

    Raises:
        DataError: If no entry has that spelling and two are the same name, see :mod:`fedshift_core.same_names`.
    """
    if (folder / name).exists() or not folder.is_dir():
        return folder / name
    matches = entries(folder).get(same_names.key(name), ())
    if len(matches) > 1:
        first, second = (shown(path.name, MOST_NAME) for path in matches[:2])
        raise DataError(f"{shown(folder.absolute())}: {first} and {second} are one name; keep one of them")
    return matches[0] if matches else folder / name


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder by name, without hidden ones; empty if the folder is missing.

    Raises:
        DataError: If an entry that may be a folder cannot be read.
    """
    if not folder.is_dir():
        presence.check(folder)
        return []
    return [path for path in visible(folder) if is_folder(path)]


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder.

    Raises:
        DataError: If it cannot be read, or is neither a folder, a file nor an image by name.
    """
    if path.is_dir():
        return True
    if not path.is_file() and not pictures.is_image_name(path.name) and not presence.is_stray(path):
        presence.check(path)
    return False


def find_domain(data_dir: Path, domain: str, split: Split) -> Path | None:
    """Return the npz or else the image folder of one domain and split, None if neither exists.

    Usual spellings of the split count as its name (:mod:`fedshift_datasets.io.split_names`).

    Raises:
        DataError: If it cannot be read, or two have the split's name.
    """
    if npz := archives(data_dir, domain).get(split):
        return npz
    site = named(data_dir, domain)
    folder = site / split
    return folder if folder.is_dir() else split_folders(site).get(split)


def archives(data_dir: Path, domain: str) -> dict[Split, Path]:
    """Return the npz files of a domain, ``<domain>_<split>.npz``, by split.

    Raises:
        DataError: If one cannot be read, or two have the same split's name.
    """
    matching = {path: split for path, (name, split) in all_archives(data_dir).items() if same_names.same(name, domain)}
    return _by_split(matching)


def all_archives(data_dir: Path) -> dict[Path, tuple[str, Split]]:
    """Return the npz files in a folder named ``<domain>_<split>.npz``, each with both names."""
    if not data_dir.is_dir():
        return {}
    names_of = {path: split_names.named(path.stem) for path in visible(data_dir) if path.suffix == ".npz"}
    return {path: names for path, names in names_of.items() if names and not path.is_dir()}


def split_folders(folder: Path) -> dict[Split, Path]:
    """Return the folders in a folder with names of splits, by split.

    Raises:
        DataError: If one cannot be read, or two have the same split's name.
    """
    named = {path: split_names.split_of(path.name) for path in folders_in(folder)}
    return _by_split({path: split for path, split in named.items() if split})


def _by_split(named: Mapping[Path, Split]) -> dict[Split, Path]:
    by_split: dict[Split, Path] = {}
    for path, split in named.items():
        presence.check(path)
        if split in by_split:
            problem = f"{shown(by_split[split].name)} and {shown(path.name)} both name"
            raise DataError(f"{shown(path.parent)}: {problem} the split {split}; allowed is one of them")
        by_split[split] = path
    return {split: by_split[split] for split in OWN_SPLITS if split in by_split}
