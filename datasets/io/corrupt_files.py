"""Images that cannot be read, found by decoding them once per machine, for who would go on without them.

The verdict is kept with the decoded images, under the fingerprint of the files, with their seal and a checksum
(:mod:`datasets.io.integrity`): a file that was replaced is looked at again, whatever its time of writing.
"""

import contextlib
import functools
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from datasets.base import PLAIN, Form
from datasets.io import cache, integrity, presence
from datasets.io.decode import decode
from datasets.listing import Found, Item, Listing
from fedshift_core import private_files
from fedshift_core.errors import DataError
from fedshift_core.limits import plain, shown, whole

_SIZE = 16  # pixels that an image is reduced to: all of it is decoded

log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Broken:
    """An image that cannot be read.

    Attributes:
        place: Its index in the listing.
        name: Its path, or its name inside the tar.
        reason: Why, in one line.
    """

    place: int
    name: str
    reason: str


def of(listing: Listing, form: Form = PLAIN) -> tuple[Broken, ...]:
    """Return the images of a listing that cannot be read.

    Raises:
        DataError: If the verdict cannot be kept.
    """
    away = _away(listing)
    rest = np.delete(np.arange(len(listing)), list(away))
    decoded = _decoded(listing.select(rest), form) if len(rest) else {}
    bad = away | {int(rest[place]): reason for place, reason in decoded.items()}
    return tuple(Broken(place, shown(listing.items[place].name), reason) for place, reason in sorted(bad.items()))


def _away(listing: Listing) -> dict[int, str]:
    """Return the images that are there by name alone, by place: their reasons lie outside the files, and change."""
    reasons = {path: presence.reason(path) for path in {item.path for item in listing.items}}
    return {place: f"cannot be read ({why})" for place, item in enumerate(listing.items) if (why := reasons[item.path])}


def _decoded(listing: Listing, form: Form) -> dict[int, str]:
    """Return the images that cannot be decoded, by place; the verdict is kept."""
    mark = cache.fingerprint(listing, _SIZE, form)
    path = cache.cache_dir() / f"broken-{mark[:32]}.json"
    kept = _kept(path, listing)
    if kept is None:
        sources, workers = cache.sources_of(listing), os.cpu_count() or 1
        before = integrity.stamp(integrity.look(sources), inodes=False)
        with ThreadPoolExecutor(workers) as pool:
            verdicts = list(pool.map(partial(_reason, form), listing.items))
        kept = {place: reason for place, reason in enumerate(verdicts) if reason}
        _keep(path, len(listing), kept, integrity.seal(sources, before, workers))
    return kept


def left_out(found: Found, form: Form = PLAIN) -> Found:
    """Return what was found without the images that cannot be read; arrays are read as a whole or not at all.

    Raises:
        DataError: If no image is left.
    """
    if not isinstance(found, Listing):
        return found
    bad = of(found, form)
    if not bad:
        return found
    if len(bad) == len(found):
        raise DataError(f"{bad[0].name}: {bad[0].reason}; none of the {len(found)} images there can be read")
    _warn(len(bad), len(found), bad[0].name, bad[0].reason)
    return found.select(np.delete(np.arange(len(found)), [one.place for one in bad]))


@functools.cache
def _warn(bad: int, all_of: int, name: str, reason: str) -> None:
    """Say once in a process what is left out."""
    log.warning("%d of %d images cannot be read and are left out: %s (%s), ...", bad, all_of, name, reason)


def _reason(form: Form, item: Item) -> str:
    try:
        decode(item, _SIZE, form)
    except DataError as error:
        text = str(error).removeprefix(f"{shown(item.name)}: ")
        return plain(text.partition("\n")[0])
    return ""


def _kept(path: Path, listing: Listing) -> dict[int, str] | None:
    """Return a verdict that was kept, by place in the listing; None if there is none, or it is damaged or outdated."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        if written["images"] != len(listing) or written.pop("sum") != _sum(written):
            return None
        reasons = {whole(place, 0, len(listing) - 1): plain(str(reason)) for place, reason in written["broken"]}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if None in reasons:
        return None
    sources = cache.sources_of(listing)
    verdict = integrity.verdict(written, sources, os.cpu_count() or 1)
    if verdict == "changed":
        return None
    found = {place: reason for place, reason in reasons.items() if place is not None}
    if verdict == "renewed":
        with contextlib.suppress(DataError):  # who may not write there reads the files each time
            _keep(
                path,
                len(listing),
                found,
                {"stamp": integrity.stamp(integrity.look(sources)), "sources": written["sources"]},
            )
    return found


def _sum(written: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(written, sort_keys=True).encode())


def _keep(path: Path, images: int, found: Mapping[int, str], seal: Mapping[str, str]) -> None:
    """Write a verdict: whole, or not at all."""
    verdict = {"images": images, "broken": [list(pair) for pair in found.items()], **seal}
    with cache.writing(path):
        private_files.make_folder(path.parent)
        handle, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(verdict | {"sum": _sum(verdict)}, file)
        Path(part).replace(path)
