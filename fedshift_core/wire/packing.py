"""The arrays of a message in few pieces. Each piece that travels costs a request of its own.

Through a SuperLink Flower sends a message as objects (the message, its dictionary, each record, each array, each part
of an array's bytes), each by one HTTP request to the SuperLink and one from it, and likewise between a SuperNode and
its ClientApp. A packed message holds all arrays of all its records in one object, however many they are; only what is
larger than ``LARGE`` stays a record of its own, of one array, which Flower sends in parts.

The arrays of a record are packed as the length of an index (four bytes, little-endian), the index (JSON, for each
array: name, dtype, shape, Flower's ``stype``, number of bytes) and the bytes of all arrays one after the other. What
comes from a peer is not trusted: the index is bounded and checked, and each array is checked where it is read
(:mod:`fedshift_core.wire.records`).
"""

import json
from collections.abc import Iterable
from typing import Annotated

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import Field, TypeAdapter, ValidationError

from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_core.wire.records import RecordError, array_records, config_record

PACKED = "fedshift.packed"  # the name of the record that holds packed ones, and the stype of a large one's array
LARGE = 5 << 20  # bytes of a record from which on it stays one; Flower sends an array in parts of so many
MOST_INDEX = 1 << 22  # bytes of an index that is read; one of forty thousand arrays fits
_LENGTH = 4  # bytes that tell the index's
_Size = Annotated[int, Field(ge=0)]
_INDEX = TypeAdapter(list[tuple[str, str, tuple[_Size, ...], str, _Size]])


def packed(content: RecordDict, once: dict[int, bytes] | None = None) -> RecordDict:
    """Return the records of a message with the arrays packed.

    Args:
        content: What the message holds.
        once: The packed bytes of records by their id, to be used for several messages and filled here.
    """
    done = {} if once is None else once
    small: dict[str, bytes] = {}
    records = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            data = done[id(record)] = done.get(id(record)) or pack(record)
            if len(data) < LARGE:
                small[name] = data
            else:
                records[name] = ArrayRecord({PACKED: Array("uint8", (len(data),), PACKED, data)})
        else:
            records[name] = record
    if small:
        records[PACKED] = ConfigRecord(dict(small))
    return records


def has_packed(content: RecordDict) -> bool:
    """Tell whether the arrays of a message were packed."""
    return config_record(content, PACKED) is not None or any(map(_is_large, array_records(content).values()))


def unpacked(content: RecordDict) -> RecordDict:
    """Return the records of a message as they were before :func:`packed`.

    Raises:
        RecordError: If something is not what it says.
    """
    records = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and _is_large(record):
            records[name] = unpack(record[PACKED].data)
        elif name != PACKED:
            records[name] = record
    for name, data in content.config_records.get(PACKED, {}).items():
        if not isinstance(data, bytes) or name in records:
            raise RecordError(f"{shown(name)} is packed as {type(data).__name__}, or there twice")
        records[name] = unpack(data)
    return records


def _is_large(record: ArrayRecord) -> bool:
    """Tell whether this is a packed record of its own."""
    return list(record) == [PACKED] and record[PACKED].stype == PACKED


def pack(record: ArrayRecord) -> bytes:
    """Return all arrays of a record as one piece."""
    index = json.dumps([[name, a.dtype, list(a.shape), a.stype, len(a.data)] for name, a in record.items()]).encode()
    return b"".join([len(index).to_bytes(_LENGTH, "little"), index, *(array.data for array in record.values())])


def unpack(data: bytes) -> ArrayRecord:
    """Return the arrays of one piece, each with bytes of its own.

    Raises:
        RecordError: If the index is none, or does not tell as many bytes as there are.
    """
    start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if not _LENGTH < start <= min(len(data), MOST_INDEX):
        raise RecordError(f"packed arrays have an index of {plural(start - _LENGTH, 'byte')} among {len(data)}")
    arrays: dict[str, Array] = {}
    for name, dtype, shape, stype, size in _index(data[_LENGTH:start]):
        if name in arrays or len(data) - start < size:
            raise RecordError("packed arrays have a name twice, or fewer bytes than their index says")
        arrays[name] = Array(dtype, shape, stype, data[start : start + size])
        start += size
    if start != len(data):
        raise RecordError(f"packed arrays have {plural(len(data) - start, 'byte')} more than their index says")
    return ArrayRecord(arrays)


def _index(text: bytes) -> Iterable[tuple[str, str, tuple[int, ...], str, int]]:
    """Read an index: name, dtype, shape, stype and number of bytes of each array."""
    try:
        return _INDEX.validate_json(text, strict=True)
    except ValidationError:
        raise RecordError("packed arrays have an index that does not tell name, type, shape and size of each") from None
