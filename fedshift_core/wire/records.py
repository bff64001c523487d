"""Named arrays to Flower's records and back, with no copy more than needed. No torch.

Flower's ``Array`` holds an array as the bytes of a .npy file (format 1.0). ``Array(ndarray)`` copies them twice and
``Array.numpy()`` once more; here writing copies once and reading not at all. The bytes are the same, so a peer with
plain Flower reads what is written here, and the other way round.

What comes from a peer is not trusted: nothing is unpickled or evaluated, and an array is read only if its header,
the fields of its ``Array`` and the number of its bytes agree.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.plural import plural

STYPE = "numpy.ndarray"  # Flower's name for this way of writing
KINDS = "biufc"  # of dtypes that travel: booleans and numbers
_PREFIX = b"\x93NUMPY"
_VERSION = (1, 0)  # later ones are for headers of dtypes with fields, which do not travel
_START = len(_PREFIX) + 4  # then come the version and the length of the text, two bytes each
_ALIGNMENT = 16  # of the first element, in bytes; NumPy's own is 64
_TEXT = re.compile(
    rb"\{'descr': '([<>|][biufc][0-9]{1,2})', 'fortran_order': (True|False), 'shape': (\([0-9, ]*\)), \} *\n"
)
_MOST_DIMENSIONS, _LARGEST = 64, np.iinfo(np.intp).max


class RecordError(FedShiftError):
    """An array that cannot travel, or bytes that are not the array that they claim to be."""


class Draft:
    """An array that is computed where it will travel: in the .npy file of an ``Array``.

    Attributes:
        array: To write to; it holds anything at first. Gone after :meth:`finish`, as must be every view of it:
            as long as there is one, the bytes cannot be handed over and are copied.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._file = BytesIO()
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"shape": shape, "fortran_order": False, "descr": descr}
        np.lib.format.write_array_header_1_0(self._file, header)
        start, size = self._file.tell(), math.prod(shape) * dtype.itemsize
        if size:
            self._file.seek(start + size - 1)
            self._file.write(b"\0")
        self.array: NDArray[Any] = np.ndarray(shape, dtype, buffer=self._file.getbuffer(), offset=start)

    def finish(self) -> Array:
        """Return the array as it travels; nothing is copied."""
        dtype, shape = str(self.array.dtype), self.array.shape
        del self.array
        return Array(dtype, shape, STYPE, self._file.getvalue())


# `content.config_records` and `content.array_records` of Flower check a copy of all records each time, and are a cycle,
# which holds the records until Python looks for cycles. A message is looked at a dozen times.


def config_record(content: RecordDict, name: str) -> ConfigRecord | None:
    """Return a record of scalars; None where there is none of that name."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else None


def array_record(content: RecordDict, name: str) -> ArrayRecord | None:
    """Return a record of arrays; None where there is none of that name."""
    record = content.get(name)
    return record if isinstance(record, ArrayRecord) else None


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """Return all records of arrays."""
    return {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}


def encode(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Write arrays to a record, under their names and in their order.

    Raises:
        RecordError: If an array holds anything but booleans and numbers.
    """
    return ArrayRecord({name: encode_array(name, array) for name, array in arrays.items()})


def encode_array(name: str, array: NDArray[Any]) -> Array:
    """Write one array; each element is copied once, whatever the layout in memory.

    Raises:
        RecordError: If it holds anything but booleans and numbers.
    """
    array = np.asarray(array)  # a 0-d NumPy scalar is no array
    if array.dtype.kind not in KINDS:
        raise RecordError(f"{name} is of type {array.dtype}; only booleans and numbers travel")
    if not array.flags.forc:
        draft = Draft(array.shape, array.dtype)
        np.copyto(draft.array, array)
        return draft.finish()
    in_order = array.flags.c_contiguous
    header, dtype = _header(array.dtype, array.shape, in_order)
    flat = array.reshape(-1, order="C" if in_order else "F")
    return Array(dtype, array.shape, STYPE, b"".join((header, flat.view(np.uint8).data)))


@lru_cache(maxsize=4096)  # a round writes the same few arrays for every node, and NumPy formats each header anew
def _header(dtype: np.dtype[Any], shape: tuple[int, ...], in_order: bool) -> tuple[bytes, str]:
    """Return the .npy header of an array in C order, or in Fortran's, and the name of its dtype."""
    header = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(header, {"shape": shape, "fortran_order": not in_order, "descr": descr})
    return header.getvalue(), str(dtype)


def decode(record: ArrayRecord) -> Arrays:
    """Read the arrays of a record by name: read-only views of the record's bytes, which they keep alive.

    Raises:
        RecordError: If an array is not what its fields say.
    """
    return {name: decode_array(name, array) for name, array in record.items()}


def decode_array(name: str, array: Array) -> NDArray[Any]:
    """Read one array: a read-only view of its bytes.

    Raises:
        RecordError: If the bytes are no .npy file of format 1.0 with the dtype and shape of the fields.
    """
    if array.stype != STYPE:
        raise RecordError(f"{name} is written as {array.stype[:40]!r}, expected {STYPE!r}")
    data, shape = array.data, tuple(array.shape)
    if len(shape) > _MOST_DIMENSIONS or not all(0 <= size <= _LARGEST for size in shape):
        raise RecordError(f"{name} has a shape that no array can have")
    if not data.startswith(_PREFIX) or len(data) < _START:
        raise RecordError(f"{name} does not start as an array written by NumPy")
    if (version := tuple(data[6:8])) != _VERSION:
        raise RecordError(f"{name} is written in format {version[0]}.{version[1]}, expected 1.0")
    offset = _START + int.from_bytes(data[8:10], "little")
    text = _TEXT.fullmatch(data, _START, offset)
    if text is None or len(data) < offset or offset % _ALIGNMENT:
        raise RecordError(f"{name} has no header of booleans or numbers as NumPy writes it")
    dtype, declared = _dtype(text[1])
    if dtype is None:
        raise RecordError(f"{name} is of type {declared!r}, which NumPy does not know")
    if declared != array.dtype:
        raise RecordError(f"{name} holds {declared}, but is said to hold {array.dtype[:40]!r}")
    if text[3] != repr(shape).encode():
        raise RecordError(f"{name} has another shape in its header than {shape}, which it is said to have")
    if len(data) - offset != math.prod(shape) * dtype.itemsize:
        raise RecordError(
            f"{name} has {plural(len(data) - offset, 'byte')}, expected {math.prod(shape) * dtype.itemsize} "
            f"of shape {shape} and type {dtype}"
        )
    try:
        return np.ndarray(shape, dtype, buffer=data, offset=offset, order="F" if text[2] == b"True" else "C")
    except ValueError:  # no bytes at all, and sizes whose product no array can have
        raise RecordError(f"{name} has a shape that no array can have") from None


@cache  # there are few that the pattern lets through, and a dtype's name takes as long as all other checks
def _dtype(descr: bytes) -> tuple[np.dtype[Any] | None, str]:
    """Return a dtype and its name; None and what was asked for if there is no such dtype."""
    try:
        dtype = np.dtype(descr.decode())
    except TypeError:
        return None, descr.decode()
    return dtype, str(dtype)


def num_bytes(content: RecordDict) -> int:
    """Return the bytes of what a message holds: of arrays and texts, and eight of each number."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    rest: list[Mapping[str, Any]] = [*content.config_records.values(), *content.metric_records.values()]
    return arrays + sum(_size(value) for record in rest for value in record.values())


def _size(value: Any) -> int:
    """Return the bytes of an entry of a record: a number, a text, bytes, or a list of these."""
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 8
