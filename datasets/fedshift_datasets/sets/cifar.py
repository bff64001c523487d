"""Data set `cifar10`: CIFAR-10, and CIFAR-10.1 as a second, later drawn test set.

| | cifar10 | cifar10.1 |
|---|---|---|
| source | Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009 | Recht et al., Do CIFAR-10 Classifiers Generalize to CIFAR-10?, 2018 |
| published counts | 50,000 train, 10,000 test | 2,000 test (v6), 2,021 (v4); no train |
| licence | none given | MIT |

Classes of both: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck (labels 0 to 9).
Images are 32x32. The first layout that is there is read; letter case of folders does not matter:

| domain | layout under data-dir |
|---|---|
| cifar10 | `[cifar10/][cifar-10-batches-py/]{data_batch_1 to data_batch_5,test_batch}`, pickles |
| cifar10 | `[cifar10/][cifar-10-batches-bin/]{data_batch_1 to data_batch_5,test_batch}.bin` |
| cifar10.1 | `[cifar10.1/][datasets/]cifar10.1_{v6,v4}_{data,labels}.npy` |

The pickles are read with all but a handful of names and operations refused, in plain Python: they cannot run code,
and a damaged one neither ends the process nor takes more memory than a few times its size.
"""  # noqa: E501

import io
import math
import pickle
import pickletools
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Numbers, Pixels
from fedshift_datasets.base import Dataset, ImageSet, Source, Split
from fedshift_datasets.io import npz, presence, trees
from fedshift_datasets.listing import Arrays, joined

NAME = "cifar10"
TITLE = "CIFAR-10 with the later test set CIFAR-10.1, 10 classes, 32x32"
DOMAINS = ("cifar10", "cifar10.1")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNTS = {"cifar10": 60000, "cifar10.1": 2000}  # published
_BATCHES: dict[Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_TOPS = ("cifar10", "cifar-10")
_KINDS = (("cifar-10-batches-py", ""), ("cifar-10-batches-bin", ".bin"))
_LAYOUTS = {
    "cifar10": "[cifar10/]cifar-10-batches-py/ or [cifar10/]cifar-10-batches-bin/ with {batches}",
    "cifar10.1": "[cifar10.1/]cifar10.1_{{v6,v4}}_{{data,labels}}.npy",
}
_VALUES = 3 * 32 * 32


def find(domain: str, split: Split, source: Source) -> Arrays:
    """Find the files of one domain and split of CIFAR-10.

    Args:
        domain: One of :data:`DOMAINS`.
        split: Which split; cifar10.1 has test alone.
        source: Where the files are.

    Raises:
        DataError: If the domain is unknown or absent; when read, if a file is broken.
    """
    if domain == "cifar10.1" and split == "train":
        raise DataError("cifar10.1 has no train split: it is a test set alone; train on cifar10")
    layouts = _LAYOUTS.get(domain, "").format(batches=", ".join(_BATCHES[split]))
    first = trees.locate(
        NAME, domain, source, domains=DOMAINS, finder=partial(_first_file, split=split), layouts=layouts
    )
    if domain == "cifar10.1":
        labels = first.with_name(first.name.replace("_data", "_labels"))
        return Arrays((first, labels), partial(_read_npy, first, labels))
    batches = tuple(first.with_name(f"{name}{first.suffix}") for name in _BATCHES[split])
    absent = [path.name for path in batches if not path.is_file()]
    if absent:
        raise DataError(
            f"{shown(first.parent)}: {', '.join(absent)} not there; {split} consists of {', '.join(_BATCHES[split])}"
        )
    return Arrays(batches, partial(_read_batches, batches))


def _first_file(root: Path, domain: str, split: Split) -> Path | None:
    """Return the first of the files of a domain, None if the domain is not there."""
    if domain == "cifar10.1":
        bases = trees.places(root, ("cifar10.1", "cifar-10.1"), ("datasets",))
        stems = [base / f"cifar10.1_{version}" for version in ("v6", "v4") for base in bases]
        pairs = ((stem.with_name(f"{stem.name}_{part}.npy") for part in ("data", "labels")) for stem in stems)
        return next((data for data, labels in pairs if data.is_file() and labels.is_file()), None)
    for folder, suffix in _KINDS:
        for base in trees.places(root, _TOPS, (folder,)):
            batches = [base / f"{name}{suffix}" for name in _BATCHES[split]]
            if any(path.is_file() for path in batches):
                return batches[0]
    return None


def _read_npy(data: Path, labels: Path) -> ImageSet:
    arrays = []
    for path in (data, labels):
        with presence.reading(path):
            arrays.append(np.load(path, allow_pickle=False))
    return npz.as_images(*arrays, where=f"{data} with {labels.name}", classes=CLASSES)


def _read_batches(paths: tuple[Path, ...]) -> ImageSet:
    return joined([_read_binary(path) if path.suffix == ".bin" else _read_pickle(path) for path in paths])


def _read_binary(path: Path) -> ImageSet:
    """Read records of a label and 3 x 32 x 32 values, one byte each."""
    with presence.reading(path):
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    if len(raw) % (1 + _VALUES):
        raise DataError(f"{shown(path)}: {plural(len(raw), 'byte')}, no multiple of {1 + _VALUES}: cut short or broken")
    records = raw.reshape(-1, 1 + _VALUES)
    return _image_set(records[:, 1:], records[:, 0], path)


def _read_pickle(path: Path) -> ImageSet:
    with presence.reading(path):
        content = _Unpickler(path).load()
    fields = content if isinstance(content, dict) else {}
    packed, labels = (fields.get(key, fields.get(key.encode())) for key in ("data", "labels"))
    data = packed.unpacked() if isinstance(packed, _Array) else None
    if data is None or data.ndim != 2 or data.shape[1] != _VALUES:
        raise DataError(f"{shown(path)}: no data of shape (N, {_VALUES}) and type uint8 in it; not a batch of CIFAR-10")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{shown(path)}: no list of labels in it; not a batch of CIFAR-10")
    with presence.reading(path):
        numbers = np.array(labels, np.int64)
    return _image_set(data, numbers, path)


def _image_set(data: Pixels, labels: Numbers, path: Path) -> ImageSet:
    x = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return npz.as_images(x, labels, where=str(path), classes=CLASSES)


def _latin1(text: str, encoding: str) -> bytes:
    """Do what `_codecs.encode` does in a pickle of bytes, with the one encoding that occurs there."""
    if encoding != "latin1":
        raise ValueError(f"it asks for the encoding {encoding!r}; allowed is latin1")
    return text.encode("latin1")


class _Dtype:
    """Stands for a type of numpy that a pickle makes: its code, such as ``u1``."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def restore(self, state: object) -> None:
        """Take byte order and the like, which one byte does not have."""


class _Array:
    """Stands for an array that a pickle makes: numpy's own rebuilding is compiled code that trusts its input."""

    def __init__(self, *_: object) -> None:
        self._state: object = None

    def restore(self, state: object) -> None:
        """Take (version, shape, type, in Fortran order, bytes)."""
        self._state = state

    def unpacked(self) -> Pixels | None:
        """Return the array if it is one of uint8, else None."""
        match self._state:
            case (int(), tuple() as shape, _Dtype(code="u1" | "|u1" | "uint8"), fortran, bytes() as values):
                if all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) == len(values):
                    return np.frombuffer(values, np.uint8).reshape(shape, order="F" if fortran else "C")
        return None


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",  # an argument of _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,
}
#: What no pickle of those has, or what asks for memory before the bytes are there.
_REFUSED = [
    "PERSID",
    "BINPERSID",
    "INST",
    "OBJ",
    "NEWOBJ",
    "NEWOBJ_EX",
    "EXT1",
    "EXT2",
    "EXT4",
    "EMPTY_SET",
    "ADDITEMS",
    "FROZENSET",
]
_OPERATIONS = [ord(each.code) for each in pickletools.opcodes if each.proto < 5 and each.name not in _REFUSED]


class _Unpickler(pickle._Unpickler):
    """An unpickler of arrays, numbers, texts, lists and dictionaries: anything else is refused by name.

    Python's own in Python: the compiled one takes 16 bytes for each number up to the one by which a damaged file
    keeps a thing, up to 64 GB for a file of ten bytes.
    """

    stack: list[Any]  # the base class's

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(path.read_bytes()), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            wanted = shown(f"{module}.{name}", MOST_NAME)
            raise DataError(f"{shown(self._path)}: it asks for {wanted}; allowed are numpy arrays, numbers and texts")
        return _ALLOWED[module, name]

    def load_build(self) -> None:
        """Give an array or a type its state; Python's own would set attributes of anything."""
        state = self.stack.pop()
        made = self.stack[-1]
        if not isinstance(made, _Array | _Dtype):
            raise ValueError("it builds something other than an array")
        made.restore(state)

    dispatch: ClassVar[dict[int, Any]] = {code: pickle._Unpickler.dispatch[code] for code in _OPERATIONS} | {
        pickle.BUILD[0]: load_build
    }


DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 32, find, COUNTS, test_only=frozenset({"cifar10.1"}))
