"""MATLAB files: arrays as they were saved, and a refusal for all else."""

import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from digit_files import noise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from scipy.sparse import csr_array
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.io import mat


def save(folder: Path, compressed: bool = False, **content: Any) -> Path:
    path = folder / "a.mat"
    savemat(path, content, do_compression=compressed)
    return path


def refusal(path: Path) -> str:
    message = refusal_of(DataError, mat.read, path, ("X", "y"))
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i2", "u8", "f4", "f8"])
def test_arrays_come_as_they_were_saved(tmp_path: Path, compressed: bool, kind: str) -> None:
    others = {"before": np.arange(5.0), "text": "hello", "record": {"a": 1, "b": np.array([1, "x"], object)}}
    for shape in ((32, 32, 3, 5), (2, 3, 1, 7), (0, 2, 3, 1)):
        own = {"X": noise(*shape).astype(kind), "y": np.arange(shape[-1], dtype=kind)[:, None]}
        result = mat.read(save(tmp_path, compressed, **others | own | {"after": [1, 2]}), ("X", "y"))
        assert result.keys() == {"X", "y"}
        assert all(
            array.dtype == own[name].dtype and np.array_equal(array, own[name]) for name, array in result.items()
        )


def test_a_name_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert mat.read(save(tmp_path, z=[1]), ("X", "y")) == {}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "value", ["text", {"a": 1}, np.array([1, "a"], object), np.array([[1 + 2j]]), csr_array(np.eye(3))]
)
def test_other_things_than_numbers_are_refused(tmp_path: Path, value: Any, compressed: bool) -> None:
    assert "variable X is no array of real numbers" in refusal(save(tmp_path, compressed, X=value))


def test_other_versions_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, X=noise(2, 2, 3, 4))
    content = path.read_bytes()
    path.write_bytes(content[:124] + struct.pack("<H", 0x0200) + content[126:])
    assert refusal(path).endswith("a MATLAB file of another version; allowed is 5 (save -v7)")
    savemat(path, {"X": noise(2, 2)}, format="4")
    assert refusal(path).endswith("a MATLAB file of another version; allowed is 5 (save -v7)")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keep=st.floats(0, 1, exclude_max=True), compressed=st.booleans())
def test_a_file_cut_anywhere_is_refused_or_lacks_a_variable(tmp_path: Path, keep: float, compressed: bool) -> None:
    path = save(tmp_path, compressed, X=noise(8, 8, 3, 4), y=np.arange(4)[:, None])
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    try:
        assert mat.read(path, ("X", "y")).keys() < {"X", "y"}
    except DataError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 (it need not be raised)


def test_changed_pixels_of_a_compressed_file_are_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, compressed=True, X=noise(8, 8, 3, 40))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # in zlib's check sum
    path.write_bytes(content)
    assert "cannot be read (error: Error -3" in refusal(path)


@pytest.mark.parametrize(("says", "holds"), [(1 << 20, 1 << 24), (1 << 24, 1 << 20)])
def test_a_compressed_variable_of_another_length_is_refused(tmp_path: Path, says: int, holds: int) -> None:
    path = save(tmp_path, X=noise(2, 2, 3, 4))
    body = path.read_bytes()[136:] + bytes(holds)
    element = zlib.compress(struct.pack("<II", 14, says) + body)
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 15, len(element)) + element)
    assert "cannot be read (" in refusal(path)


def test_more_than_the_machine_can_hold_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, compressed=True, X=np.zeros((32, 32, 3, 1000), np.uint8))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    message = refusal_of(DataError, mat.loaded, path, ("X",))  # in this process, whose memory is small
    assert message.endswith("unpacked it takes 0.00286 GiB of memory, here 0.000977 GiB are free")
