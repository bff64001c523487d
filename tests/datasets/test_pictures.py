"""Image files: opened as the formats that are taken and as nothing else; a line for files that are not taken."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digit_files import noise
from image_trees import write_tar
from PIL import EpsImagePlugin, Image
from support import refusal_of

from fedshift_core import said_once
from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import pictures, trees
from fedshift_datasets.io.decode import decode
from fedshift_datasets.listing import Item

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


def refusal(path: Path) -> str:
    """Return the message with which an image file is refused."""
    return refusal_of(DataError, decode, Item(path, str(path)), 8)


def test_a_postscript_file_that_is_called_png_starts_no_program(tmp_path: Path, ghostscript: Path) -> None:
    path = tmp_path / "art" / "dog" / "a.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(EPS)
    try:  # what Pillow does by itself
        with Image.open(path) as image:
            image.load()
    except OSError:
        pass
    assert ghostscript.exists()
    ghostscript.unlink()
    assert refusal_of(DataError, pictures.read, path.read_bytes(), path) == (
        f"{path}: cannot be read (by its content it is no PNG, JPEG, BMP, WEBP, TIFF or DICOM image)"
    )
    assert not ghostscript.exists()


@pytest.mark.parametrize("kind", ["GIF", "PPM", "ICO", "PDF", "TGA", "PCX"])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "dog" / "a.jpg"
    path.parent.mkdir()
    Image.fromarray(noise(32, 32, 3)).save(path, kind)
    assert "it is no PNG, JPEG, BMP, WEBP, TIFF or DICOM image" in refusal(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("suffix", pictures.SUFFIXES)
def test_a_format_that_is_taken_may_bear_the_suffix_of_another(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / "dog" / f"a{suffix}"
    path.parent.mkdir()
    Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(path, kind)
    assert np.abs(decode(Item(path, str(path)), 8).astype(int) - 90).max() <= 2


def test_the_bound_of_pixels_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Image.MAX_IMAGE_PIXELS == 89_478_485
    path = tmp_path / "dog" / "a.png"
    path.parent.mkdir()
    Image.fromarray(noise(32, 32, 3)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(Image.DecompressionBombError):
        pictures.read(path.read_bytes(), path)


# --- files that are not taken


def place(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_files_that_are_not_taken_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place(tmp_path / "dog", "1.png", "2.HEIC", "3.npy")
    place(tmp_path / "cat", "1.png", "2.heic")
    for _ in range(20):  # as many nodes
        assert len(trees.list_folders(tmp_path, CLASSES, complete=False)) == 2
    wanted = f"3 files are not taken: .heic (2), .npy (1); taken are {', '.join(pictures.SUFFIXES)}"
    assert warnings(caplog) == [f"{tmp_path}: {wanted}"]
    place(tmp_path / "other" / "dog", "1.png", "2.gif", "noend")
    trees.list_folders(tmp_path / "other", CLASSES, complete=False)
    assert warnings(caplog)[1].startswith(f"{tmp_path}/other: 2 files are not taken: .gif (1), no suffix (1); taken")


def test_both_splits_of_a_domain_are_one_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = catalog.get("pacs")
    for name in dataset.classes:
        place(tmp_path / "photo" / name, *(f"{i}.jpg" for i in range(10)), "a.gif")
    for split in dataset.splits("photo"):
        dataset.find("photo", split, Source(tmp_path))
    assert [text.split(": ")[1] for text in warnings(caplog)] == ["7 files are not taken"]


def test_what_lies_in_any_folder_is_no_reason_to_speak(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place(tmp_path / "dog", "1.png", ".DS_Store", "._1.png", "Thumbs.db", "desktop.ini", "README", "LICENSE.txt")
    place(tmp_path / "dog", "readme.md", "Licence")
    place(tmp_path / "cat", "Thumbs.db")
    (tmp_path / "dog" / "more.gif").mkdir()
    assert len(trees.list_folders(tmp_path, CLASSES, complete=False)) == 1
    assert warnings(caplog) == []


def test_members_of_a_tar_that_are_not_taken_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = [f"art/{name}/1.jpg" for name in CLASSES]
    write_tar(tmp_path / "art.tar", [*taken, "art/dog/2.gif", "art/dog/._2.gif", "art/list.txt"])
    for _ in range(2):
        assert len(trees.list_tar(tmp_path / "art.tar", ("art",), CLASSES)) == 3
    assert [text.split(";")[0] for text in warnings(caplog)] == [f"{tmp_path}/art.tar: 1 file is not taken: .gif (1)"]


@pytest.mark.parametrize("complete", [True, False])
def test_a_class_folder_with_other_files_alone_is_refused(tmp_path: Path, complete: bool) -> None:
    for name in CLASSES:
        place(tmp_path / name, "1.png")
    (tmp_path / "cat" / "1.png").rename(tmp_path / "cat" / "1.heic")
    message = refusal_of(DataError, trees.list_folders, tmp_path, CLASSES, complete=complete)
    assert message == (
        f"{tmp_path}/cat: no images found; 1 file is not taken: .heic (1); taken are {', '.join(pictures.SUFFIXES)}"
    )


def test_any_number_of_suffixes_of_any_length_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place(tmp_path / "dog", "1.png", *(f"{number}.\x1b{number}{'x' * 150}" for number in range(50)))
    trees.list_folders(tmp_path, CLASSES, complete=False)
    (text,) = warnings(caplog)
    assert text.isprintable() and len(text) < 900 and "44 more suffixes" in text


def test_prepare_tells_of_files_that_are_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    from fedshift.data import prepare

    for split in ("train", "test"):
        for name in "0123456789":
            path = tmp_path / "syn" / split / name / "a.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(noise(8, 8)).save(path)
    place(tmp_path / "syn" / "train" / "3", "b.avif")
    prepare.prepare("digits", [f"data-dir={tmp_path}", "dataset.domains=[syn]"], as_json=False)
    assert "syn: train 10, test 10" in capsys.readouterr().out
    assert len(warnings(caplog)) == 1 and "1 file is not taken: .avif (1)" in warnings(caplog)[0]
