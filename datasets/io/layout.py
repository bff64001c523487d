"""What lies in a folder by name: folders, split folders, npz files; nothing that cannot be read passes for absent."""

from collections.abc import Mapping
from pathlib import Path

from datasets.base import OWN_SPLITS, Split
from datasets.io import pictures, presence, split_names
from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown


def visible(folder: Path) -> list[Path]:
    """Return what a folder holds, by name, without hidden files."""
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)


def named(folder: Path, name: str) -> Path:
    """Return what a folder holds under a name: of that spelling, else of another one of the same name.

    Raises:
        DataError: If no entry has that spelling and two are the same name, see :mod:`fedshift_core.same_names`.
    """
    if (folder / name).exists() or not folder.is_dir():
        return folder / name
    there = [path for path in visible(folder) if same_names.same(path.name, name)]
    if len(there) > 1:
        first, second = (shown(path.name, MOST_NAME) for path in there[:2])
        raise DataError(f"{shown(folder.absolute())}: {first} and {second} are one name; keep one of them")
    return there[0] if there else folder / name


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name, without hidden ones; none where there is no such folder.

    Raises:
        DataError: If something that may be one cannot be read.
    """
    if not folder.is_dir():
        presence.check(folder)
        return []
    return [path for path in visible(folder) if is_folder(path)]


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder.

    Raises:
        DataError: If that cannot be known, or it is neither folder nor file, and by its name no image.
    """
    if path.is_dir():
        return True
    if not path.is_file() and not pictures.is_image_name(path.name) and not presence.is_stray(path):
        presence.check(path)
    return False


def find_domain(data_dir: Path, domain: str, split: Split) -> Path | None:
    """Return the npz or else the image folder of one domain and split, None if neither exists.

    Usual spellings of the split count as its name (:mod:`datasets.io.split_names`).

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
    there = {path: split for path, (name, split) in all_archives(data_dir).items() if same_names.same(name, domain)}
    return _by_split(there)


def all_archives(data_dir: Path) -> dict[Path, tuple[str, Split]]:
    """Return the npz files right in a folder that are called ``<domain>_<split>.npz``, each with both names."""
    if not data_dir.is_dir():
        return {}
    found = {path: split_names.named(path.stem) for path in visible(data_dir) if path.suffix == ".npz"}
    return {path: names for path, names in found.items() if names and not path.is_dir()}


def split_folders(folder: Path) -> dict[Split, Path]:
    """Return the folders in a folder that are called like splits, by split.

    Raises:
        DataError: If one cannot be read, or two have the same split's name.
    """
    named = {path: split_names.split_of(path.name) for path in folders_in(folder)}
    return _by_split({path: split for path, split in named.items() if split})


def _by_split(named: Mapping[Path, Split]) -> dict[Split, Path]:
    found: dict[Split, Path] = {}
    for path, split in named.items():
        presence.check(path)
        if split in found:
            both = f"{shown(found[split].name)} and {shown(path.name)} both name"
            raise DataError(f"{shown(path.parent)}: {both} the split {split}; allowed is one of them")
        found[split] = path
    return {split: found[split] for split in OWN_SPLITS if split in found}
