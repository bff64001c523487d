"""Every kind of file of 16 bits a channel: its right values, with and without a window, or a refusal."""

import io
import struct
import zlib
from typing import Any

import dicom_files
import numpy as np
import pytest
from deep_images import png, tiff, transparent
from digit_files import noise
from PIL import Image
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.io import pictures, presence
from fedshift_datasets.io import png as png_files

V = [0, 1000, 2000, 4095]
FULL = [65535] * 4
WINDOW = (0, 4095)
PLAIN, SEEN = [0, 4, 8, 16], [0, 62, 125, 255]  # grey: divided by 257; within the window
UPPER = [0, 3, 7, 15]  # colours: the upper byte, window or not
WHITE_PLAIN, WHITE_SEEN = [255, 251, 247, 239], [255, 193, 130, 0]
RED = [V, [0] * 4, FULL]  # red as V, no green, full blue


def pixels(*channels: list[int]) -> np.ndarray:
    return np.array(channels).T[np.newaxis]


def saved(mode: str, kind: str) -> bytes:
    image, file = Image.fromarray(np.array([V], np.uint16)), io.BytesIO()
    (image if image.mode == mode else image.convert(mode)).save(file, kind)
    return file.getvalue()


def dicom(**tags: Any) -> bytes:
    return dicom_files.written(dicom_files.made(np.array([V], np.uint16), **tags))


ORDERS: list[dict[str, Any]] = [{"order": order, "packed": packed} for order in "<>" for packed in (False, True)]
GREY = [
    png(pixels(V), 0),
    png(pixels(V), 0, extra=transparent(0)),
    png(pixels(V, FULL), 4),
    png(pixels(V, [0] * 4), 4),
    saved("I;16", "PNG"),
    saved("I;16", "TIFF"),
    dicom(),
    *(tiff([V], **how, **more) for how in ORDERS for more in ({}, {"apart": True}, {"tiled": True})),
    *(tiff([V], order=order, packed=True, predicted=True) for order in "<>"),
]
WHITE_IS_ZERO = [
    dicom(PhotometricInterpretation="MONOCHROME1"),
    *(tiff([V], photo=0, apart=apart, **how) for how in ORDERS for apart in (False, True)),
]
RGB = [
    png(pixels(*RED), 2),
    png(pixels(*RED), 2, extra=transparent(0, 0, 65535)),
    png(pixels(*RED, V), 6),
    *(tiff(RED, photo=2, tiled=tiled, **how) for how in ORDERS for tiled in (False, True)),
    *(tiff([*RED, more], photo=2, extra=extra, **how) for how in ORDERS for more, extra in ((FULL, 2), (V, 0))),
    *(tiff(RED, photo=2, order=order, packed=True, **{how: True}) for order in "<>" for how in ("predicted", "apart")),
]
CMYK = [tiff([*RED, [0] * 4], photo=5, **how) for how in ORDERS]
#: Content, its first channel without and with the window, of colours all channels of the last pixel.
TABLE = [
    *((content, PLAIN, SEEN, None) for content in GREY),
    *((content, WHITE_PLAIN, WHITE_SEEN, None) for content in WHITE_IS_ZERO),
    *((content, UPPER, UPPER, [15, 0, 255]) for content in RGB),
    *((content, [255, 252, 248, 240], [255, 252, 248, 240], [240, 255, 0]) for content in CMYK),
]


def look(content: bytes, window: tuple[float, float] | None = None) -> np.ndarray:
    return np.asarray(pictures.read(content, "x", window)[0])[0]


@pytest.mark.parametrize(("content", "plain", "seen", "last"), TABLE, ids=range(len(TABLE)))
def test_16_bits_are_what_the_table_in_the_docs_says(
    content: bytes, plain: list[int], seen: list[int], last: list[int] | None
) -> None:
    for window, wanted in ((None, plain), (WINDOW, seen)):
        values = look(content, window)
        assert values[:, 0].tolist() == wanted
        assert values[-1].tolist() == (last or values[-1, :1].tolist() * 3)
        assert last or (values == values[:, :1]).all()


APART = "channels of 16 bits one after the other, uncompressed; allowed are pixels one after the other, or such a file"
KINDS = "a TIFF of a kind that is not taken"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((tiff(planes, photo=photo, apart=True, tiled=tiled, order=order), APART)
          for planes, photo in ((RED, 2), ([*RED, FULL], 2), ([*RED, FULL], 5), ([V, FULL], 1))
          for order in "<>" for tiled in (False, True)),
        *((tiff([V, FULL], extra=extra, order=order, packed=packed), KINDS)
          for extra in (0, 1, 2) for order in "<>" for packed in (False, True)),
        (tiff(RED, photo=2, kind=2), KINDS),
        (tiff([V], order=">", bits=32), KINDS),
        *((tiff([V], kind=2, bits=bits, order=">", packed=True, tiled=tiled),
           f"signed numbers of {bits} bits, big-endian and compressed; allowed are uncompressed or little-endian ones")
          for bits in (16, 32) for tiled in (False, True)),
        (tiff([[1, 2, 3, 4]], kind=2, bits=8), "signed numbers of 8 bits; allowed are unsigned ones, or signed"),
        (saved("I;16", "JPEG2000"), "by its content it is no PNG"),
        (saved("I;16", "PPM"), "by its content it is no PNG"),
    ],
)  # fmt: skip
def test_what_would_be_read_as_other_values_is_refused(content: bytes, words: str) -> None:
    for window in (None, WINDOW):
        assert words in refusal_of(DataError, pictures.read, content, "x", window)


@pytest.mark.parametrize(("order", "packed"), [("<", False), ("<", True), (">", False)])
@pytest.mark.parametrize("bits", [16, 32])
def test_signed_numbers_need_a_window(order: str, packed: bool, bits: int) -> None:
    for apart in (False, True):
        content = tiff([[-100, 0, 50, 100]], kind=2, bits=bits, order=order, packed=packed, apart=apart)
        assert "dataset.window=[low,high]" in refusal_of(DataError, pictures.read, content, "x")
        assert look(content, (-100, 100))[:, 0].tolist() == [0, 128, 191, 255]
    unsigned = tiff([[0, 10**9, 2 * 10**9, 4 * 10**9]], bits=32, packed=packed)
    assert look(unsigned, (0, 4e9))[:, 0].tolist() == [0, 64, 128, 255]


def test_grey_with_alpha_has_the_values_of_grey_whatever_the_filters_of_its_rows() -> None:
    x = noise(13, 11).astype(np.uint16) * 257 + noise(13, 11)[::-1]
    four = np.stack([x >> 8, x & 255, noise(13, 11), noise(13, 11)], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(four, "RGBA").save(file, "PNG")  # whose encoder chooses a filter for each row
    eight = file.getvalue()
    kind = eight[12:24] + b"\x10\x04" + eight[26:29]
    both = eight[:12] + kind + struct.pack(">I", zlib.crc32(kind)) + eight[33:]
    grey = png(x[..., None], 0)
    for window in (None, (300, 50_000)):
        values = np.asarray(pictures.read(both, "x", window)[0])
        assert np.array_equal(values, np.asarray(pictures.read(grey, "x", window)[0]))


def test_only_a_sound_png_of_grey_with_alpha_is_taken_for_one() -> None:
    both = png(pixels(V, FULL), 4)
    assert png_files.as_bytes(png(pixels(V), 0)) is None
    assert png_files.as_bytes(both[:29] + bytes(4) + both[33:]) is None  # its checksum is wrong: Pillow refuses it
    with pytest.raises(DataError), presence.reading("x"):
        pictures.read(both[:-30], "x")
