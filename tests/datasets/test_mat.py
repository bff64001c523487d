"""MATLAB files: arrays as they were saved, and a refusal for all else."""

import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from data_refusals import refuses
from digit_files import noise
from scipy.io import savemat
from scipy.sparse import csr_array

from fedshift_datasets.io import mat


def save(folder: Path, compressed: bool = False, **content: Any) -> Path:
    path = folder / "a.mat"
    savemat(path, content, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i2", "u8", "f4", "f8"])
@pytest.mark.parametrize("shape", [(32, 32, 3, 5), (2, 3, 1, 7), (0, 2, 3, 1)])
def test_arrays_come_as_they_were_saved(tmp_path: Path, compressed: bool, kind: str, shape: tuple[int, ...]) -> None:
    own = noise(*shape).astype(kind)
    content = {"before": np.arange(5.0), "record": {"b": np.array([1, "x"], object)}, "X": own, "after": [1, 2]}
    (result,) = mat.read(save(tmp_path, compressed, **content), ("X", "y")).values()
    assert result.dtype == own.dtype and np.array_equal(result, own)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "value", ["text", {"a": 1}, np.array([1, "a"], object), np.array([[1 + 2j]]), csr_array(np.eye(3))]
)
def test_other_things_than_numbers_are_refused(tmp_path: Path, value: Any, compressed: bool) -> None:
    path = save(tmp_path, compressed, X=value)
    with refuses(path, "variable X"):
        mat.read(path, ("X", "y"))
    assert mat.read(path, ("y",)) == {}


def test_other_versions_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, X=noise(2, 2, 3, 4))
    content = path.read_bytes()
    savemat(path, {"X": noise(2, 2)}, format="4")
    for other in (path.read_bytes(), content[:124] + struct.pack("<H", 0x0200) + content[126:]):
        path.write_bytes(other)
        with refuses(path, "-v7"):
            mat.read(path, ("X", "y"))


def test_changed_pixels_of_a_compressed_file_are_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, compressed=True, X=noise(8, 8, 3, 40))
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])  # in zlib's check sum
    with refuses(path):
        mat.read(path, ("X", "y"))


@pytest.mark.parametrize(("says", "holds"), [(1 << 20, 1 << 24), (1 << 24, 1 << 20)])
def test_a_compressed_variable_of_another_length_is_refused(tmp_path: Path, says: int, holds: int) -> None:
    path = save(tmp_path, X=noise(2, 2, 3, 4))
    body = path.read_bytes()[136:] + bytes(holds)
    element = zlib.compress(struct.pack("<II", 14, says) + body)
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 15, len(element)) + element)
    with refuses(path):
        mat.read(path, ("X", "y"))


def test_more_than_the_machine_can_hold_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, compressed=True, X=np.zeros((32, 32, 3, 1000), np.uint8))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    with refuses(path, "0.00286 GiB", "0.000977 GiB"):
        mat.loaded(path, ("X",))  # in this process, whose memory is small
