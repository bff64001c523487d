"""Reads numeric arrays of MATLAB files of version 5 (``-v6`` and ``-v7`` of MATLAB's save), such as SVHN.

SciPy's reader is compiled code that trusts the lengths in a file: of 500 damaged files a handful ended the process
(SIGSEGV, SIGBUS). A process of its own for it would cost its start and a copy of 225 MB for every file; the arrays of
numbers that a data set needs are a small part of the format, and are read here in plain Python, every length checked.
The format: MathWorks, "MAT-File Format", chapter 1. Arrays come in the type in which they are stored, as from SciPy.
"""

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.io import files

_HEADER, _TAG = 128, 8
_BYTE_ORDERS = {b"IM": "<", b"MI": ">"}
_MATRIX, _COMPRESSED = 14, 15
#: NumPy's names of the types that numbers are stored in.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMBERS = range(6, 16)  # classes of arrays of real numbers, from double to uint64
_OPAQUE, _COMPLEX = 17, 0x0800
_MOST_DIMENSIONS, _MOST_NAME = 32, 63
_HEAD = 1024  # bytes that hold flags, dimensions and name of any array within these bounds


def read(path: Path, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the first array of each wanted name; other variables are ignored.

    Args:
        path: The file.
        wanted: Names of variables.

    Returns:
        Arrays of numbers in Fortran order, by name; missing names are left out.

    Raises:
        DataError: If the file is of another kind or damaged, or a wanted variable is no array of real numbers.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with files.reading(path), path.open("rb") as file:
        order = _byte_order(file.read(_HEADER), path)
        for kind, length in _elements(file, order, path):
            content = file.read(length)
            element = _Inflated(content, order) if kind == _COMPRESSED else _Plain(content)
            variable = _Variable(element, order)
            if variable.name in wanted and variable.name not in arrays:
                files.check_room(path, element.length)
                arrays[variable.name] = variable.array()
            if len(arrays) == len(wanted):
                break
    return arrays


def _byte_order(header: bytes, path: Path) -> str:
    """Return the byte order ``<`` or ``>`` from the header of a file."""
    order = _BYTE_ORDERS.get(header[126:128])
    if order is None:
        raise DataError(f"{shown(path)}: not a MATLAB file of version 5, or cut short")
    (version,) = struct.unpack(f"{order}H", header[124:126])
    if version != 0x0100:
        raise DataError(f"{shown(path)}: a MATLAB file of version {version:#06x}; allowed is 0x0100 (save -v7)")
    return order


def _elements(file: BinaryIO, order: str, path: Path) -> Iterator[tuple[int, int]]:
    """Yield kind and length of the elements of a file, each time positioned at the element's content."""
    end = path.stat().st_size
    at = _HEADER
    while at < end:
        file.seek(at)
        kind, length = struct.unpack(f"{order}II", file.read(_TAG))
        if kind not in (_MATRIX, _COMPRESSED) or length > end - at - _TAG:
            raise ValueError(f"at byte {at} is no variable, or it is cut short")
        yield kind, length
        at += _TAG + length


class _Plain:
    """An element that is not compressed."""

    def __init__(self, content: bytes) -> None:
        self.head, self.length, self._content = content[:_HEAD], len(content), content

    def all(self) -> bytes:
        """Return the whole element."""
        return self._content


class _Inflated:
    """A compressed element, of which only the beginning is unpacked at first."""

    def __init__(self, content: bytes, order: str) -> None:
        self._inflate = zlib.decompressobj()
        kind, length = struct.unpack(f"{order}II", self._inflate.decompress(content, _TAG))
        if kind != _MATRIX:
            raise ValueError(f"a compressed element of kind {kind}, expected {_MATRIX}")
        self.length = length
        self.head = self._next(min(_HEAD, length))

    def all(self) -> bytes:
        """Return the whole element; zlib's check sum must agree."""
        rest = self.length - len(self.head)
        content = self.head + (self._next(rest) if rest else b"")
        if len(content) != self.length or self._next(1) or not self._inflate.eof:
            raise ValueError("a compressed variable has another length than it says")
        return content

    def _next(self, most: int) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail, most)


class _Variable:
    """One variable with its head; its numbers are read on request.

    Attributes:
        name: Its name; empty for an object, which has none at this place.
    """

    def __init__(self, element: _Plain | _Inflated, order: str) -> None:
        self._element, self._order = element, order
        kind, flags, at = self._part(element.head, 0)
        if kind != 6 or len(flags) != 8:
            raise ValueError("a variable without flags")
        (self._flags,) = struct.unpack(f"{order}I", flags[:4])
        self.name = ""
        if self._flags & 0xFF == _OPAQUE:
            return
        kind, dimensions, at = self._part(element.head, at)
        if kind != 5 or len(dimensions) % 4 or len(dimensions) > 4 * _MOST_DIMENSIONS:
            raise ValueError("a variable without dimensions")
        self._shape: tuple[int, ...] = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
        kind, name, self._at = self._part(element.head, at)
        if kind != 1 or len(name) > _MOST_NAME:
            raise ValueError("a variable without a name")
        self.name = bytes(name).decode("latin1")

    def array(self) -> NDArray[Any]:
        """Return the numbers, in the type in which they are stored."""
        if self._flags & 0xFF not in _NUMBERS or self._flags & _COMPLEX or min(self._shape, default=-1) < 0:
            raise ValueError(f"variable {self.name} is no array of real numbers")
        kind, numbers, _ = self._part(self._element.all(), self._at)
        if kind not in _STORED:
            raise ValueError(f"variable {self.name} has numbers of the unknown type {kind}")
        array = np.frombuffer(numbers, np.dtype(f"{self._order}{_STORED[kind]}"))
        if len(array) != math.prod(self._shape):
            raise ValueError(f"variable {self.name} has {plural(len(array), 'number')}, but its shape is {self._shape}")
        return array.reshape(self._shape, order="F")

    def _part(self, content: bytes, at: int) -> tuple[int, memoryview, int]:
        """Return kind and content of the part at ``at``, and where the next one begins."""
        (first,) = struct.unpack_from(f"{self._order}I", content, at)
        if first >> 16:  # up to four bytes lie in the tag itself
            kind, length, start, end = first & 0xFFFF, first >> 16, at + 4, at + 8
        else:
            kind, length = struct.unpack_from(f"{self._order}II", content, at)
            start = at + _TAG
            end = start + -(-length // 8) * 8
        if start + length > len(content) or (first >> 16 and length > 4):
            raise ValueError("a variable is cut short")
        return kind, memoryview(content)[start : start + length], end
