"""Data set `digits`: handwritten, house-number and synthetic digits as 32x32 RGB images.

Each domain is taken from the first layout that is there; `<split>` is `train` or `test`.

| domain | layout under data-dir | download |
|---|---|---|
| all | `<domain>_<split>.npz`, keys `x` and `y` | |
| all | `<domain>/<split>/<class>/*.png` (also jpg, jpeg, bmp, webp), classes `0` to `9` | |
| mnist | `[mnist/]MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]` | yes |
| usps | `[usps/]usps.bz2`, `[usps/]usps.t.bz2`, libsvm format | yes |
| svhn | `[svhn/]train_32x32.mat`, `[svhn/]test_32x32.mat` | yes |
| mnistm | `{mnistm,mnist_m,mnist-m}/<split folder>/<class>/*.png` | no |
| syn | `{syn,synth,synthetic_digits}/<split folder>/<class>/*.png` | no |

Split folders of mnistm and syn are `train`, `imgs_train` or `training`, and `test`,
`imgs_valid`, `testing` or `val`. A domain's own folder may be in any letter case in the lower
five rows.

| domain | published counts (train, test) | licence |
|---|---|---|
| mnist | 60,000 and 10,000 | CC BY-SA 3.0 |
| usps | 7,291 and 2,007 | none given; research use |
| svhn | 73,257 and 26,032 | none given; non-commercial use |
| mnistm | 59,001 and 9,001 | none given; research use |
| syn | differ between the packages in which it is found | none given; research use |
"""

import bz2
import gzip
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Pixels
from fedshift_datasets.base import SPLITS, Dataset, ImageSet, Source, Split
from fedshift_datasets.io import layout, mat, npz, presence, trees
from fedshift_datasets.listing import Arrays, ImageFiles

DOMAINS = ("mnist", "usps", "mnistm", "svhn", "syn")
CLASSES = tuple("0123456789")
TITLE = "Digits of five kinds (MNIST, USPS, MNIST-M, SVHN, SYN), 10 classes, 32x32"
COUNTS = {"mnist": 70000, "usps": 9298, "mnistm": 68002, "svhn": 99289}  # published

_FOLDERS = {
    "mnist": ("mnist",),
    "usps": ("usps",),
    "mnistm": ("mnistm", "mnist_m", "mnist-m"),
    "svhn": ("svhn",),
    "syn": ("syn", "synth", "synthetic_digits"),
}
_SPLIT_FOLDERS = {"train": ("train", "imgs_train", "training"), "test": ("test", "imgs_valid", "testing", "val")}
_MNIST_STEM = {"train": "train", "test": "t10k"}
_USPS_FILE = {"train": "usps.bz2", "test": "usps.t.bz2"}
_TORCHVISION = ("mnist", "usps", "svhn")  # which it fetches
_CHUNK = 1 << 20  # bytes that are unpacked at a time to learn their number
_USPS_SPREAD = 20  # bytes of memory that torchvision's reader takes for one of the unpacked text


def find(domain: str, split: Split, source: Source) -> ImageFiles:
    """Find one domain and split of the digits; nothing is decoded.

    Args:
        domain: One of :data:`DOMAINS`.
        split: Which split.
        source: Where the images are; with ``download``, mnist, usps and svhn are fetched if absent.

    Returns:
        A listing of an image folder, else what reads arrays at their own size.

    Raises:
        DataError: If the domain is unknown or absent, or its download fails; when read, if it is broken.
    """
    if domain not in DOMAINS:
        raise DataError(f"digits has no domain {domain}; allowed are {', '.join(DOMAINS)}")
    if (root := source.data_dir) is None:
        raise DataError(
            "digits needs the key data-dir: a folder with <domain>_<split>.npz, <domain>/<split>/<class>/*.png "
            "or the files of torchvision's MNIST, USPS and SVHN"
        )
    if root.exists() or not source.download:
        layout.check_data_dir(root)
    place = _find(root, domain, split)
    if place is None and source.download:
        _download(domain, split, root)
        place = _find(root, domain, split)
    if place is None:
        there = [(known, [each for each in SPLITS if _find(root, known, each)]) for known in DOMAINS]
        listed = ", ".join(f"{known} ({', '.join(splits)})" for known, splits in there if splits)
        raise DataError(
            f"{domain} {split} not found in {shown(root.absolute())}; looked for {_layouts(domain, split)}\n"
            f"Domains of digits there: {listed or 'none'}"
        )
    return place if isinstance(place, Arrays) else trees.list_folders(place, CLASSES, complete=False)


def _find(root: Path, domain: str, split: Split) -> Path | Arrays | None:
    """Return the image folder or files of a domain's first layout that exists, or None."""
    with presence.reading(root.absolute()):
        path = layout.find_domain(root, domain, split)
        if path is None and domain in ("mnistm", "syn"):
            folders = trees.children(root, _FOLDERS[domain])
            candidates = (folder / name for folder in folders for name in _SPLIT_FOLDERS[split])
            return next((path for path in candidates if path.is_dir()), None)
        if path is not None:
            return Arrays((path,), partial(npz.read, path, classes=CLASSES)) if path.is_file() else path
        return _find_mnist(root, split) if domain == "mnist" else _find_one(root, domain, split)


def _find_mnist(root: Path, split: Split) -> Arrays | None:
    for base in trees.places(root, _FOLDERS["mnist"]):
        stem = base / "MNIST" / "raw" / _MNIST_STEM[split]
        names = [f"{stem.name}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        images, labels = (trees.first_file(stem.parent, (), (name, f"{name}.gz")) for name in names)
        if images and labels:
            return Arrays((images, labels), partial(_read_mnist, images, labels))
    return None


def _find_one(root: Path, domain: str, split: Split) -> Arrays | None:
    name, read = (_USPS_FILE[split], _read_usps) if domain == "usps" else (f"{split}_32x32.mat", _read_svhn)
    path = trees.first_file(root, (_FOLDERS[domain],), (name,))
    return Arrays((path,), partial(read, path, split)) if path else None


def _read_mnist(images: Path, labels: Path) -> ImageSet:
    x, y = _read_idx(images, ndim=3), _read_idx(labels, ndim=1)
    return npz.as_images(x, y, where=f"{images.absolute()} with {labels.name}", classes=CLASSES)


def _read_idx(path: Path, *, ndim: int) -> Pixels:
    """Return the array of an idx file of unsigned bytes; torchvision reads no gzipped ones."""
    where, head = path.absolute(), 4 * (1 + ndim)
    with presence.reading(where), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start = file.read(head)
        if len(start) < head or start[:4] != bytes((0, 0, 8, ndim)):
            raise DataError(f"{shown(where)}: not an idx file; allowed is one of unsigned bytes in {ndim} dimension(s)")
        shape = tuple(int(n) for n in np.frombuffer(start, ">u4", ndim, offset=4))
        presence.check_room(where, math.prod(shape))
        raw = file.read(math.prod(shape) + 1)  # one more than there should be
    if len(raw) != math.prod(shape):
        raise DataError(
            f"{shown(where)}: {plural(len(raw), 'byte')} of data, but its header says {shape}: cut short or broken"
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _read_usps(path: Path, split: Split) -> ImageSet:
    import torchvision  # type: ignore[import-untyped]  # slow to import, and USPS alone needs it

    with presence.reading(path.absolute()):
        with bz2.open(path) as file:
            size = sum(map(len, iter(lambda: file.read(_CHUNK), b"")))
        presence.check_room(path.absolute(), _USPS_SPREAD * size)
        usps = torchvision.datasets.USPS(path.parent, train=split == "train")
        y = np.array(usps.targets, np.int64)  # torchvision has already taken 1 off the file's 1 to 10
    return npz.as_images(usps.data, y, where=str(path.absolute()), classes=CLASSES)


def _read_svhn(path: Path, _: Split = "train") -> ImageSet:
    """Read a mat file directly: torchvision would refuse any file but the two published ones."""
    where = path.absolute()
    content = mat.read(where, ("X", "y"))
    if not {"X", "y"} <= content.keys() or content["X"].ndim != 4:
        raise DataError(f"{shown(where)}: it must hold the variables X of shape (32, 32, 3, N) and y of shape (N, 1)")
    x, y = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), content["y"].reshape(-1)
    y = np.where(y == 10, y.dtype.type(0), y)  # SVHN calls the digit 0 class 10
    return npz.as_images(x, y, where=str(where), classes=CLASSES)


def _download(domain: str, split: Split, root: Path) -> None:
    """Let torchvision fetch one domain and split into ``root``."""
    import torchvision  # slow to import, and few runs download

    if domain not in _TORCHVISION:
        raise DataError(
            f"{domain} cannot be downloaded; put it in {shown(root.absolute())} as {_layouts(domain, split)}"
        )
    which: Any = {"split": split} if domain == "svhn" else {"train": split == "train"}
    try:
        getattr(torchvision.datasets, domain.upper())(root, download=True, **which)
    except Exception as cause:  # network, disk, check sums and parsers: all end the same way
        raise DataError(
            f"download of {domain} {split} to {shown(root.absolute())} failed ({presence.brief(cause)})"
        ) from cause


def _layouts(domain: str, split: Split) -> str:
    """Return the accepted places of one domain and split, for messages."""
    own, stem = "|".join(_FOLDERS[domain]), _MNIST_STEM[split]
    native = {
        "mnist": f"[mnist/]MNIST/raw/{stem}-{{images-idx3,labels-idx1}}-ubyte[.gz]",
        "usps": f"[usps/]{_USPS_FILE[split]}",
        "svhn": f"[svhn/]{split}_32x32.mat",
    }.get(domain, f"({own})/({'|'.join(_SPLIT_FOLDERS[split])})/<class>/")
    return f"{domain}_{split}.npz, {domain}/{split}/<class>/ or {native}"


DATASET = Dataset("digits", TITLE, DOMAINS, CLASSES, 32, find, COUNTS)
DIGIT5 = replace(DATASET, name="digit5", title=f"{TITLE}; MNIST-M among them")
