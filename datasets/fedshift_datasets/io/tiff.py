"""Reduces TIFF files to the tags of their one image before Pillow and libtiff read them.

A TIFF is a list of tags that point to any place in the file: thousands of them may name the same megabytes, more lists
may follow, and two dozen compressions each have a decoder in C. So plain Python reads the list here, and writes a new
one behind the file's content: only tags that decide pixels, with places inside the file and compressions of cameras,
scanners and microscopes, and without a second page.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural

MAGIC = (b"II*\0", b"MM\0*")
BIG_MAGIC = (b"II+\0", b"MM\0+")
_MOST_TAGS = 1024
_MOST_VALUES = 1 << 16  # of one tag: strips or tiles, mostly
_MOST_TILE = 1 << 24  # pixels of one tile, which is unpacked completely, however small the image is
_CODES = {1: "B", 3: "H", 4: "I", 7: "B"}  # struct's codes of value types; the tags below have no others
_WIDTH, _LENGTH, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_TILE_WIDTH, _TILE_LENGTH, _SAMPLE_FORMAT, _SAMPLES, _PLANES, _ORIENTATION = 322, 323, 339, 277, 284, 274
#: In addition: fill order, strips (offsets, rows, bytes), predictor, colour map, tiles
#: (offsets, bytes), extra samples, JPEG tables; YCbCr coefficients, subsampling, positions, reference black and white.
_KEPT = {
    _ORIENTATION,
    *(_WIDTH, _LENGTH, _BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES, _PLANES, _TILE_WIDTH, _TILE_LENGTH, _SAMPLE_FORMAT),
    *(266, 273, 278, 279, 317, 320, 324, 325, 338, 347, 530, 531),
}
_COMPRESSIONS = {1: "none", 5: "LZW", 7: "JPEG", 8: "Deflate", 32773: "PackBits", 32946: "Deflate"}
_WHITE_IS_ZERO, _BLACK_IS_ZERO = 0, 1
_UNSIGNED, _SIGNED, _FLOAT = 1, 2, 3
_UNCOMPRESSED = 1
_APART = 2  # the value of _PLANES if channels are stored one after the other
_PLACES, _TABLES = ((273, 279), (324, 325)), 347  # offsets and bytes of strips, and of tiles; tables of all JPEGs


class Depth(NamedTuple):
    """Properties of values of more than 8 bits that Pillow does not report.

    Attributes:
        bits: Bits a channel.
        inverted: Whether zero is white.
        unsigned: Whether they are unsigned with 32 bits, which Pillow takes for signed.
        orientation: As the file states it; 0 in other files than TIFF.
    """

    bits: int = 16
    inverted: bool = False
    unsigned: bool = False
    orientation: int = 0


def reduced(content: bytes, name: object) -> tuple[bytes, Depth]:
    """Return a TIFF with only the tags that decide the pixels of its one page, and properties Pillow ignores.

    Args:
        content: The file; it begins with one of :data:`MAGIC`.
        name: Its name in messages.

    Raises:
        DataError: If it is damaged, has several pages, holds floating-point numbers, is compressed in another way, or
            is of a kind that Pillow reads wrongly.
    """
    where, order = shown(name), _order(content)
    entries, following = _entries(content, where)

    def first(tag: int, default: int) -> int:
        return _values(content, entries, tag, default)[0]

    if following:
        raise DataError(f"{where}: a TIFF of several pages; allowed is one, as nothing says which of them is the image")
    compression = first(_COMPRESSION, _UNCOMPRESSED)
    if compression not in _COMPRESSIONS:
        allowed = ", ".join(dict.fromkeys(_COMPRESSIONS.values()))
        raise DataError(f"{where}: a TIFF with compression {compression}; allowed are {allowed}")
    if first(_SAMPLE_FORMAT, 1) == _FLOAT:
        raise DataError(f"{where}: pixels are floating-point numbers; allowed are whole ones of 8 or 16 bits a channel")
    if any(end > len(content) for _, end in _places(content, entries)):
        raise DataError(f"{where}: cannot be read (truncated: pixels lie behind its end)")
    tile = first(_TILE_WIDTH, 0) * first(_TILE_LENGTH, 0)
    if tile > _MOST_TILE:
        raise DataError(f"{where}: damaged (tiles of {tile} pixels, allowed are at most {_MOST_TILE})")
    bits = first(_BITS, 1)
    kind = first(_SAMPLE_FORMAT, _UNSIGNED)
    if first(_SAMPLES, 1) == 1:
        entries.pop(_PLANES, None)  # one channel lies in one piece; Pillow refuses the other word for it
    _check_readable(where, order, bits, kind, compression, apart=first(_PLANES, 1) == _APART)
    orientation = first(_ORIENTATION, 1)
    entries.pop(_ORIENTATION, None)  # Pillow would follow it
    inverted = bits > 8 and first(_PHOTOMETRIC, _BLACK_IS_ZERO) == _WHITE_IS_ZERO
    if inverted:
        entries[_PHOTOMETRIC] = struct.pack(f"{order}HHIHH", _PHOTOMETRIC, 3, 1, _BLACK_IS_ZERO, 0)
    start = len(content) + len(content) % 2
    listed = b"".join(entries[tag] for tag in sorted(entries))
    header = content[:4] + struct.pack(f"{order}I", start)
    body = content[8:].ljust(start - 8, b"\0")
    content = header + body + struct.pack(f"{order}H", len(entries)) + listed + bytes(4)
    turn = orientation if 1 <= orientation <= 8 else 1
    return content, Depth(bits, inverted, kind == _UNSIGNED and bits == 32, turn)


def _check_readable(where: str, order: str, bits: int, kind: int, compression: int, *, apart: bool) -> None:
    """Refuse files that Pillow 13 silently reads as other values.

    Raises:
        DataError: With what is allowed.
    """
    if kind == _SIGNED and bits <= 8:
        raise DataError(
            f"{where}: signed numbers of {bits} bits; allowed are unsigned ones, or signed ones of 16 or 32"
        )
    if apart and bits > 8 and compression == _UNCOMPRESSED:  # it reads half the bytes of each plane
        raise DataError(
            f"{where}: channels of {bits} bits one after the other, uncompressed; allowed are pixels one after the "
            "other, or such a file with LZW or Deflate"
        )
    if kind == _SIGNED and order == ">" and compression != _UNCOMPRESSED:  # libtiff has turned the bytes already
        raise DataError(
            f"{where}: signed numbers of {bits} bits, big-endian and compressed; allowed are uncompressed or "
            "little-endian ones"
        )


def pieces(content: bytes) -> tuple[str, Iterator[bytes]]:
    """Return the compression of a TIFF that :func:`reduced` takes, and its strips or tiles; JPEGs with their tables."""
    entries, _ = _entries(content, "")
    compression = _COMPRESSIONS[_values(content, entries, _COMPRESSION, _UNCOMPRESSED)[0]]
    start = bytes(_values(content, entries, _TABLES))[:-2]  # without the mark of an end
    places = sorted(set(_places(content, entries)))
    if sum(end - at for at, end in places) > len(content):
        places = []  # they overlap: thousands may name the same megabytes
    return compression, (start + content[at + (len(start) and 2) : end] for at, end in places)


def _places(content: bytes, entries: dict[int, bytes]) -> list[tuple[int, int]]:
    """Return the start and end of each strip or tile."""
    listed = (zip(_values(content, entries, at), _values(content, entries, of), strict=False) for at, of in _PLACES)
    return [(start, start + length) for pairs in listed for start, length in pairs]


def _order(content: bytes) -> str:
    return "<" if content[:2] == b"II" else ">"


def _entries(content: bytes, where: str) -> tuple[dict[int, bytes], int]:
    """Return the kept tags, each with its 12 bytes, and the start of the next page's list."""
    order = _order(content)
    try:
        (at,) = struct.unpack_from(f"{order}I", content, 4)
        (number,) = struct.unpack_from(f"{order}H", content, at)
        (following,) = struct.unpack_from(f"{order}I", content, at + 2 + 12 * number)
    except struct.error:
        raise DataError(f"{where}: cannot be read (truncated: its list of tags lies behind its end)") from None
    if not 0 < number <= _MOST_TAGS:
        raise DataError(f"{where}: damaged (a TIFF of {number} tags, allowed are 1 to {_MOST_TAGS})")
    entries: dict[int, bytes] = {}
    for place in range(at + 2, at + 2 + 12 * number, 12):
        tag, kind, count, offset = struct.unpack_from(f"{order}HHII", content, place)
        if tag not in _KEPT or tag in entries:
            continue
        length = struct.calcsize(_CODES[kind]) * count if kind in _CODES else 0
        if length > 4 and offset + length > len(content):
            raise DataError(f"{where}: cannot be read (truncated: TIFF tag {tag} lies behind its end)")
        if length == 0 or count > _MOST_VALUES:
            raise DataError(
                f"{where}: damaged (TIFF tag {tag} has {plural(count, 'value')} of type {kind} at {offset})"
            )
        entries[tag] = content[place : place + 12]
    return entries, following


def _values(content: bytes, entries: dict[int, bytes], tag: int, *default: int) -> tuple[int, ...]:
    """Return the values of a tag of whole numbers."""
    if tag not in entries:
        return default
    order = _order(content)
    _, kind, count, offset = struct.unpack(f"{order}HHII", entries[tag])
    outside = count * struct.calcsize(_CODES[kind]) > 4
    place = (content, offset) if outside else (entries[tag], 8)
    return struct.unpack_from(f"{order}{count}{_CODES[kind]}", *place)
