"""Both plain layouts: what is read, what is refused and with which words."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from digit_files import noise
from digit_files import read as read_found
from PIL import Image
from support import ROOT

from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import npz, resize, trees

CLASSES = ("dog", "cat", "owl")


def read(root: Path, domain: str = "art", size: int = 8) -> ImageSet:
    return read_found(trees.find_plain(root, domain, "train", CLASSES), size)


def savez(root: Path, **arrays: Any) -> Path:
    path = root / "art_train.npz"
    np.savez(path, **arrays)
    return path


# --- resize


# --- npz


def test_npz_round_trip(tmp_path: Path) -> None:
    x, y = noise(6, 9, 9, 3), np.arange(6) % 3
    npz.write(tmp_path / "art_train.npz", ImageSet(x, y))
    back = read(tmp_path, size=9)
    assert np.array_equal(back.x, x) and np.array_equal(back.y, y)
    assert (back.x.dtype, back.y.dtype) == (np.uint8, np.int64)
    assert [path.name for path in tmp_path.iterdir()] == ["art_train.npz"]


def test_write_npz_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, images = tmp_path / "a" / "art_train.npz", ImageSet(noise(1, 8, 8, 3), np.array([2]))
    npz.write(path, images)

    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with refuses(path, "No space left"):
        npz.write(path, ImageSet(noise(1, 8, 8, 3), np.array([0])))
    assert [result.name for result in path.parent.iterdir()] == ["art_train.npz"]
    assert read(path.parent).y.tolist() == [2]
    with refuses(path / "x.npz"):  # below a file
        npz.write(path / "x.npz", images)


@pytest.mark.parametrize("shape", [(4, 6, 6), (4, 6, 6, 1), (4, 9, 6, 3), (4, 8, 8, 3)])
def test_npz_of_every_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    savez(tmp_path, x=x, y=np.array([0, 2, 1, 0], np.uint64), name=np.array("more"))
    images = read(tmp_path)
    assert np.array_equal(images.x, resize.resize(x, 8))
    assert images.y.tolist() == [0, 2, 1, 0] and images.y.dtype == np.int64


X, Y = noise(3, 8, 8, 3), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        (None, Y, "x y"),
        (None, None, "x y none"),
        (X / 255, Y, "x float64 uint8"),
        (X.astype(np.int64), Y, "x int64 uint8"),
        (X.reshape(3, -1), Y, "x (3, 192)"),
        (noise(3, 8, 8, 4), Y, "x (3, 8, 8, 4)"),
        (noise(3, 3, 8, 8), Y, "x (3, 3, 8, 8)"),
        (noise(3, 0, 8, 3), Y, "x (3, 0, 8, 3)"),
        (X, Y / 1, "y float64 integers"),
        (X, CLASSES, "y <U3"),
        (X, Y > 0, "y bool"),
        (X, np.eye(3, dtype=int), "y int64 (3, 3)"),
        (X, Y[:2], "3 2 x y"),
        (X, Y + 1, "1 3 0 2"),
        (X, Y - 1, "-1 1 0 2"),
        (X, np.array([0, 1, 2**64 - 1], np.uint64), "0 2"),
        ([None, 1, 2], Y, "key x"),
        (X, [0, 1, None], "key y"),
        (X[:0], Y[:0], "no images"),
        (noise(0, 4, 4), Y[:0], "no images"),
    ],
)
def test_bad_npz_is_refused_by_name(tmp_path: Path, x: Any, y: Any, named: str) -> None:
    path = savez(tmp_path, **{key: array for key, array in (("x", x), ("y", y)) if array is not None})
    with refuses(path, *named.split()):
        read(tmp_path)


def changed(content: bytes) -> bytes:
    return content[:300] + bytes([content[300] ^ 255]) + content[301:]  # inside the pixels: against the check sum


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda content, at=at: content[:at] for at in (0, 1, 10, 400, -1)),
        changed,
        *(lambda _, text=text: text for text in (b"x,y\n1,2\n", b"\x93NUMPY", b"PK\x03\x04 not really")),
    ],
)
def test_damaged_npz_is_refused_by_name(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = savez(tmp_path, x=X, y=Y)
    path.write_bytes(damage(path.read_bytes()))
    with refuses(path):
        read(tmp_path)


def test_zip_of_other_things_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "art_train.npz", "w") as archive:
        archive.writestr("x", "text")
        archive.writestr("y", "text")
    with refuses("art_train.npz", "key y"):
        read(tmp_path)


# --- image folder


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_folder_turns_every_8_bit_mode_into_rgb(tmp_path: Path, mode: str) -> None:
    suffix = ".jpg" if mode == "CMYK" else ".png"
    path = tmp_path / "art" / "train" / "dog" / f"a{suffix}"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(path)
    assert np.all(read(tmp_path).x >= 250)


# --- what is not there


# --- damaged anywhere ---------------------------------------------------------------------------------------


#: Kinds of `tests/damage.py`.
MAT = ("mat", "mat-compressed", "mat-packed")
OTHERS = (
    "png", "png-palette", "jpeg", "jpeg-progressive", "bmp", "webp", "webp-lossless", "npz", "npz-packed", "npy",
    "pickle", "tar", "idx", "idx-packed", "png-deep", "tiff", "tiff-deep", "tiff-palette", "tiff-tiff_lzw",
    "tiff-tiff_adobe_deflate", "tiff-packbits", "tiff-jpeg", "tiff-tiled", "dicom", "dicom-enhanced",
    "dicom-colour", "dicom-rle", "dicom-jpeg", "dicom-j2k",
)  # fmt: skip


def check(folder: Path, **counts: int) -> None:
    """Read so many damaged files of each kind in a process of its own."""
    requested = [f"{kind}={count}" for kind, count in counts.items()]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "damage.py"), str(folder), *requested],
        env=os.environ | paths, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout[-100:], ended.stderr[-3000:])
    output = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [(each["kind"], each["read"] + each["refused"]) for each in output] == list(counts.items())
    for each in output:
        assert each["refused"] > 0 and each["more_mib"] < 100, each
    assert sum(each["read"] for each in output) > 0  # some damage is none that a reader can see


def test_damaged_mat_files_do_not_end_the_process(tmp_path: Path) -> None:
    check(tmp_path, **{"mat": 500, "mat-compressed": 200, "mat-packed": 50})


def test_other_damaged_files_do_not_end_the_process(tmp_path: Path) -> None:
    check(tmp_path, **dict.fromkeys(OTHERS, 60))


@pytest.mark.slow
@pytest.mark.long
def test_many_damaged_files_do_not_end_the_process(tmp_path: Path) -> None:
    check(tmp_path, **dict.fromkeys((*MAT, *OTHERS, "usps"), 1000))
