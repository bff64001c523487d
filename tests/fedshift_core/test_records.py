"""Arrays to records and back: Flower's own bytes, no copy more than said, and nothing believed."""

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from support import ROOT

from fedshift_core.errors import FedShiftError
from fedshift_core.wire.records import Draft, RecordError, decode, decode_array, encode, encode_array

DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"), hnp.complex_number_dtypes(endianness="?"),
)  # fmt: skip
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
LAYOUTS: list[Any] = [
    lambda a: a,
    np.asfortranarray,
    lambda a: a.T,
    lambda a: a[..., ::-1] if a.ndim else a,
    lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) if a.ndim > 1 else a,  # channels_last
]


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


# --- there and back --------------------------------------------------------------------------------


@given(array=ARRAYS, layout=st.sampled_from(LAYOUTS))
def test_the_bytes_are_flowers_and_both_read_them(array: NDArray[Any], layout: Any) -> None:
    array = layout(array)
    written = encode_array("w", array)
    assert written == Array(array)
    read = decode_array("w", written)
    assert same(read, array) and same(written.numpy(), array)
    assert read.flags.aligned and not read.flags.writeable
    assert not array.size or np.shares_memory(read, np.frombuffer(written.data, np.uint8))


def test_names_and_order_are_kept_and_scalars_become_arrays() -> None:
    record = encode({"b": np.float32(1.5), "a": np.zeros(0), "c": np.array(3)})  # type: ignore[dict-item]
    assert [(name, array.shape) for name, array in decode(record).items()] == [("b", ()), ("a", (0,)), ("c", ())]
    assert decode(ArrayRecord()) == {}


@given(array=ARRAYS)
def test_a_draft_travels_as_what_was_written_to_it(array: NDArray[Any]) -> None:
    draft = Draft(array.shape, array.dtype)
    draft.array[...] = array
    assert draft.finish() == Array(np.ascontiguousarray(array).reshape(array.shape))


def test_what_was_read_outlives_the_record() -> None:
    read = decode(encode({"w": np.arange(1000)}))["w"]
    assert read.tolist() == list(range(1000))


@pytest.mark.parametrize("layout", [LAYOUTS[0], np.asfortranarray, LAYOUTS[3], LAYOUTS[-1]])
def test_writing_copies_once_and_reading_never(layout: Any) -> None:
    array = layout(np.zeros((8, 16, 32, 32)))
    tracemalloc.start()
    written = encode_array("w", array)
    _, high = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    read, (_, high_of_reading) = decode_array("w", written), tracemalloc.get_traced_memory()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.nbytes == array.nbytes
    assert max(high, high_of_reading, held) < 1.05 * array.nbytes


def test_a_draft_is_handed_over_without_a_copy() -> None:
    tracemalloc.start()
    draft = Draft((1 << 17,), np.dtype(np.float64))
    draft.array[...] = 1
    written = draft.finish()
    _, high = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert high < 1.05 * len(written.data)


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.array([{}], dtype=object), np.array(["a"]), np.array([b"a"]), np.zeros(2, "M8[s]"), np.zeros(2, "f4,i4")],
)
def test_only_booleans_and_numbers_travel(array: NDArray[Any]) -> None:
    with pytest.raises(RecordError, match=r"w is of type .*; only booleans and numbers travel"):
        encode_array("w", array)


def npy(text: str, body: bytes, version: bytes = b"\x01\x00", pad: int = 64) -> bytes:
    """Return a file with this header, padded to ``pad``."""
    width = 2 if version[0] == 1 else 4
    length = -(8 + width + len(text) + 1) % pad + len(text) + 1
    return b"\x93NUMPY" + version + length.to_bytes(width, "little") + text.ljust(length - 1).encode() + b"\n" + body


def header(descr: str = "'<f4'", fortran: str = "False", shape: str = "(2, 3)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


BODY = np.arange(6, dtype=np.float32).tobytes()
GOOD: dict[str, Any] = {"dtype": "float32", "shape": (2, 3), "stype": "numpy.ndarray", "data": npy(header(), BODY)}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another stype": ({"stype": "pickle"}, "w is written as 'pickle', expected 'numpy.ndarray'"),
    "no bytes": ({"data": b""}, "does not start as an array"),
    "no magic": ({"data": b"PK" + GOOD["data"]}, "does not start as an array"),
    "magic alone": ({"data": GOOD["data"][:8]}, "does not start as an array"),
    "version 2": ({"data": npy(header(), BODY, b"\x02\x00")}, r"format 2\.0, expected 1\.0"),
    "version 3": ({"data": npy(header(), BODY, b"\x03\x00")}, r"format 3\.0, expected 1\.0"),
    "cut header": ({"data": GOOD["data"][:40]}, "no header"),
    "objects": ({"data": npy(header("'|O'"), BODY)}, "no header"),
    "objects said to be": ({"dtype": "object"}, "holds float32, but is said to hold 'object'"),
    "fields": ({"data": npy(header("[('x', '<f4')]"), BODY)}, "no header"),
    "text": ({"data": npy(header("'<U1'"), BODY)}, "no header"),
    "no such dtype": ({"data": npy(header("'<f3'"), BODY)}, "is of type '<f3', which NumPy does not know"),
    "code": ({"data": npy(header(shape="(2, __import__('os').abort())"), BODY)}, "no header"),
    "nested": ({"data": npy(header(shape="(" * 900 + ")" * 900), BODY)}, "no header"),
    "not aligned": ({"data": npy(header(), BODY, pad=5)}, "no header"),
    "another dtype": ({"data": npy(header("'<i4'"), BODY)}, "holds int32, but is said to hold 'float32'"),
    "another byte order": ({"data": npy(header("'>f4'"), BODY)}, "holds >f4, but is said to hold 'float32'"),
    "another shape": ({"shape": (3, 2)}, r"another shape in its header than \(3, 2\)"),
    "negative": ({"shape": (-2, -3), "data": npy(header(shape="(-2, -3)"), BODY)}, "no array can have"),
    "too large": ({"shape": (10**5000,)}, "no array can have"),
    "large": ({"shape": (2**40, 3), "data": npy(header(shape=f"({2**40}, 3)"), BODY)}, "has 24 bytes, expected 13194"),
    "empty and too large": (
        {"shape": (0, 2**62, 2**62), "data": npy(header(shape=f"(0, {2**62}, {2**62})"), b"")}, "no array can have"
    ),
    "many dimensions": ({"shape": (1,) * 65}, "no array can have"),
    "too short": ({"data": GOOD["data"][:-1]}, "has 23 bytes, expected 24"),
    "too long": ({"data": GOOD["data"] + b"\0"}, "has 25 bytes, expected 24"),
}  # fmt: skip


def test_the_pattern_of_what_is_broken_below_is_whole() -> None:
    assert decode_array("w", Array(**GOOD)).tolist() == [[0, 1, 2], [3, 4, 5]]
    turned = Array(**GOOD | {"data": npy(header(fortran="True"), BODY)})  # Fortran order is read as it is meant
    assert decode_array("w", turned).tolist() == turned.numpy().tolist() == [[0, 2, 4], [1, 3, 5]]
    older = Array(**GOOD | {"data": npy(header(), BODY, pad=16)})  # NumPy before 1.14
    assert same(decode_array("w", older), older.numpy())


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_what_it_says_is_refused(case: str) -> None:
    change, message = BAD[case]
    with pytest.raises(FedShiftError, match=message) as caught:
        decode(ArrayRecord({"w": Array(**GOOD | change)}))
    assert len(str(caught.value)) < 200


@given(st.data())
def test_broken_bytes_are_refused_or_read_as_flower_reads_them(data: st.DataObject) -> None:
    broken = bytearray(GOOD["data"])
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    array = Array(**GOOD | {"data": bytes(broken)})
    try:
        read = decode_array("w", array)
    except RecordError:
        return
    assert same(read, array.numpy())


def test_the_module_needs_no_torch() -> None:
    code = "import sys, fedshift_core.wire.records; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
