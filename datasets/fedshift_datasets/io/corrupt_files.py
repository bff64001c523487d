"""Finds images that cannot be read, by decoding all once per machine; a run can continue without them.

The result is cached with the decoded images, under the fingerprint of the files and their times of change: where one
was replaced, all are decoded again, whatever its time of writing. An image that could not be read is tried again at
each use, as that may have been for lack of a decoder, of memory or of the disk.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedshift_core import said_once
from fedshift_core.errors import DataError
from fedshift_core.limits import plain, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import PLAIN, Form, Source
from fedshift_datasets.io import cache, kept, looks, pool, presence
from fedshift_datasets.io.decode import decoded
from fedshift_datasets.listing import ImageFiles, Listing

_SIZE = 16  # pixels; a small target, though all of an image is decoded


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
    """Return the images of a listing that cannot be read."""
    unavailable = _unavailable(listing)
    others = np.delete(np.arange(len(listing)), list(unavailable))
    decoded = _decoded(listing.select(others), form) if len(others) else {}
    reasons = unavailable | {int(others[place]): reason for place, reason in decoded.items()}
    return tuple(Broken(place, shown(listing.names[place]), reason) for place, reason in sorted(reasons.items()))


def _unavailable(listing: Listing) -> dict[int, str]:
    """Return a reason for each image whose file cannot be opened, by place; these reasons are not cached."""
    reasons = {file: why for file in listing.sources if (why := presence.reason(Path(file)))}
    if not reasons:
        return {}
    either = (reasons.get(item.path) or reasons.get(item.mask or "") for item in listing.items)
    return {place: f"cannot be read ({reason})" for place, reason in enumerate(either) if reason}


def _decoded(listing: Listing, form: Form) -> dict[int, str]:
    """Return a reason for each image that cannot be decoded, by place, and cache the places."""
    path = cache.cache_dir() / f"broken-{cache.fingerprint(listing, _SIZE, form)[:32]}.list"
    stamp = looks.stamp(looks.at(listing.sources), inodes=False)
    about = kept.read(path).about
    places = about["broken"] if about.get("stamp") == stamp else None
    reasons = _tried(listing, range(len(listing)) if places is None else places, form)
    if list(reasons) != places:
        with contextlib.suppress(DataError):  # without room or rights the files are read each time
            kept.keep(path, {"stamp": stamp, "broken": list(reasons)})
    return reasons


def usable(image_files: ImageFiles, source: Source, form: Form = PLAIN) -> ImageFiles:
    """Return the images that are used: where ``source.skip_broken`` says so, without those that cannot be read.

    Arrays are read completely or not at all.

    Raises:
        DataError: If no image is left.
    """
    if not source.skip_broken or not isinstance(image_files, Listing):
        return image_files
    broken = of(image_files, form)
    if not broken:
        return image_files
    if len(broken) == len(image_files):
        raise DataError(
            f"{broken[0].name}: {broken[0].reason}; none of the {plural(len(image_files), 'image')} there can be read"
        )
    are, more = ("is", "") if len(broken) == 1 else ("are", ", ...")
    said_once.warn(
        f"{len(broken)} of {plural(len(image_files), 'image')} cannot be read and {are} left out: {broken[0].name} "
        f"({broken[0].reason}){more}"
    )
    return without(image_files, broken)


def without(listing: Listing, broken: Sequence[Broken]) -> Listing:
    """Return the images of a listing that can be read."""
    places = np.delete(np.arange(len(listing)), [image.place for image in broken])
    return listing.select(places) if broken else listing


def _tried(listing: Listing, places: Sequence[int], form: Form) -> dict[int, str]:
    """Return a reason for each image at these places that cannot be decoded, by place."""
    items = [listing.items[place] for place in places]
    made_of = pool.tried(partial(decoded, size=_SIZE, form=form), items, os.cpu_count() or 1)
    return {
        place: plain(str(made).removeprefix(f"{shown(item.name)}: ").partition("\n")[0])
        for place, item, made in zip(places, items, made_of, strict=True)
        if isinstance(made, DataError)
    }
