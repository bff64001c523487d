"""Images that are half there are refused in every format whose decoder can tell; whole ones of any kind are not."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dicom_files
import numpy as np
import pytest
from numpy.random import default_rng
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGBaseline8Bit, RLELossless

from fedshift_core.errors import DataError
from fedshift_datasets.io import decode, intact
from fedshift_datasets.listing import Item

EOI = b"\xff\xd9"
Damage = Callable[[bytes], bytes]


def photo(width: int = 240, height: int = 180) -> Image.Image:
    """Return an image whose parts all differ."""
    values = default_rng(0).integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8)
    noise = default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    smooth = Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)
    return Image.blend(smooth, Image.fromarray(noise), 0.3)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def dicom(kind: str) -> bytes:
    grey = photo().convert("L")
    data = dicom_files.made(np.asarray(grey))
    if kind == "rle":
        data.compress(RLELossless)
        return dicom_files.written(data)
    data.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    data.PixelData = encapsulate([saved(grey, "JPEG")])
    data["PixelData"].is_undefined_length = True
    return dicom_files.written(data)


def zeros(start: float, length: int | None = None) -> Damage:
    """Return what puts zeros into a file from a part of it on; the last two bytes stay."""

    def damaged(content: bytes) -> bytes:
        at = int(start * len(content))
        end = len(content) - 2 if length is None else at + length
        return content[:at] + bytes(end - at) + content[end:]

    return damaged


def middle(length: int, put: bytes = b"") -> Damage:
    """Return what puts bytes in the place of so many in the middle of a file."""
    return lambda content: content[: len(content) // 2] + put + content[len(content) // 2 + length :]


cut, closed, removed = middle(1 << 30), middle(1 << 30, EOI), middle(512)
garbage = middle(512, default_rng(2).bytes(512))


JPEGS = {
    "baseline": saved(photo(), "JPEG", quality=90),
    "progressive": saved(photo(), "JPEG", quality=90, progressive=True),
    "restarts": saved(photo(), "JPEG", restart_marker_rows=1),
    "cmyk": saved(photo().convert("CMYK"), "JPEG", quality=90),
}
OTHERS = {
    **{f"tiff-{kind}": saved(photo(), "TIFF", compression=kind) for kind in ("jpeg", "tiff_lzw", "packbits")},
    "tiff-deflate": saved(photo(), "TIFF", compression="tiff_adobe_deflate"),
    "dicom-jpeg": dicom("jpeg"),
    "dicom-rle": dicom("rle"),
    "webp": saved(photo(), "WEBP"),
    "webp-alpha": saved(photo().convert("RGBA"), "WEBP", exif=b"Exif\0\0" + bytes(300)),
    "webp-lossless": saved(photo(), "WEBP", lossless=True),
    "png": saved(photo(), "PNG"),
}


def read(folder: Path, content: bytes) -> str:
    """Return the reason why a file is refused; empty if it is read."""
    path = folder / "a.jpg"
    path.write_bytes(content)
    try:
        decode.decode(Item(str(path), str(path)), 16)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_a_jpeg_has_the_pixels_that_pillow_decodes(sampling: str, progressive: bool, mode: str) -> None:
    for size in (1, 17, 180):
        content = saved(photo().resize((size, 90)).convert(mode), "JPEG", subsampling=sampling, progressive=progressive)
        found = intact.jpeg(content)
        assert found is not None and found[1] == mode
        assert np.array_equal(found[0], Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("damage", [zeros(0.5), zeros(0.5, 2000), closed, garbage, removed, cut])
@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_that_is_half_there_is_refused(tmp_path: Path, kind: str, damage: Damage) -> None:
    assert not read(tmp_path, JPEGS[kind])
    assert read(tmp_path, damage(JPEGS[kind]))


@pytest.mark.filterwarnings("ignore:End of file reached")  # pydicom's
@pytest.mark.parametrize("damage", [zeros(0.5), zeros(0.5, 200), zeros(0.4, 2000), zeros(0.97, 150), cut])
@pytest.mark.parametrize("kind", OTHERS)
def test_so_are_others_and_jpegs_within_them(tmp_path: Path, kind: str, damage: Damage) -> None:
    assert not read(tmp_path, OTHERS[kind])
    assert read(tmp_path, damage(OTHERS[kind]))


def test_a_hole_of_as_many_blocks_as_were_there_is_found(tmp_path: Path) -> None:
    """The decoder then sees neither missing nor further data."""
    whole = saved(photo(128, 128), "JPEG", quality=88)
    holes = [whole[:at] + bytes(512) + whole[at + 512 :] for at in range(1000, len(whole) - 600, 16)]
    assert all(read(tmp_path, content) for content in holes)


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        *(("JPEG", option, True) for option in ("optimize", "progressive")),
        *(("WEBP", "method", value) for value in (0, 4)),
        ("WEBP", "lossless", True),
        *(("TIFF", "compression", value) for value in ("tiff_lzw", "packbits", "jpeg", "tiff_adobe_deflate")),
        ("PNG", "optimize", False),
    ],
)
def test_flat_images_are_no_damage(tmp_path: Path, kind: str, option: str, value: Any) -> None:
    """Their compressed pixels are zeros, some for 50 kB."""
    black = Image.new("RGB", (2000, 1500))
    partly = black.copy()
    partly.paste(photo(), (100, 100))
    for image in (black, partly, Image.new("RGB", (9, 7), "white")):
        assert not read(tmp_path, saved(image, kind, **{option: value}))
