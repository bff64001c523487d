"""Named arrays to Flower's records and back, with no copy more than needed. No torch.

Flower's ``Array`` holds an array as the bytes of a .npy file (format 1.0). ``Array(ndarray)`` copies them twice and
``Array.numpy()`` once more; here writing copies once and reading not at all. The bytes are the same, so a peer with
plain Flower reads what is written here, and the other way round.

What comes from a peer is not trusted: nothing is unpickled or evaluated, and an array is read only if its header,
the fields of its ``Array`` and the number of its bytes agree.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import Refused, as_found
from fedshift_core.plural import plural

STYPE = "numpy.ndarray"  # Flower's name for this way of writing
KINDS = "biufc"  # of dtypes that travel: booleans and numbers
_ALIGNMENT = 16  # of the first element, in bytes; NumPy's own is 64


class RecordError(FedShiftError, Refused):
    """An array that cannot travel, or bytes that are not the array that they claim to be."""


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
        array = np.ascontiguousarray(array)
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


@lru_cache(maxsize=256)  # NumPy refuses a header above 10,000 bytes, and what is refused is not kept
def _read_header(stype: str, start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether in Fortran's order, and dtype, from the bytes of a .npy file before its first element."""
    file = BytesIO(start)
    if stype != STYPE or np.lib.format.read_magic(file) != (1, 0):
        raise RecordError(f"it is not written as {STYPE} in format 1.0")
    return np.lib.format.read_array_header_1_0(file)


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
    data, shape = array.data, tuple(array.shape)
    try:
        start = 10 + int.from_bytes(data[8:10], "little")
        header = _read_header(array.stype, data[:start])
        found, said = (header[0], str(header[2])), (shape, array.dtype)
        if found != said or header[2].kind not in KINDS:
            raise RecordError(f"its header says {as_found(found)}, the message {as_found(said)}")
        if len(data) - start != math.prod(shape) * header[2].itemsize or start % _ALIGNMENT:
            raise RecordError(f"{plural(len(data) - start, 'byte')} are not those of {as_found(said)}, aligned")
        return np.ndarray(shape, header[2], buffer=data, offset=start, order="F" if header[1] else "C")
    except Exception as error:  # whatever NumPy and Python's parser raise of bytes that are none of theirs
        why = error if isinstance(error, RecordError) else f"NumPy cannot read it ({type(error).__name__})"
        raise RecordError(f"{name} is not the array that it is said to be: {why}") from None


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
