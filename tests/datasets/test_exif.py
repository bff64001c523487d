"""Orientation by EXIF: read from every format, applied or ignored, and part of every key."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from fedshift_datasets.base import PLAIN, Form
from fedshift_datasets.io import decode, pictures
from fedshift_datasets.listing import Item
from fedshift_datasets.quality import checkup

APPLY = Form(exif="apply")
_TAG = 274


def picture(path: Path, turn: int | None, mode: str = "RGB") -> Path:
    """Write an image of 6 x 4 pixels, all different, with a stated orientation."""
    values = np.arange(72, dtype=np.uint8).reshape(4, 6, 3) * 3
    image = Image.fromarray(values).convert(mode) if mode != "I;16" else Image.fromarray(values[..., 0].astype("u2"))
    exif = Image.Exif()
    if turn is not None:
        exif[_TAG] = turn
    image.save(path, exif=exif) if turn is not None else image.save(path)
    return path


def pixels(path: Path, form: Form, size: int = 6) -> np.ndarray:
    return decode.decode(Item(str(path), str(path)), size, form).pixels


@pytest.mark.parametrize("suffix", ["png", "tif", "webp", "jpg"])
@pytest.mark.parametrize("turn", [2, 3, 4, 5, 6, 7, 8])
def test_an_orientation_is_ignored_or_applied_as_pillow_does(tmp_path: Path, suffix: str, turn: int) -> None:
    path = picture(tmp_path / f"a.{suffix}", turn)
    assert pictures.header(path.read_bytes(), path).orientation == turn
    with Image.open(path) as stored:
        stored.load()
        kept = Image.fromarray(np.asarray(pictures.read(path.read_bytes(), path)[0]))
    assert np.array_equal(pixels(path, PLAIN), np.asarray(kept.resize((6, 6), Image.Resampling.BILINEAR)))
    exif = Image.Exif()
    exif[_TAG] = turn
    kept.save(copy := io.BytesIO(), "PNG", exif=exif)
    right = ImageOps.exif_transpose(Image.open(copy))
    assert right is not None
    assert np.array_equal(pixels(path, APPLY), np.asarray(right.resize((6, 6), Image.Resampling.BILINEAR)))


@pytest.mark.parametrize("exif", [0, 1, 9, 300, b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b""])
def test_an_unknown_orientation_or_a_damaged_block_turns_nothing(tmp_path: Path, exif: int | bytes) -> None:
    path = tmp_path / "a.jpg"
    if isinstance(exif, int):
        picture(path, exif)
    else:
        Image.new("RGB", (6, 4), "red").save(path, exif=exif)
    assert np.array_equal(pixels(path, APPLY), pixels(path, PLAIN))
    assert not checkup.headers([Item(str(path), str(path))])[0].turned
