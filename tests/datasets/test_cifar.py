"""CIFAR-10 and CIFAR-10.1: every layout on small files, every refusal, and pickles that would run code."""

import codecs
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from image_trees import SPLITS, check_usual_refusals
from numpy.typing import NDArray

from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.sets import cifar

FILES: dict[Split, list[str]] = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def values(name: str) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the three images of a batch as in the files, and their labels."""
    rng = np.random.default_rng(len(name) * 100 + ord(name[-1]))
    return rng.integers(0, 256, (3, 3072), dtype=np.uint8), [0, 9, ord(name[-1]) % 10]


def as_pickle(name: str) -> bytes:
    """Pack a batch as Python 2 did: the keys and the pixels are byte strings."""
    data, labels = values(name)
    return pickle.dumps({b"batch_label": name.encode(), b"labels": labels, b"data": data}, protocol=2)


def as_binary(name: str) -> bytes:
    data, labels = values(name)
    return b"".join(bytes([label]) + row.tobytes() for row, label in zip(data, labels, strict=True))


KINDS: dict[str, tuple[str, Callable[[str], bytes]]] = {
    "cifar-10-batches-py": ("", as_pickle),
    "cifar-10-batches-bin": (".bin", as_binary),
}


def write(root: Path, kind: str) -> Path:
    """Write all batches of a kind into ``root``."""
    suffix, pack = KINDS[kind]
    root.mkdir(parents=True, exist_ok=True)
    for name in FILES["train"] + FILES["test"]:
        (root / f"{name}{suffix}").write_bytes(pack(name))
    return root


def write_npy(root: Path, version: str = "v6", count: int = 4) -> None:
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / f"cifar10.1_{version}_data.npy", np.full((count, 32, 32, 3), count, np.uint8))
    np.save(root / f"cifar10.1_{version}_labels.npy", np.arange(count, dtype=np.int32))


def read(root: Path, domain: str = "cifar10", split: Split = "test") -> ImageSet:
    return cifar.find(domain, split, Source(root)).read()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", ["{kind}", "", "cifar10", "CIFAR-10/{kind}"])
def test_batches(tmp_path: Path, base: str, kind: str, split: Split) -> None:
    folder = write(tmp_path / base.format(kind=kind), kind)
    result = cifar.find("cifar10", split, Source(tmp_path))
    assert result.files == tuple(folder / f"{name}{KINDS[kind][0]}" for name in FILES[split])
    data, labels = zip(*map(values, FILES[split]), strict=True)
    images = result.read()
    # A row holds the red plane, then the green and the blue one, each by rows.
    assert np.array_equal(images.x, np.concatenate(data).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert images.x.dtype == np.uint8 and images.y.dtype == np.int64
    assert images.y.tolist() == [label for some in labels for label in some]


@pytest.mark.parametrize("base", ["", "cifar10.1", "CIFAR-10.1/datasets"])
def test_cifar101(tmp_path: Path, base: str) -> None:
    write_npy(tmp_path / base, "v4", 5)
    assert read(tmp_path, "cifar10.1").y.tolist() == [0, 1, 2, 3, 4]
    write_npy(tmp_path / base, "v6", 4)
    images = cifar.find("cifar10.1", "test", Source(tmp_path))
    assert [path.name for path in images.files] == ["cifar10.1_v6_data.npy", "cifar10.1_v6_labels.npy"]
    assert images.read().x.shape == (4, 32, 32, 3)


# --- refusals


def test_refusals(tmp_path: Path) -> None:
    check_usual_refusals(cifar.find, tmp_path, cifar.DOMAINS)
    with refuses("cifar10.1", "train", "cifar10"):
        cifar.find("cifar10.1", "train", Source(tmp_path))
    write_npy(tmp_path)
    with refuses("there: cifar10.1"):
        read(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with refuses("test_batch.bin", "10 to 10", "0 to 9"):
        read(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_batches_are_named(tmp_path: Path, kind: str) -> None:
    folder, suffix = write(tmp_path / kind, kind), KINDS[kind][0]
    for number in (1, 4):
        (folder / f"data_batch_{number}{suffix}").unlink()
    with refuses(folder, f"data_batch_1{suffix}, data_batch_4{suffix}"):
        read(tmp_path, split="train")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_truncated_batch_is_refused(tmp_path: Path, kind: str, keep: float) -> None:
    path = write(tmp_path, kind) / f"test_batch{KINDS[kind][0]}"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with refuses(path):
        read(tmp_path)


class Runs:
    """Runs a command when an ordinary unpickler reads it."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._reduced


@pytest.mark.parametrize(
    ("evil", "name"),
    [
        (Runs(os.system, "touch ran"), "system"),
        (Runs(eval, "open('ran', 'w')"), "eval"),
        (Runs(getattr, "x", "upper"), "getattr"),
        (Runs(np.fromfile, "ran"), "numpy"),
        (Runs(np.load, "ran"), "numpy"),
        (Runs(codecs.decode, b"00", "hex"), "_codecs.decode"),
        (Runs(codecs.encode, "x", "rot13"), "the encoding 'rot13'"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickle_that_would_run_something_is_refused_by_name(here: Path, evil: Runs, name: str, protocol: int) -> None:
    (here / "test_batch").write_bytes(pickle.dumps({"data": evil, "labels": [0]}, protocol))
    with refuses(here / "test_batch", name):
        read(here)
    assert not (here / "ran").exists()


DATA = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"data": DATA},
        *({"data": data, "labels": [0, 1]} for data in (DATA / 255, DATA[:, :1024])),
        *({"data": DATA, "labels": labels} for labels in ([0], [0, 10], [0, -1], [0, 1.5], [0, 1 << 80])),
        {"labels": [0, 1], "fine_labels": [0, 1]},
        {"data": DATA[:0], "labels": []},
    ],
)
def test_pickle_of_other_things_is_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=4))
    with refuses(tmp_path / "test_batch"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("does", "named"),
    [
        (b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb", "array"),
        (b"cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb", "array"),
        (b"cnumpy\ndtype\n)\x81", "KeyError"),  # makes an object
        (b"\x82\x01", "KeyError"),  # an extension's
        (b"cnumpy.\x1b[31m\nevil\n", "numpy.\\x1b[31m.evil"),
        (b"}r" + struct.pack("<I", 10_000_000), ""),  # keep it as number 10,000,000
        (b"}\x96" + struct.pack("<Q", 100_000_000), ""),  # a bytearray of which nothing is there
        (b"}T" + struct.pack("<i", 100_000_000), ""),  # a text
    ],
)
def test_other_operations_of_a_pickle_are_refused_in_little_memory(tmp_path: Path, does: bytes, named: str) -> None:
    (tmp_path / "test_batch").write_bytes(b"\x80\x02" + does + b".")
    tracemalloc.start()
    try:
        with refuses(tmp_path / "test_batch", named):
            read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert not hasattr(cifar._latin1, "a") and not hasattr(cifar._Dtype, "a")


@pytest.mark.parametrize(
    ("part", "array", "named"),
    [
        ("labels", np.arange(3), "4 3 x y"),
        ("labels", np.arange(8, 12), "8 11 0 9"),
        ("labels", np.array([{}, {}]), "labels.npy"),
        ("data", np.array([{}, {}]), "data.npy"),
        ("data", None, "data.npy"),  # cut off
    ],
)
def test_other_npy_is_refused_by_name(tmp_path: Path, part: str, array: Any, named: str) -> None:
    write_npy(tmp_path)
    path = tmp_path / f"cifar10.1_v6_{part}.npy"
    np.save(path, array) if array is not None else path.write_bytes(path.read_bytes()[:-1])
    with refuses(*named.split()):
        read(tmp_path, "cifar10.1")
