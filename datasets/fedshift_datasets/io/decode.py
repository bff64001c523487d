"""Decodes images in parallel, directly into the array of the cache; each file is read once."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedshift_datasets.base import PLAIN, Form
from fedshift_datasets.io import exif, files, pictures, presence, threads
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.io.resize import fit
from fedshift_datasets.listing import Item, Listing, Piece

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
        workers: The most threads; Pillow decodes outside of Python's lock.
        progress: Called for finished images.

    Raises:
        DataError: If an image cannot be read, with its name.
    """
    plain, digests = np.asarray(out), dict[str, str]()

    def decode_one(number: int) -> Header:
        piece = listing.piece(number)
        with files.reading(piece.name):
            content = _content(piece)
            plain[number], header = _decoded(content, piece.name, plain.shape[1], form)
        if piece.length < 0:
            digests[piece.file] = hashlib.sha256(content).hexdigest()
        progress(1)
        return header

    return FileFacts(list(threads.mapped(decode_one, range(len(listing)), workers)), digests)


def decode(item: Item, size: int, form: Form = PLAIN) -> NDArray[np.uint8]:
    """Return one image as (size, size, 3) uint8.

    Raises:
        DataError: If it cannot be read.
    """
    with files.reading(item.name):
        return _decoded(encoded(item), item.name, size, form)[0]


def _decoded(content: bytes, name: str, size: int, form: Form) -> tuple[NDArray[np.uint8], Header]:
    """Return an image, and its header."""
    rgb, header = pictures.read(content, name, form.window)
    if form.exif == "apply":
        rgb = exif.turned(rgb, header.orientation)
    return np.asarray(fit(rgb, size, form.resize)), header


def encoded(item: Item) -> bytes:
    """Return the encoded bytes of an image."""
    return _content(Piece(str(item.path), item.name, item.offset, item.length))


def _content(piece: Piece) -> bytes:
    if not os.path.isfile(piece.file):  # noqa: PTH113 - twice as fast; a pipe would block this process
        presence.check(Path(piece.file))
    if piece.length < 0:
        with open(piece.file, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read()
    with open(piece.file, "rb") as file:  # noqa: PTH123
        file.seek(piece.offset)
        return file.read(piece.length)
