"""Says what lies where: folders, class folders with their images, split folders and npz files, by their names.

An unreadable entry is an error, not absent.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import OWN_SPLITS, Split
from fedshift_datasets.io import pictures, presence

LABELS = "labels.csv"
LAYOUTS = f"<site>/<class>/*, <site>/{{train,validation,test}}/<class>/* or {LABELS}"
DEEPER = f"list the images in {LABELS}, with a column patient where a folder is one"
#: Usual spellings of a split: names of folders and npz files, and the column split of a table.
_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "validate", "validating"), "validation"),
    **dict.fromkeys(("dev", "devel", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tests", "tst"), "test"),
}
#: Words that may accompany it: ``train_set``, ``images-test``, ``validation data``.
_FILLERS = frozenset({"set", "sets", "split", "data", "dataset", "images", "image", "imgs", "img", "folder", "part"})
_JOINED = ("", "set", "split", "data", "images", "imgs")  # trainset, testdata
_YEAR = re.compile(r"(?:19|20)\d\d")  # train2017
_APART = re.compile(r"[\s._-]+")

#: For messages.
USUAL = f"{', '.join(OWN_SPLITS)} and their usual spellings (Training, val, valid, dev, test_set, ...)"


class ClassFolder(NamedTuple):
    """A class folder.

    Attributes:
        label: The label of its class.
        folder: The folder.
        images: The names of its images.
        others: The names of its files that are no images.
        empty: Folders in it, which have no image.
    """

    label: int
    folder: Path
    images: list[str]
    others: list[str]
    empty: list[Path]


def split_of(name: str) -> Split | None:
    """Return the split of a usual spelling in any letter case; None for other names."""
    words = [word for word in _APART.split(_YEAR.sub("", same_names.key(name))) if word and word not in _FILLERS]
    starts = [words[0].removesuffix(end) for end in _JOINED] if len(words) == 1 else ()
    return next((_WORDS[start] for start in starts if start in _WORDS), None)


def parts_of(stem: str) -> tuple[str, Split] | None:
    """Return the site and the split in the stem of an npz file: ``<site>_<split>``."""
    site, _, last = stem.rpartition("_")
    if site and last in OWN_SPLITS:
        return site, _WORDS[last]
    for place, letter in enumerate(stem):
        if letter == "_" and place and (split := split_of(stem[place + 1 :])):
            return stem[:place], split
    return None


def check_data_dir(data_dir: Path) -> None:
    """Raise a :class:`DataError` unless ``data_dir`` is a folder."""
    if why := presence.reason(data_dir):
        raise DataError(f"data-dir {shown(data_dir.absolute())}: cannot be read ({why}); it must be a folder")
    if not data_dir.is_dir():
        kind = "is a file" if data_dir.exists() else "does not exist"
        raise DataError(f"data-dir {shown(data_dir.absolute())} {kind}; it must be a folder with images")


def visible(folder: Path) -> list[Path]:
    """Return the entries of a folder by name, without hidden ones and by-products."""
    return sorted(path for path in folder.iterdir() if not pictures.is_passed_over(path.name))


def divided(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the folders in a folder, and the names of all else, by name and without hidden ones.

    No file is looked at for it.

    Raises:
        DataError: As :func:`is_folder`.
    """
    folders: list[Path] = []
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if pictures.is_passed_over(entry.name):
                continue
            if not entry.is_file(follow_symlinks=False) and is_folder(path := folder / entry.name):
                folders.append(path)
            else:
                names.append(entry.name)
    return sorted(folders), sorted(names)


def class_folders(
    folder: Path, classes: Sequence[str], aliases: Mapping[str, str] | None = None, others: Collection[str] = ()
) -> Iterator[ClassFolder]:
    """Yield the class folders in a folder, in the order of the labels.

    Args:
        folder: The folder that holds them.
        classes: Class names; matched by :mod:`fedshift_core.same_names`.
        aliases: Class name by a further, lower-case name of its folder.
        others: Lower-case names of folders to ignore.

    Raises:
        DataError: If a folder is no class, or two are the same class; as :func:`class_folder`.
    """
    folders: dict[int, Path] = {}
    for sub in divided(folder)[0]:
        if same_names.key(sub.name) in others:
            continue
        label = label_of(sub.name, classes, aliases)
        if label is None:
            raise DataError(f"{shown(sub)}: no class of that name; allowed are {', '.join(classes)}")
        if folders.setdefault(label, sub) != sub:
            problem = f"folders {shown(folders[label].name)} and {shown(sub.name)} both name"
            raise DataError(f"{shown(folder)}: {problem} the class {classes[label]}; allowed is one folder per class")
    for label, sub in sorted(folders.items()):
        yield ClassFolder(label, sub, *class_folder(sub))


def label_of(name: str, classes: Sequence[str], aliases: Mapping[str, str] | None = None) -> int | None:
    """Return the label that a folder's name stands for, None if it is no class; see :func:`class_folders`."""
    return same_names.place(name if name in classes else (aliases or {}).get(same_names.key(name), name), classes)


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
    if folder.is_dir():
        return divided(folder)[0]
    presence.check(folder)
    return []


def below(folder: Path) -> list[Path]:
    """Return the folders in a folder, and those in these."""
    inside = folders_in(folder)
    return [*inside, *(sub for place in inside for sub in folders_in(place))]


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder.

    Raises:
        DataError: If it cannot be read, or is neither a folder, a file nor an image by name.
    """
    if not (folder := path.is_dir()) and not path.is_file() and pictures.not_taken([path.name]):
        presence.check(path)
    return folder


def find_domain(data_dir: Path, domain: str, split: Split) -> Path | None:
    """Return the npz or else the image folder of one domain and split, None if neither exists.

    Usual spellings of the split count as its name.

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
    there = all_archives(data_dir).items()
    return _by_split({path: split for path, (name, split) in there if same_names.same(name, domain)})


def all_archives(data_dir: Path) -> dict[Path, tuple[str, Split]]:
    """Return the npz files in a folder named ``<domain>_<split>.npz``, each with both names."""
    if not data_dir.is_dir():
        return {}
    names_of = {path: parts_of(path.stem) for path in visible(data_dir) if path.suffix == ".npz"}
    return {path: names for path, names in names_of.items() if names and not path.is_dir()}


def split_folders(folder: Path) -> dict[Split, Path]:
    """Return the folders in a folder with names of splits, by split.

    Raises:
        DataError: If one cannot be read, or two have the same split's name.
    """
    return _by_split({path: split for path in folders_in(folder) if (split := split_of(path.name))})


def _by_split(named: Mapping[Path, Split]) -> dict[Split, Path]:
    by_split: dict[Split, Path] = {}
    for path, split in named.items():
        presence.check(path)
        if by_split.setdefault(split, path) != path:
            problem = f"{shown(by_split[split].name)} and {shown(path.name)} both name"
            raise DataError(f"{shown(path.parent)}: {problem} the split {split}; allowed is one of them")
    return {split: by_split[split] for split in OWN_SPLITS if split in by_split}
