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
from image_trees import SPLITS, check_usual_refusals, refusal
from numpy.typing import NDArray

from fedshift_core.errors import DataError
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


def unreadable(root: Path, domain: str = "cifar10") -> str:
    images = cifar.find(domain, "test", Source(root))
    with pytest.raises(DataError) as caught:
        images.read()
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(images.files[0]))
    return str(caught.value)


def test_constants_are_the_published_ones() -> None:
    assert cifar.COUNTS == {"cifar10": 60000, "cifar10.1": 2000} and len(cifar.CLASSES) == 10


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", ["{kind}", "", "cifar10", "CIFAR-10/{kind}"])
def test_batches(tmp_path: Path, base: str, kind: str, split: Split) -> None:
    folder = write(tmp_path / base.format(kind=kind), kind)
    result = cifar.find("cifar10", split, Source(tmp_path))
    assert result.files == tuple(folder / f"{name}{KINDS[kind][0]}" for name in FILES[split])
    images = result.read()
    count = 3 * len(FILES[split])
    assert images.x.shape == (count, 32, 32, 3) and images.x.dtype == np.uint8 and images.y.dtype == np.int64
    for at, name in enumerate(FILES[split]):
        data, labels = values(name)
        assert images.y[3 * at : 3 * at + 3].tolist() == labels
        # A row holds the red plane, then the green and the blue one, each by rows.
        assert images.x[3 * at + 1, 5, 7].tolist() == [data[1, plane * 1024 + 5 * 32 + 7] for plane in range(3)]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_pickles_of_every_protocol_of_numpy(tmp_path: Path, protocol: int) -> None:
    data, labels = values("test_batch")
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": data, "labels": labels}, protocol))
    assert read(tmp_path).y.tolist() == labels


def test_pickle_that_names_old_numpy(tmp_path: Path) -> None:
    content = as_pickle("test_batch").replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in content
    (tmp_path / "test_batch").write_bytes(content)
    assert len(read(tmp_path)) == 3


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
    assert refusal(cifar.find, tmp_path, "cifar10.1") == (
        "cifar10.1 has no train split: it is a test set alone; train on cifar10"
    )
    write_npy(tmp_path)
    assert refusal(cifar.find, tmp_path, "cifar10", "test").endswith("\nDomains of cifar10 there: cifar10.1")


@pytest.mark.parametrize("kind", KINDS)
def test_missing_batches_are_named(tmp_path: Path, kind: str) -> None:
    folder, suffix = write(tmp_path / kind, kind), KINDS[kind][0]
    for number in (1, 4):
        (folder / f"data_batch_{number}{suffix}").unlink()
    message = refusal(cifar.find, tmp_path, "cifar10")
    assert message.startswith(f"{folder}: data_batch_1{suffix}, data_batch_4{suffix} not there")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_truncated_batch_is_refused(tmp_path: Path, kind: str, keep: float) -> None:
    path = write(tmp_path, kind) / f"test_batch{KINDS[kind][0]}"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    unreadable(tmp_path)


def test_binary_label_outside_the_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    assert unreadable(tmp_path).endswith("labels from 10 to 10, allowed are 0 to 9")


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
def test_pickle_that_would_run_something_is_refused_by_name(
    tmp_path: Path, evil: Runs, name: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": evil, "labels": [0]}, protocol))
    message = refusal(lambda domain, split, source: read(tmp_path), tmp_path, "cifar10")
    assert name in message and str(tmp_path / "test_batch") in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"data": np.zeros((2, 3072), np.uint8)},
        {"labels": [0, 1]},
        {"data": np.zeros((2, 3072)), "labels": [0, 1]},
        {"data": np.zeros((2, 1024), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1.5]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1 << 80]},
        {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]},
        {"data": np.zeros((0, 3072), np.uint8), "labels": []},
    ],
)
def test_pickle_of_other_things_is_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=4))
    unreadable(tmp_path)


@pytest.mark.parametrize(
    "asks",
    [
        b"}r" + struct.pack("<I", 10_000_000),  # keep it as number 10,000,000
        b"}\x96" + struct.pack("<Q", 100_000_000),  # a bytearray of which nothing is there
        b"}T" + struct.pack("<i", 100_000_000),  # a text
    ],
)
def test_a_pickle_of_few_bytes_takes_little_memory(tmp_path: Path, asks: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(b"\x80\x02" + asks + b".")
    tracemalloc.start()
    try:
        unreadable(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb", "builds something other than an array"),
        (b"cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb", "builds something other than an array"),
        (b"cnumpy\ndtype\n)\x81", "cannot be read (KeyError: 129)"),  # makes an object
        (b"\x82\x01", "cannot be read (KeyError: 130)"),  # an extension's
        (b"cnumpy.\x1b[31m\nevil\n", "asks for numpy.\\x1b[31m.evil"),
    ],
)
def test_other_operations_of_a_pickle_are_refused(tmp_path: Path, does: bytes, reason: str) -> None:
    (tmp_path / "test_batch").write_bytes(b"\x80\x02" + does + b".")
    assert reason in unreadable(tmp_path)
    assert not hasattr(cifar._latin1, "a") and not hasattr(cifar._Dtype, "a")


def test_arrays_in_fortran_order_and_other_arrays_next_to_them(tmp_path: Path) -> None:
    data, labels = values("test_batch")
    content = {"data": np.asfortranarray(data), "labels": labels, "more": np.zeros((2, 2)), "kinds": np.array([None])}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, 2))
    assert read(tmp_path).x[1, 5, 7].tolist() == [data[1, plane * 1024 + 5 * 32 + 7] for plane in range(3)]


@pytest.mark.parametrize("part", ["data", "labels"])
def test_broken_npy_is_refused_by_name(tmp_path: Path, part: str) -> None:
    write_npy(tmp_path)
    path = tmp_path / f"cifar10.1_v6_{part}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{path}: cannot be read"):
        read(tmp_path, "cifar10.1")
    np.save(path, np.array([{}, {}]))
    with pytest.raises(DataError, match=f"{path}: cannot be read .*[Oo]bject arrays"):
        read(tmp_path, "cifar10.1")


def test_npy_of_other_shapes_is_refused(tmp_path: Path) -> None:
    write_npy(tmp_path)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.arange(3))
    assert "4 images (x) but 3 labels (y)" in unreadable(tmp_path, "cifar10.1")
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.arange(8, 12))
    assert "labels from 8 to 11, allowed are 0 to 9" in unreadable(tmp_path, "cifar10.1")
