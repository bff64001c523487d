"""Arrays to records and back: Flower's own bytes, no copy more than said, and nothing believed."""

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from refusals import refused

from fedshift_core.errors import FedShiftError
from fedshift_core.wire import packing
from fedshift_core.wire.records import RecordError, decode, decode_array, encode, encode_array

NUMBERS = (hnp.integer_dtypes, hnp.unsigned_integer_dtypes, hnp.floating_dtypes, hnp.complex_number_dtypes)
DTYPES = st.one_of(hnp.boolean_dtypes(), *(kind(endianness="?") for kind in NUMBERS))
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


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.array([{}], dtype=object), np.array(["a"]), np.array([b"a"]), np.zeros(2, "M8[s]"), np.zeros(2, "f4,i4")],
)
def test_only_booleans_and_numbers_travel(array: Any) -> None:
    with refused(RecordError, "w"):
        encode_array("w", array)


def npy(text: str, body: bytes, version: bytes = b"\x01\x00", pad: int = 64) -> bytes:
    """Return a file with this header, padded to ``pad``."""
    width = 2 if version[0] == 1 else 4
    length = -(8 + width + len(text) + 1) % pad + len(text) + 1
    return b"\x93NUMPY" + version + length.to_bytes(width, "little") + text.ljust(length - 1).encode() + b"\n" + body


BODY = np.arange(6, dtype=np.float32).tobytes()


def of(descr: str = "'<f4'", shape: str = "(2, 3)", body: bytes = BODY, fortran: str = "False", **file: Any) -> Any:
    """Return the data of an array whose file says this of itself."""
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    return {"data": npy(header, body, **file)}


GOOD: Any = {"dtype": "float32", "shape": (2, 3), "stype": "numpy.ndarray"} | of()
DATA = GOOD["data"]
LARGE = {"shape": (2**40, 3)} | of(shape=f"({2**40}, 3)")
EMPTY = {"shape": (0, 2**62, 2**62)} | of(shape=f"(0, {2**62}, {2**62})", body=b"")
#: What is changed, and what the refusal names.
BAD: dict[str, tuple[Any, str]] = {
    "another stype": ({"stype": "pickle"}, "numpy.ndarray"),
    "no magic": ({"data": b"PK" + DATA}, "NumPy"),
    "magic alone": ({"data": DATA[:8]}, ""),
    "version 2": (of(version=b"\x02\x00"), "1.0"),
    "cut header": ({"data": DATA[:40]}, "NumPy"),
    "objects": (of("'|O'"), "header"),
    "objects said to be": ({"dtype": "object"}, "object"),
    "fields": (of("[('x', '<f4')]"), "header"),
    "no such dtype": (of("'<f3'"), "NumPy"),
    "code": (of(shape="(2, __import__('os').abort())"), ""),
    "nested": (of(shape="(" * 900 + ")" * 900), "NumPy"),
    "not aligned": (of(pad=5), "aligned"),
    "another byte order": (of("'>f4'"), ">f4"),
    "another shape": ({"shape": (3, 2)}, "(3, 2)"),
    "negative": ({"shape": (-2, -3)} | of(shape="(-2, -3)"), ""),
    "too large": ({"shape": (10**5000,)}, ""),
    "large": (LARGE, "24 bytes"),
    "empty and too large": (EMPTY, ""),
    "many dimensions": ({"shape": (1,) * 65}, ""),
    "too short": ({"data": DATA[:-1]}, "23 bytes"),
    "too long": ({"data": DATA + b"\0"}, "25 bytes"),
}


def test_the_pattern_of_what_is_broken_below_is_whole() -> None:
    assert decode_array("w", Array(**GOOD)).tolist() == [[0, 1, 2], [3, 4, 5]]
    turned = Array(**GOOD | of(fortran="True"))  # Fortran order is read as it is meant
    assert decode_array("w", turned).tolist() == turned.numpy().tolist() == [[0, 2, 4], [1, 3, 5]]
    older = Array(**GOOD | of(pad=16))  # NumPy before 1.14
    assert same(decode_array("w", older), older.numpy())


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_what_it_says_is_refused(case: str) -> None:
    change, named = BAD[case]
    with refused(FedShiftError, "w", named) as caught:
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


# --- packed -------------------------------------------------------------------------------------------------


PACKED = hnp.arrays(
    st.sampled_from([np.dtype("f4"), np.dtype("i8"), np.dtype("?"), np.dtype(">f8")]), hnp.array_shapes(min_side=0)
)
RECORDS = st.dictionaries(st.text(max_size=8), PACKED, max_size=4).map(encode)
CONTENTS = st.dictionaries(st.text(min_size=1, max_size=8), RECORDS, max_size=3)


@pytest.mark.parametrize("large", [packing.LARGE, 0])
@given(records=CONTENTS)
def test_what_was_packed_comes_back(records: dict[str, ArrayRecord], large: int) -> None:
    sent = RecordDict({**records, "a config": ConfigRecord({"lr": 0.1}), "a metric": MetricRecord({"n": 3})})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LARGE", large)
        wired = packing.packed(sent)
    assert packing.has_packed(wired) == bool(records)
    back = packing.unpacked(wired)
    assert dict(back) == dict(sent)
    assert all([*record] == [*records[name]] for name, record in back.array_records.items())


def whole(index: Any, data: bytes) -> bytes:
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    return len(text).to_bytes(4, "little") + text + data


ROW = ["w", "float32", [1], "numpy.ndarray", 4]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff{}",
        (packing.MOST_INDEX + 1).to_bytes(4, "little") + bytes(packing.MOST_INDEX + 2),
        whole(b"nonsense", b""),
        whole(b"[" * 100_000, b""),
        whole({"w": 1}, b""),
        whole([ROW[:4]], b"1234"),
        *(whole([[*ROW[:2], [size], *ROW[3:]]], b"1234") for size in (-1, True)),
        whole([["w", 3, *ROW[2:]]], b"1234"),
        whole([ROW], b"123"),
        whole([ROW, ROW], b"12345678"),
        whole([ROW], b"12345"),
    ],
)
def test_what_is_not_packed_arrays_is_refused(data: bytes) -> None:
    for content in (
        RecordDict({packing.PACKED: ConfigRecord({"arrays": data})}),
        RecordDict({"arrays": ArrayRecord({packing.PACKED: Array("uint8", (len(data),), packing.PACKED, data)})}),
    ):
        with refused(RecordError, "arrays"):
            packing.unpacked(content)


@given(data=st.binary(max_size=64))
def test_any_bytes_are_arrays_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(RecordError):
        assert isinstance(packing.unpack(data), ArrayRecord)


def test_what_is_packed_as_no_bytes_or_under_a_taken_name_is_refused() -> None:
    taken = {"arrays": ArrayRecord(), packing.PACKED: ConfigRecord({"arrays": packing.pack(encode({"w": np.ones(2)}))})}
    for content in ({packing.PACKED: ConfigRecord({"arrays": 3})}, taken):
        with refused(RecordError, "arrays"):
            packing.unpacked(RecordDict(content))
