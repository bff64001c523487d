"""Keeps the listing of a site of class folders on disk, so that a run need not list, order and divide its images again.

It is taken again only if all its folders have the same inodes, times of writing and times of change, which nobody can
set back, and the names in them are the same, as some network disks have no times of folders. What is in the files is
not kept here: :mod:`datasets.io.cache` compares them one by one.
"""

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets.base import OWN_SPLITS
from datasets.io import cache, part_folder, pictures, unchanged
from datasets.io.site import Picture, Site
from fedshift_core import private_files

FORMAT = 1  # another one if the same folders would be listed in another way
#: Of a folder: inode, times of writing and of change, and a hash of the names in it.
State = list[Any]


def answer(
    key: object, classes: Sequence[str], look: Callable[[], Site | None], folders: Callable[[Site | None], Any]
) -> Site | None:
    """Return what ``look`` returns, or returned before if nothing has changed in the site's folders since.

    Args:
        key: What decides the answer besides the folders; its ``repr`` is compared.
        classes: The run's classes.
        look: Finds the site.
        folders: Returns the folders that decide an answer; None if it is not to be kept.

    Raises:
        DataError: As ``look``.
    """
    text = repr((FORMAT, key, tuple(classes), pictures.SUFFIXES))
    path = cache.cache_dir() / f"site-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:32]}.json"
    if (site := _kept(path, text, classes)) is not None:
        return site
    began = time.time_ns()
    found = look()
    places = folders(found)
    if found is not None and places is not None:
        states = _states(places)
        if states is not None and max(max(state[1:3]) for _, state in states) < began - unchanged.SETTLED:
            with contextlib.suppress(OSError, UnicodeError):  # without room or rights the next run looks again
                _keep(path, text, found, states)
    return found


def _states(folders: Sequence[Path | str]) -> list[tuple[str, State]] | None:
    """Return the states of folders; None if one is not there."""
    try:
        return [(str(folder), _state(str(folder))) for folder in dict.fromkeys(folders)]
    except OSError:
        return None


def _state(folder: str) -> State:
    about = os.stat(folder)  # noqa: PTH116
    names = "/".join(sorted(os.listdir(folder)))  # noqa: PTH208 - names alone
    digest = hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()
    return [about.st_ino, about.st_mtime_ns, about.st_ctime_ns, digest]


def _kept(path: Path, key: str, classes: Sequence[str]) -> Site | None:
    """Return a kept site whose folders are as they were; None if there is none, or it is damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        kept = stored["kept"]
        if stored["sum"] != _sum(kept) or kept["key"] != key:
            return None
        if _states([folder for folder, _ in kept["states"]]) != [(folder, state) for folder, state in kept["states"]]:
            return None
        return _site(kept["site"], classes)
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def _keep(path: Path, key: str, site: Site, states: Sequence[tuple[str, State]]) -> None:
    kept = {"key": key, "states": [list(pair) for pair in states], "site": _listed(site)}
    private_files.make_folder(path.parent)
    part_folder.replace(path, json.dumps({"sum": _sum(kept), "kept": kept}))


def _sum(kept: Any) -> int:
    return zlib.crc32(json.dumps(kept).encode())


def _listed(site: Site) -> dict[str, Any]:
    """Return a site as JSON can hold it; the name of an image follows from its class and file."""
    folders = list(dict.fromkeys(os.path.dirname(picture.path) for picture in site.pictures))  # noqa: PTH120
    place = {folder: number for number, folder in enumerate(folders)}
    rows = [(*os.path.split(picture.path), picture.label, picture.split) for picture in site.pictures]
    return {
        "domain": site.domain, "layout": site.layout, "drawn": site.drawn, "notes": site.notes,
        "not_taken": list(map(str, site.not_taken)), "folders": folders,
        "in": [place[folder] for folder, _, _, _ in rows], "files": [file for _, file, _, _ in rows],
        "labels": [label for _, _, label, _ in rows], "splits": [OWN_SPLITS.index(split) for _, _, _, split in rows],
    }  # fmt: skip


def _site(kept: dict[str, Any], classes: Sequence[str]) -> Site:
    columns = zip(kept["in"], kept["files"], kept["labels"], kept["splits"], strict=True)
    folders = kept["folders"]
    taken = tuple(
        Picture(Path(f"{folders[place]}/{file}"), f"{classes[label]}/{file}", label, OWN_SPLITS[split])
        for place, file, label, split in columns
    )
    not_taken = tuple(map(Path, kept["not_taken"]))
    return Site(kept["domain"], kept["layout"], taken, (), not_taken, tuple(kept["notes"]), kept["drawn"])
