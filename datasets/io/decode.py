"""Decodes images in parallel, directly into the array of the cache."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.base import PLAIN, Form
from datasets.io import exif, files, pictures, presence
from datasets.io.resize import fit
from datasets.listing import Item, Listing

#: Called with the number of newly finished images.
Progress = Callable[[int], None]


def no_progress(finished: int) -> None:
    """Show nothing."""


def decode_into(
    listing: Listing, out: NDArray[np.uint8], form: Form = PLAIN, *, workers: int, progress: Progress = no_progress
) -> None:
    """Decode all images of a listing, made squares, into ``out``.

    Args:
        listing: The encoded images.
        out: The array for the result, shape (N, size, size, 3), uint8.
        form: How they become squares of 8 bits a channel.
        workers: Number of threads; Pillow decodes outside of Python's lock.
        progress: Called for finished images.

    Raises:
        DataError: If an image cannot be read, with its name.
    """

    def decode_one(number: int) -> None:
        out[number] = decode(listing.items[number], out.shape[1], form)
        progress(1)

    with ThreadPoolExecutor(workers) as pool:
        # list(): the first error of any image ends the loop.
        list(pool.map(decode_one, range(len(listing))))


def decode(item: Item, size: int, form: Form = PLAIN) -> NDArray[np.uint8]:
    """Return one image as (size, size, 3) uint8.

    Raises:
        DataError: If it cannot be read.
    """
    with files.reading(item.name):
        content = encoded(item)
        rgb = pictures.decoded(content, item.name, form.window)
        if form.exif == "apply":
            rgb = exif.turned(rgb, pictures.orientation(content, item.name))
        return np.asarray(fit(rgb, size, form.resize))


def encoded(item: Item) -> bytes:
    """Return the encoded bytes of an image."""
    if not item.path.is_file():  # a pipe would block this process
        presence.check(item.path)
    if item.length < 0:
        return Path(item.path).read_bytes()
    with item.path.open("rb") as file:
        file.seek(item.offset)
        return file.read(item.length)
