"""The arrays of a message in few pieces: all of it comes back, and nothing of a peer's is believed."""

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refused

from fedshift_core.wire import packing
from fedshift_core.wire.records import RecordError, encode

ARRAYS = hnp.arrays(
    st.sampled_from([np.dtype("f4"), np.dtype("i8"), np.dtype("?"), np.dtype(">f8")]), hnp.array_shapes(min_side=0)
)
RECORDS = st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4).map(encode)
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
