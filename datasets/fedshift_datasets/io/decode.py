"""Decodes images in processes of their own, into the array of the cache; each file is read once."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedshift_datasets.base import PLAIN, Form
from fedshift_datasets.io import pictures, pool, presence
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.io.resize import fit
from fedshift_datasets.listing import Item, Listing

#: Called with the number of newly finished images.
Progress = Callable[[int], None]


def no_progress(finished: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class FileFacts:
    """Properties of image files, found when their images were decoded.

    Attributes:
        headers: Of each image.
        digests: Hexadecimal SHA-256 of each file that is one image, by its path; of what was decoded.
    """

    headers: Sequence[Header]
    digests: dict[str, str]


def decode_into(
    listing: Listing, out: NDArray[np.uint8], form: Form = PLAIN, *, workers: int, progress: Progress = no_progress
) -> FileFacts:
    """Decode all images of a listing, made squares, into ``out``.

    Args:
        listing: The encoded images.
        out: The array for the result, shape (N, size, size, 3), uint8.
        form: How they become squares of 8 bits a channel.
        workers: The most processes.
        progress: Called for finished images.

    Raises:
        DataError: If an image cannot be read, with its name.
    """
    plain, headers, digests = np.asarray(out), list[Header](), dict[str, str]()
    all_of_them = pool.mapped(partial(decoded, size=plain.shape[1], form=form), listing.items, workers)
    for number, (plain[number], header, digest) in enumerate(all_of_them):
        headers.append(header)
        if digest:
            digests[listing.names[number]] = digest
        progress(1)
    return FileFacts(headers, digests)


def decode(item: Item, size: int, form: Form = PLAIN) -> NDArray[np.uint8]:
    """Return one image as (size, size, 3) uint8.

    Raises:
        DataError: If it cannot be read.
    """
    return next(pool.mapped(partial(decoded, size=size, form=form), [item], 1))[0]


def decoded(item: Item, size: int, form: Form) -> tuple[NDArray[np.uint8], Header, str]:
    """Return an image, its header, and the SHA-256 of its file if that is the image alone."""
    content = encoded(item)
    rgb, header = pictures.read(content, item.name, form.window)
    if form.exif == "apply":
        rgb = pictures.turned(rgb, header.orientation)
    digest = hashlib.sha256(content).hexdigest() if item.length < 0 else ""
    return np.asarray(fit(rgb, size, form.resize)), header, digest


def header(item: Item) -> Header:
    """Return an image's properties, as :func:`fedshift_datasets.io.pictures.header`."""
    return pictures.header(encoded(item), item.name)


def encoded(item: Item) -> bytes:
    """Return the encoded bytes of an image."""
    if not os.path.isfile(item.path):  # noqa: PTH113 - twice as fast; a pipe would block this process
        presence.check(item.path)
    with open(item.path, "rb") as file:  # noqa: PTH123
        file.seek(item.offset)
        return file.read(item.length)
