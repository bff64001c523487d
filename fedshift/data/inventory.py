"""What the cache of decoded images holds: parts of images and stores of features, checked and deleted.

Only what has the name and place of a part or store is looked at, and no link is followed: nothing outside the cache
folder is touched. This module imports neither torch nor Flower.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedshift_core import private_files
from fedshift_core.limits import MOST_NAME, plain, shown
from fedshift_core.plural import plural
from fedshift_datasets import catalog
from fedshift_datasets.io import cache, feature_store, integrity, part_folder

KINDS: tuple["KindName", ...] = ("images", "features")
KindName = Literal["images", "features"]
T = TypeVar("T")
WEIGHTS_SHOWN = 12  # characters of the SHA-256 of weights

_PART = re.compile(
    r"(?P<head>.+)-(?P<split>train|validation|test)(?P<form>(?:-crop|-pad)?(?:-w.+?to.+?)?(?:-exif)?)"
    r"-(?P<size>\d+)px-[0-9a-f]{16}"
)  # of ``cache.Part.stem`` and the fingerprint
_BUILD = re.compile(r"\..+px-[^.]+")  # of ``fedshift_datasets.io.building``


@dataclass(frozen=True)
class Entry:
    """A part of images, or a store of features.

    Attributes:
        kind: Which of both.
        folder: Where it is; its name is the entry's name.
        bytes: Its size.
        number: Of its images or rows; None if that cannot be read.
        event: What happened at ``time``: used, checked or made.
        time: In seconds since 1970.
        about: What it is of.
        users: What uses it, in words.
        store: The store, of features.
    """

    kind: KindName
    folder: Path
    bytes: int
    number: int | None
    event: str
    time: float
    about: Mapping[str, Any]
    users: str
    store: feature_store.Kept | None = None

    @property
    def name(self) -> str:
        """Its name in the cache."""
        return self.folder.name

    def damage(self) -> str:
        """Return what is damaged, in words; empty if all checksums agree. Nothing is changed."""
        if self.store is not None:
            rows = feature_store.verify(self.store)
            if rows is None:
                return "cannot be read"
            return f"{rows:,} of {plural(self.store.rows, 'row is', 'rows are', form=',')} damaged" if rows else ""
        meta = part_folder.read_meta(self.folder)
        blocks = part_folder.damaged(self.folder, meta)
        if blocks is None:
            return "cannot be read, or was cut off"
        return (
            f"{len(blocks):,} of {plural(len(meta['blocks']), 'block', form=',')} of its images are damaged"
            if blocks
            else ""
        )

    def delete(self) -> bool:
        """Delete it, unless a process is writing it; return whether that was done.

        Processes that read it keep what they have mapped.

        Raises:
            OSError: If this user may not delete it.
        """
        own = self.folder / ".lock"
        with private_files.tried(own if self.kind == "features" else cache.lock_of(self.folder)) as alone:
            if not alone:
                return False
            (self.folder / part_folder.META_FILE).unlink(missing_ok=True)  # from here on nobody takes it for complete
            if self.kind == "images":
                while self.folder.exists():
                    with suppress(FileNotFoundError):  # another process deletes it too
                        shutil.rmtree(self.folder)
                return True
            # The lock stays, as another process may wait for it.
            for path in self.folder.iterdir():
                if path != own:
                    path.unlink()
            return True


def names() -> list[str]:
    """Return the names of all entries, without a look into them."""
    return [*(path.name for path in _image_folders()), *(store.folder.name for store in _stores())]


def entries() -> list[Entry]:
    """Return all that the cache holds: images, then features, by name."""
    return [*_still_there(_of_images, _image_folders()), *(_of_store(store) for store in _stores())]


def interrupted() -> tuple[int, int]:
    """Return the number and the bytes of builds in progress or interrupted; the next build removes the latter."""
    builds = [path for path in _folders(cache.cache_dir()) if _BUILD.fullmatch(path.name)]
    sizes = _still_there(_size, builds)
    return len(sizes), sum(sizes)


def is_link(name: str) -> bool:
    """Return whether the cache has a link of this name in the place of a folder."""
    return Path(name).name == name and any((at / name).is_symlink() for at in (cache.cache_dir(), feature_store.root()))


def _still_there(look: Callable[[Path], T], folders: Sequence[Path]) -> list[T]:
    """Return what a look at each folder gives, without folders that another process deletes meanwhile."""
    seen = []
    for folder in folders:
        with suppress(FileNotFoundError):
            seen.append(look(folder))
    return seen


def _folders(parent: Path) -> list[Path]:
    """Return the folders in a folder, without links, by name."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _image_folders() -> list[Path]:
    return [
        path for path in _folders(cache.cache_dir()) if not path.name.startswith(".") and _PART.fullmatch(path.name)
    ]


def _stores() -> list[feature_store.Kept]:
    """Return the stores, without links and without those that were deleted."""
    if feature_store.root().is_symlink():
        return []
    stores = (store for store in feature_store.kept() if not store.folder.is_symlink())
    return [store for store in stores if store.bytes or store.meta is not None]


def _of_images(folder: Path) -> Entry:
    """Return the entry of a part of images."""
    match = _PART.fullmatch(folder.name)
    assert match is not None
    meta = part_folder.read_meta(folder)
    dataset, domain = _parted(match["head"])
    about = {
        "dataset": dataset, "domain": domain, "split": match["split"], "size": int(match["size"]),
        "form": match["form"].removeprefix("-") or "squash",
    }  # fmt: skip
    origin, number = meta.get("origin"), meta.get("count")
    users = "unknown: meta.json cannot be read"
    if isinstance(origin, str):
        there = Path(origin).is_dir()
        about |= {"origin": origin, "origin_exists": there}
        users = shown(origin) + ("" if there else " (not there any more)")
    event, when = "made", _time(folder / part_folder.META_FILE) or folder.stat().st_mtime
    checked = _time(folder / integrity.NOTE_FILE)
    if checked is not None and checked >= when:
        event, when = "checked", checked
    return Entry(
        "images", folder, _size(folder), number if isinstance(number, int) else None, event, when, about, users
    )


def _parted(head: str) -> tuple[str, str]:
    """Return data set and domain of ``DATASET-DOMAIN``; either may have a hyphen."""
    known = [name for name in (f"{known}{own}" for known in catalog.DATASETS for own in ("", "-own"))
             if head.startswith(f"{name}-")]  # fmt: skip
    dataset = max(known, key=len, default=head.partition("-")[0])
    return dataset, head[len(dataset) + 1 :]


def _of_store(store: feature_store.Kept) -> Entry:
    """Return the entry of a store of features."""
    meta = store.meta or {}
    of = meta.get("about")
    if not isinstance(of, dict):
        about: dict[str, Any] = {}
        users = "unknown: meta.json cannot be read"
    else:
        about = dict(of) | {"view": of.get("view", 0), "shape": meta.get("shape"), "dtype": meta.get("dtype")}
        view = f"view {_text(about['view'])}, augmented" if about["view"] else "images as they are"
        users = (
            f"{_text(of.get('network'))} {_text(of.get('depth'))}, weights {_text(of.get('weights'))[:WEIGHTS_SHOWN]}, "
            f"{_text(of.get('size'))} px, {view}, {_text(of.get('arithmetic'))}"
        )
    return Entry(
        "features", store.folder, store.bytes, store.rows if store.meta is not None else None, "used", store.used,
        about, users, store,
    )  # fmt: skip


def _text(value: object) -> str:
    return "?" if value is None else plain(str(value), MOST_NAME)


def _time(path: Path) -> float | None:
    """Return when a file was written; None if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; a file that vanishes meanwhile has none.

    Raises:
        FileNotFoundError: If the folder is not there.
    """
    total = 0
    for path in folder.iterdir():
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total
