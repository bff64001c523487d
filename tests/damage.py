"""Damaged data files, read in a process of its own: ``python tests/damage.py FOLDER KIND=COUNT ...``.

Prints for each kind how many were read and how many were refused, and how much more memory that took. Anything but a
`DataError` that names the file in one line ends the process with a traceback; a crash ends it as crashes do, and the
last line names the file.
"""

import bz2
import faulthandler
import gzip
import io
import json
import pickle
import resource
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import deep_images
import dicom_files
import digit_files
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from fedshift_core.errors import DataError
from fedshift_datasets.base import PLAIN
from fedshift_datasets.io import decode, presence, trees
from fedshift_datasets.io.npz import read
from fedshift_datasets.listing import Item
from fedshift_datasets.sets import cifar, digits

LONGEST = 30  # seconds for one file, after which the process shows where it hangs, and ends
TIFFS = ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
PIXELS = 1 << 20  # Pillow's bound in this process, so that a damaged size takes no seconds and no gigabytes


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        name: Of the file.
        content: What is damaged.
        read: Reads the file.
        packed: Packs the damaged content, so that damage gets past check sums and compression.
    """

    name: str
    content: Callable[[], bytes]
    read: Callable[[Path], Any] = lambda path: read_image(path)
    packed: Callable[[bytes], bytes] = bytes


def mat(compressed: bool = False) -> bytes:
    file = io.BytesIO()
    pixels = digit_files.noise(8, 8, 3, 12)
    savemat(file, {"X": pixels, "y": np.arange(1, 13, dtype=np.uint8)[:, None] % 10}, do_compression=compressed)
    return file.getvalue()


def mat_compressed(content: bytes) -> bytes:
    """Compress the variables of a file, as far as their lengths are whole."""
    packed, at = content[:128], 128
    while at + 8 <= len(content):
        (length,) = struct.unpack_from("<I", content, at + 4)
        element = zlib.compress(content[at : at + 8 + length])
        packed += struct.pack("<II", 15, len(element)) + element
        at += 8 + length
    return packed


def image(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(digit_files.noise(24, 20, 3)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def deep(kind: str) -> bytes:
    """Return an image of 16 bits."""
    file = io.BytesIO()
    Image.fromarray(digit_files.noise(24, 20).astype(np.uint16) * 257).save(file, kind)
    return file.getvalue()


def checked_png(content: bytes) -> bytes:
    """Set the check sums of a PNG right."""
    packed, at = content[:8], 8
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        chunk = content[at + 4 : at + 8 + length]
        packed += content[at : at + 4] + chunk + struct.pack(">I", zlib.crc32(chunk))
        at += 12 + length
    return packed


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(x: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", saved(np.arange(6)))
    return file.getvalue()


def batch() -> bytes:
    content = {
        b"labels": list(range(10)), b"data": digit_files.noise(10, 3072)[:, :],
        b"filenames": [f"{number}.png".encode() for number in range(300)],
    }  # fmt: skip
    return pickle.dumps(content, 2)


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("art/dog/1é.jpg", "art/dog/2.jpg", "art/cat/1.jpg"):  # the first one takes a header of its own
            header = tarfile.TarInfo(name)
            header.size = 5
            archive.addfile(header, io.BytesIO(b"image"))
    return file.getvalue()


def usps() -> bytes:
    rows = digit_files.noise(3, 256) / 255 * 2 - 1
    lines = [f"{n + 1} " + " ".join(f"{i + 1}:{v:.3f}" for i, v in enumerate(row)) for n, row in enumerate(rows)]
    return "\n".join(lines).encode() + b"\n"


def read_image(path: Path) -> None:
    with presence.reading(path):  # in this process, with its bounds
        decode.decoded(Item(str(path), str(path)), 16, PLAIN)


def read_npz(path: Path) -> None:
    read(path, classes=digits.CLASSES)


def kinds(folder: Path) -> dict[str, Kind]:
    """Return all kinds; ``folder`` takes what some need next to the file."""
    np.save(folder / "labels.npy", np.arange(6))
    row = digit_files.noise(1, 12)  # in a tile of 16 x 16
    svhn, idx = digits._read_svhn, partial(digits._read_idx, ndim=3)
    return {
        "mat": Kind("train_32x32.mat", mat, svhn),
        "mat-compressed": Kind("train_32x32.mat", mat, svhn, mat_compressed),
        "mat-packed": Kind("train_32x32.mat", lambda: mat(compressed=True), svhn),
        "png": Kind("a.png", lambda: image("PNG"), packed=checked_png),
        "png-palette": Kind("a.png", lambda: image("PNG", "P"), packed=checked_png),
        "jpeg": Kind("a.jpg", lambda: image("JPEG")),
        "jpeg-progressive": Kind("a.jpg", lambda: image("JPEG", "CMYK", progressive=True)),
        "bmp": Kind("a.bmp", lambda: image("BMP", "P")),
        "webp": Kind("a.webp", lambda: image("WEBP", "RGBA")),
        "webp-lossless": Kind("a.webp", lambda: image("WEBP", lossless=True)),
        "png-deep": Kind("a.png", lambda: deep("PNG"), packed=checked_png),
        "tiff": Kind("a.tif", lambda: image("TIFF")),
        "tiff-deep": Kind("a.tif", lambda: deep("TIFF")),
        "tiff-palette": Kind("a.tif", lambda: image("TIFF", "P")),
        **{f"tiff-{kind}": Kind("a.tif", partial(image, "TIFF", compression=kind)) for kind in TIFFS},
        "tiff-tiled": Kind("a.tif", partial(deep_images.tiff, row, bits=8, packed=True, tiled=True)),
        "dicom": Kind("a.dcm", dicom_files.grey),
        "dicom-enhanced": Kind("a.dcm", dicom_files.enhanced),
        "dicom-colour": Kind("a.dcm", dicom_files.colour),
        **{f"dicom-{k}": Kind("a.dcm", partial(dicom_files.compressed, k)) for k in dicom_files.COMPRESSED},
        "npz": Kind("art_train.npz", lambda: saved(digit_files.noise(6, 8, 8, 3)), read_npz, npz),
        "npz-packed": Kind("art_train.npz", lambda: npz(saved(digit_files.noise(6, 8, 8, 3))), read_npz),
        "npy": Kind(
            "data.npy", lambda: saved(digit_files.noise(6, 32, 32, 3)),
            lambda path: cifar._read_npy(path, folder / "labels.npy"),
        ),
        "pickle": Kind("test_batch", batch, cifar._read_pickle),
        "tar": Kind("art.tar", tar, lambda path: trees.list_tar(path, ("art",), ("dog", "cat"))),
        "idx": Kind("images-idx3-ubyte.gz", lambda: digit_files.idx(digit_files.noise(9, 8, 8)), idx, gzip.compress),
        "idx-packed": Kind(
            "images-idx3-ubyte.gz", lambda: gzip.compress(digit_files.idx(digit_files.noise(9, 8, 8))), idx
        ),
        "usps": Kind("usps.bz2", usps, lambda path: digits._read_usps(path, "train"), bz2.compress),
    }  # fmt: skip


def damaged(content: bytes, seed: int) -> bytes:
    """Return the content with one to five bytes changed, most of them near its beginning; one of ten cut short too."""
    rng = np.random.default_rng(seed)
    changed = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        place = rng.integers(min(len(changed), 400)) if rng.random() < 0.6 else rng.integers(len(changed))
        changed[place] = rng.choice([0, 127, 128, 255, rng.integers(256)])
    return bytes(changed[: rng.integers(len(changed))] if rng.random() < 0.1 else changed)


def check(name: str, kind: Kind, count: int, folder: Path) -> None:
    """Read ``count`` damaged files of a kind, and one that is whole."""
    content, path = kind.content(), folder / kind.name
    path.write_bytes(kind.packed(content))
    kind.read(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    numbers: Any = {"kind": name, "read": 0, "refused": 0}
    for seed in range(count):
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        print(f"{name} {seed}", flush=True)  # the last line, if the process ends here
        path.write_bytes(kind.packed(damaged(content, seed)))
        try:
            kind.read(path)
            numbers["read"] += 1
        except DataError as error:
            if str(path) not in str(error) or not str(error).isprintable():
                raise AssertionError(f"not one line that names the file: {error!a}") from error
            numbers["refused"] += 1
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps(numbers | {"more_mib": more // 1024}))


def main(folder: Path, asked: list[str]) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = PIXELS
    known = kinds(folder)
    for each in asked:
        name, _, count = each.partition("=")
        check(name, known[name], int(count), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
