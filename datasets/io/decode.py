"""Decoding images, once per machine: in parallel, straight into the array that is kept."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.base import PLAIN, Form
from datasets.io import exif, files, pictures, presence
from datasets.io.resize import fit
from datasets.listing import Item, Listing

#: Called with the number of images that have just been finished.
Progress = Callable[[int], None]


def no_progress(finished: int) -> None:
    """Show nothing."""


def decode_into(
    listing: Listing, out: NDArray[np.uint8], form: Form = PLAIN, *, workers: int, progress: Progress = no_progress
) -> None:
    """Decode all images of a listing, made squares, into ``out``.

    Args:
        listing: The encoded images.
        out: Where they go, shape (N, size, size, 3), uint8.
        form: How they become squares of 8 bits a channel.
        workers: Threads; Pillow decodes outside of Python's lock.
        progress: Told of finished images.

    Raises:
        DataError: If an image cannot be read, with its name.
    """

    def one(number: int) -> None:
        out[number] = decode(listing.items[number], out.shape[1], form)
        progress(1)

    with ThreadPoolExecutor(workers) as pool:
        # list(): the first error of any image ends it.
        list(pool.map(one, range(len(listing))))


def decode(item: Item, size: int, form: Form = PLAIN) -> NDArray[np.uint8]:
    """Return one image as (size, size, 3) uint8, as any data set's are.

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
    """Return an image as it lies in its file."""
    if not item.path.is_file():  # a pipe would hold this process up
        presence.check(item.path)
    if item.length < 0:
        return Path(item.path).read_bytes()
    with item.path.open("rb") as file:
        file.seek(item.offset)
        return file.read(item.length)
