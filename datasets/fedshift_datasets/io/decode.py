"""Decodes images in processes of their own, which write them into a file of the cache; each file is read once."""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Pixels
from fedshift_datasets.base import PLAIN, Form
from fedshift_datasets.io import masks, npz, pictures, pool, presence, volumes
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.io.presence import reading
from fedshift_datasets.io.resize import fit
from fedshift_datasets.listing import SLICE, Item, Listing

#: Called with the number of newly finished images.
Progress = Callable[[int], None]


def no_progress(finished: int) -> None:
    """Show nothing."""


class Decoded(NamedTuple):
    """An image, decoded.

    Attributes:
        pixels: (size, size, 3), uint8.
        header: What its file says of it.
        digests: The SHA-256 of each file that is read whole, by its path.
        mask: (size, size), uint8; None without one.
    """

    pixels: Pixels
    header: Header
    digests: dict[str, str]
    mask: Pixels | None = None


class _Task(NamedTuple):
    """An image with the place in a file where its pixels go, and that of its mask, in bytes."""

    item: Item
    pixels_at: int
    mask_at: int

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self.item.name


def decode_into(
    listing: Listing,
    file: str,
    start: int,
    size: int,
    form: Form = PLAIN,
    *,
    workers: int,
    progress: Progress = no_progress,
) -> tuple[list[Header], dict[str, str]]:
    """Decode all images of a listing, made squares, into a file: pixels (N, size, size, 3), then any masks (N, ...).

    Args:
        listing: The encoded images.
        file: The file's path; it has room for them.
        start: Where they begin in it, in bytes.
        size: Height and width in pixels.
        form: How they become squares of 8 bits a channel.
        workers: The most processes.
        progress: Called for finished images.

    Returns:
        The header of each image, and the SHA-256 of each file that is one image or mask, by its path, as it was
        decoded.

    Raises:
        DataError: If an image cannot be read, with its name.
    """
    number, of_mask = len(listing), size * size
    masks = start + number * 3 * of_mask
    tasks = (_Task(item, start + n * 3 * of_mask, masks + n * of_mask) for n, item in enumerate(listing.items))
    headers, digests = list[Header](), dict[str, str]()
    for done, made in enumerate(pool.mapped(partial(_write, file=file, size=size, form=form), tasks, workers), 1):
        headers.append(made[0])
        digests |= made[1]
        if done == number or done % pool.BATCH == 0:
            progress((done - 1) % pool.BATCH + 1)
    return headers, digests


def _write(task: _Task, file: str, size: int, form: Form) -> tuple[Header, dict[str, str]]:
    """Decode an image into a file; return what else is known of it."""
    made = decoded(task.item, size, form)
    out = os.open(file, os.O_WRONLY)
    try:
        for at, array in ((task.pixels_at, made.pixels), (task.mask_at, made.mask)):
            if array is not None:
                os.pwrite(out, np.ascontiguousarray(array).data, at)
    finally:
        os.close(out)
    return made.header, made.digests


def decode(item: Item, size: int, form: Form = PLAIN) -> Decoded:
    """Return one image as (size, size, 3) uint8, with what its file says of it.

    Raises:
        DataError: If it cannot be read.
    """
    return next(pool.mapped(partial(decoded, size=size, form=form), [item], 1))


def decoded(item: Item, size: int, form: Form) -> Decoded:
    """Return an image, and its mask if it has one.

    Raises:
        DataError: If one is missing or broken, or both have different sizes.
    """
    if item.mask is not None and (lacks := masks.lacking(item.name, item.mask)):
        raise DataError(f"{shown(item.name)}: {lacks}")
    if volumes.is_volume(item.name):
        rgb, header = volumes.picture(item.name, form.window)
        made = Decoded(np.asarray(fit(rgb, size, form.resize)), header, {})
    else:
        content = encoded(item)
        rgb, header = pictures.read(content, item.name, form.window)
        if form.exif == "apply":
            rgb = pictures.turned(rgb, header.orientation)
        made = Decoded(np.asarray(fit(rgb, size, form.resize)), header, _digest(item, content))
    return made if item.mask is None else _outlined(made, item, rgb.size, form)


def _outlined(made: Decoded, item: Item, whole: tuple[int, int], form: Form) -> Decoded:
    """Return an image, whose width and height before it became a square are given, with its mask."""
    file = Item(item.mask or "", item.mask or "")
    kinds = {(volumes.is_volume(each), SLICE in each) for each in (item.name, file.name)}
    if len(kinds) > 1:
        alike = "allowed are two pictures, two NIfTI volumes, or two DICOM files of several frames"
        raise DataError(f"{shown(item.name)}: it and its mask {shown(file.name)} are of two kinds; {alike}")
    if volumes.is_volume(item.name):
        with reading(file.name):
            volumes.check_place(item.name, file.name)
            mask = Image.fromarray(npz.as_classes(volumes.values(file.name), file.name, item.classes))
        return made._replace(mask=np.asarray(fit(mask, made.pixels.shape[0], form.resize)))
    with reading(file.name):
        if SLICE in item.name:
            volumes.check_frames(item.name, file.name)
        content = encoded(file)
        mask, orientation = masks.read(content, file.name, item.classes)
    if form.exif == "apply":
        mask = pictures.turned(mask, made.header.orientation if orientation == pictures.UPRIGHT else orientation)
    if mask.size != whole:
        sizes = [f"{width} x {height}" for width, height in (mask.size, whole)]
        raise DataError(f"{shown(item.name)}: its mask {shown(file.name)} has {sizes[0]} pixels, the image {sizes[1]}")
    fitted = np.asarray(fit(mask, made.pixels.shape[0], form.resize))
    return made._replace(digests=made.digests | _digest(file, content), mask=fitted)


def _digest(item: Item, content: bytes) -> dict[str, str]:
    whole = item.length < 0 and SLICE not in item.name
    return {item.path: hashlib.sha256(content).hexdigest()} if whole else {}


def header(item: Item) -> Header:
    """Return an image's properties, as :func:`fedshift_datasets.io.pictures.header`."""
    if volumes.is_volume(item.name):
        return volumes.picture(item.name, (0, 1))[1]
    return pictures.header(encoded(item), item.name)


def encoded(item: Item) -> bytes:
    """Return the encoded bytes of an image, of a frame as those of a file of its own."""
    if SLICE in item.name:
        return volumes.frame(item.name)
    if not os.path.isfile(item.path):  # noqa: PTH113 - twice as fast; a pipe would block this process
        presence.check(Path(item.path))
    with open(item.path, "rb") as file:  # noqa: PTH123
        file.seek(item.offset)
        return file.read(item.length)
