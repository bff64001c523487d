"""Image files: opened as the formats that are taken and as nothing else; a line for files that are not taken."""

import io
import logging
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from data_refusals import refuses
from digit_files import noise
from PIL import EpsImagePlugin, Image, ImageOps

from fedshift_core import said_once
from fedshift_datasets.base import PLAIN, Form
from fedshift_datasets.io import pictures, trees
from fedshift_datasets.io.decode import decode
from fedshift_datasets.listing import Item
from fedshift_datasets.quality import checkup

CLASSES = ("dog", "cat", "owl")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said_once, "_said", set())


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `gs` first in the path and return the file that it leaves when it is run."""
    folder, ran = tmp_path / "bin", tmp_path / "ran"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return ran


def test_a_postscript_file_that_is_called_png_starts_no_program(tmp_path: Path, ghostscript: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(EPS)
    with suppress(OSError), Image.open(path) as image:  # what Pillow does by itself
        image.load()
    assert ghostscript.exists()
    ghostscript.unlink()
    with refuses(path, "PNG, JPEG, BMP, WEBP, TIFF or DICOM"):
        pictures.read(path.read_bytes(), path)
    assert not ghostscript.exists()


@pytest.mark.parametrize("kind", ["GIF", "PPM", "ICO", "PDF", "TGA", "PCX"])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(noise(32, 32, 3)).save(path, kind)
    with refuses(path, "PNG, JPEG, BMP, WEBP, TIFF or DICOM"):
        decode(Item(str(path), str(path)), 8)


def test_the_bound_of_pixels_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Image.MAX_IMAGE_PIXELS == 89_478_485
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    for kind in ("PNG", "TIFF", "JPEG"):
        Image.fromarray(noise(32, 32, 3)).save(file := io.BytesIO(), kind)
        with pytest.raises(Image.DecompressionBombError):  # files.reading makes it a DataError
            pictures.read(file.getvalue(), "a")


# --- files that are not taken


def place(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("complete", [True, False])
def test_a_class_folder_with_other_files_alone_is_refused(tmp_path: Path, complete: bool) -> None:
    for name in CLASSES:
        place(tmp_path / name, "1.heic" if name == "cat" else "1.png")
    with refuses(tmp_path / "cat", ".heic (1)", *pictures.SUFFIXES):
        trees.list_folders(tmp_path, CLASSES, complete=complete)


def test_any_number_of_suffixes_of_any_length_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place(tmp_path / "dog", "1.png", *(f"{number}.\x1b{number}{'x' * 150}" for number in range(50)))
    trees.list_folders(tmp_path, CLASSES, complete=False)
    (text,) = warnings(caplog)
    assert text.isprintable() and len(text) < 900 and "44 more suffixes" in text


# --- orientation by EXIF ------------------------------------------------------------------------------------


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
    return decode(Item(str(path), str(path)), size, form).pixels


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
