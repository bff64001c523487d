"""What the cache of decoded images holds: parts of images and stores of features, checked and deleted.

Only what has the name and place of a part or store is looked at, and no link is followed: nothing outside the cache
folder is touched. This module imports neither torch nor Flower.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedshift_core.limits import MOST_NAME, plain, shown
from fedshift_datasets import catalog
from fedshift_datasets.io import cache, feature_store, kept
from fedshift_datasets.io.kept import Kept

WEIGHTS_SHOWN = 12  # characters of the SHA-256 of weights

_PART = re.compile(
    r"(?P<head>.+)-(?P<split>train|validation|test)(?P<form>(?:-crop|-pad)?(?:-w.+?to.+?)?(?:-exif)?)"
    r"-(?P<size>\d+)px-[0-9a-f]{16}"
)  # of ``cache.Part.stem`` and the fingerprint


@dataclass(frozen=True)
class Entry:
    """A part of images, or a store of features.

    Attributes:
        kind: Which of both.
        path: Its file; the file's name is the entry's name.
        bytes: Its size.
        number: Of its images or rows; None if that cannot be read.
        time: When it was last used, in seconds since 1970.
        about: What it is of.
        users: What uses it, in words.
    """

    kind: Literal["images", "features"]
    path: Path
    bytes: int
    number: int | None
    time: float
    about: Mapping[str, Any]
    users: str

    @property
    def name(self) -> str:
        """Its name in the cache."""
        return self.path.name

    def damage(self) -> str:
        """Return what is damaged, in words; empty if all digests agree. Nothing is changed."""
        file = kept.read(self.path, check=True)
        if not file.chunks:
            return "cannot be read, or was cut off"
        return f"damaged or cut off after {file.end:,} of {file.size:,} bytes" if file.end < file.size else ""

    def delete(self) -> bool:
        """Delete it, unless a process is writing it; return whether that was done.

        Processes that read it keep what they have mapped.

        Raises:
            OSError: If this user may not delete it.
        """
        return kept.removed(self.path)


def names() -> list[str]:
    """Return the names of all entries, without a look into them."""
    return [path.name for path in (*_images(), *_stores())]


def entries() -> list[Entry]:
    """Return all that the cache holds: images, then features, by name."""
    held = [*map(_of_images, _images()), *map(_of_store, _stores())]
    return [entry for entry in held if entry.path.exists()]  # another process may have deleted it


def is_link(name: str) -> bool:
    """Return whether the cache has a link of this name."""
    return Path(name).name == name and any((at / name).is_symlink() for at in (cache.cache_dir(), feature_store.root()))


def _images() -> list[Path]:
    """Return the parts of images, without links; those of an earlier version, which were folders, too."""
    return sorted(
        path for path in cache.cache_dir().glob("[!.]*") if _PART.fullmatch(path.name) and not path.is_symlink()
    )


def _stores() -> list[Path]:
    return [] if feature_store.root().is_symlink() else feature_store.stores()


def _of_images(path: Path) -> Entry:
    """Return the entry of a part of images."""
    match = _PART.fullmatch(path.name)
    assert match is not None
    file = kept.read(path, check=False)
    dataset, domain = _parted(match["head"])
    about = {
        "dataset": dataset, "domain": domain, "split": match["split"], "size": int(match["size"]),
        "form": match["form"].removeprefix("-") or "squash",
    }  # fmt: skip
    users = "unknown: the file cannot be read"
    if (origin := file.about.get("origin")) is not None:
        there = Path(origin).is_dir()
        about |= {"origin": origin, "origin_exists": there}
        users = shown(origin) + ("" if there else " (not there any more)")
    return _entry("images", file, about, users)


def _entry(kind: Literal["images", "features"], file: Kept, about: Mapping[str, Any], users: str) -> Entry:
    number = file.number if file.chunks else None
    return Entry(kind, file.path, kept.size_of(file.path), number, cache.last_used(file.path), about, users)


def _parted(head: str) -> tuple[str, str]:
    """Return data set and domain of ``DATASET-DOMAIN``; either may have a hyphen."""
    known = [name for name in (f"{known}{own}" for known in catalog.DATASETS for own in ("", "-own"))
             if head.startswith(f"{name}-")]  # fmt: skip
    dataset = max(known, key=len, default=head.partition("-")[0])
    return dataset, head[len(dataset) + 1 :]


def _of_store(path: Path) -> Entry:
    """Return the entry of a store of features."""
    file = kept.read(path, check=False)
    if not file.chunks:
        return _entry("features", file, {}, "unknown: the file cannot be read")
    first = file.chunks[0].about
    of = first["of"]
    about = of | {"view": of.get("view", 0), "shape": first["row"], "dtype": first["dtype"]}
    view = f"view {_text(about['view'])}, augmented" if about["view"] else "images as they are"
    users = (
        f"{_text(of.get('network'))} {_text(of.get('depth'))}, weights {_text(of.get('weights'))[:WEIGHTS_SHOWN]}, "
        f"{_text(of.get('size'))} px, {view}, {_text(of.get('arithmetic'))}"
    )
    return _entry("features", file, about, users)


def _text(value: object) -> str:
    return "?" if value is None else plain(str(value), MOST_NAME)
