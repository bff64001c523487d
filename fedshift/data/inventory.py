"""What the cache of decoded images holds: parts of images and stores of features, checked and deleted.

Only what has the name and place of a part or store is looked at, and no link is followed: nothing outside the cache
folder is touched. This module imports neither torch nor Flower.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedshift_core import private_files
from fedshift_core.limits import MOST_NAME, plain, shown
from fedshift_core.plural import plural
from fedshift_datasets import catalog
from fedshift_datasets.io import cache, feature_store, integrity, part_folder

T = TypeVar("T")
UNREADABLE = "unknown: meta.json cannot be read"
_PART = re.compile(
    r"(?P<head>.+)-(?P<split>train|validation|test)(?P<form>(?:-crop|-pad)?(?:-w.+?to.+?)?(?:-exif)?)"
    r"-(?P<size>\d+)px-[0-9a-f]{16}"
)  # of ``cache.Part.stem`` and the fingerprint


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

    kind: Literal["images", "features"]
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
            damaged, of = feature_store.verify(self.store), plural(self.store.rows, "row is", "rows are", form=",")
        else:
            meta = part_folder.read_meta(self.folder)
            blocks = part_folder.damaged(self.folder, meta)
            damaged, of = None if blocks is None else len(blocks), f"{len(meta.get('blocks', ())):,} blocks of images"
        if damaged is None:
            return "cannot be read, or was cut off"
        return f"{damaged:,} of {of} damaged" if damaged else ""

    def delete(self) -> bool:
        """Delete it, unless a process is writing it; return whether that was done.

        Processes that read it keep what they have mapped.

        Raises:
            OSError: If this user may not delete it.
        """
        own = self.folder / ".lock"
        with private_files.tried(own if self.store else cache.lock_of(self.folder)) as alone:
            if not alone:
                return False
            (self.folder / part_folder.META_FILE).unlink(missing_ok=True)  # from here on nobody takes it for complete
            while not self.store and self.folder.exists():
                with suppress(FileNotFoundError):  # another process deletes it too
                    shutil.rmtree(self.folder)
            for path in self.folder.iterdir() if self.store else ():
                if path != own:  # another process may wait for the lock
                    path.unlink()
            return True


def names() -> list[str]:
    """Return the names of all entries, without a look into them."""
    return [folder.name for folder in (*_image_folders(), *(store.folder for store in _stores()))]


def entries() -> list[Entry]:
    """Return all that the cache holds: images, then features, by name."""
    return [*_still_there(_of_images, _image_folders()), *map(_of_store, _stores())]


def is_link(name: str) -> bool:
    """Return whether the cache has a link of this name in the place of a folder."""
    return Path(name).name == name and any((at / name).is_symlink() for at in (cache.cache_dir(), feature_store.root()))


def _still_there(look: Callable[[Path], T], folders: Iterable[Path]) -> list[T]:
    """Return what a look at each folder gives, without folders that another process deletes meanwhile."""
    seen = []
    for folder in folders:
        with suppress(FileNotFoundError):
            seen.append(look(folder))
    return seen


def _image_folders() -> list[Path]:
    """Return the folders of parts of images, without links, by name."""
    folders = (path for path in cache.cache_dir().glob("[!.]*") if path.is_dir() and not path.is_symlink())
    return sorted(path for path in folders if _PART.fullmatch(path.name))


def _stores() -> list[feature_store.Kept]:
    """Return the stores, without links and without those that were deleted."""
    kept = [] if feature_store.root().is_symlink() else feature_store.kept()
    return [store for store in kept if not store.folder.is_symlink() and (store.bytes or store.meta is not None)]


def _of_images(folder: Path) -> Entry:
    """Return the entry of a part of images.

    Raises:
        FileNotFoundError: If it was deleted.
    """
    match, meta = _PART.fullmatch(folder.name), part_folder.read_meta(folder)
    assert match is not None
    dataset, domain = _parted(match["head"])
    form, size = match["form"].removeprefix("-") or "squash", int(match["size"])
    about: dict[str, Any] = {"dataset": dataset, "domain": domain, "split": match["split"], "size": size, "form": form}
    number, users = meta.get("count"), UNREADABLE
    if isinstance(origin := meta.get("origin"), str):
        about |= {"origin": origin, "origin_exists": Path(origin).is_dir()}
        users = shown(origin) + ("" if about["origin_exists"] else " (not there any more)")
    times = {"made": folder.stat().st_mtime}
    for event, name in (("made", part_folder.META_FILE), ("checked", integrity.NOTE_FILE)):
        with suppress(OSError):
            times[event] = (folder / name).stat().st_mtime
    event = max(reversed(times), key=times.__getitem__)  # checked, where both are at once
    counted = number if isinstance(number, int) else None
    return Entry("images", folder, _size(folder), counted, event, times[event], about, users)


def _parted(head: str) -> tuple[str, str]:
    """Return data set and domain of ``DATASET-DOMAIN``; either may have a hyphen."""
    known = (f"{name}{own}" for name in catalog.DATASETS for own in ("", "-own"))
    dataset = max((name for name in known if head.startswith(f"{name}-")), key=len, default=head.partition("-")[0])
    return dataset, head[len(dataset) + 1 :]


def _of_store(store: feature_store.Kept) -> Entry:
    """Return the entry of a store of features."""
    meta, about, users = store.meta or {}, dict[str, Any](), UNREADABLE
    if isinstance(of := meta.get("about"), dict):
        about = of | {"view": of.get("view", 0), "shape": meta.get("shape"), "dtype": meta.get("dtype")}
        view = f"view {about['view']}, augmented" if about["view"] else "images as they are"
        of = {key: of.get(key, "?") for key in ("network", "depth", "weights", "size", "arithmetic")}
        users = (
            f"{of['network']} {of['depth']}, weights {str(of['weights'])[:12]}, {of['size']} px, {view}, "
            f"{of['arithmetic']}"
        )
    rows = None if store.meta is None else store.rows
    words = plain(users, 4 * MOST_NAME)
    return Entry("features", store.folder, store.bytes, rows, "used", store.used, about, words, store)


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; a file that vanishes meanwhile has none.

    Raises:
        FileNotFoundError: If the folder is not there.
    """
    return sum(_still_there(lambda path: path.lstat().st_size, folder.iterdir()))
