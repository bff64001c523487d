"""Refuses damaged images that Pillow decodes without a word: what its decoders only warn of, or do not look at.

Pixels are Pillow's, or the same ones by simplejpeg, which has the same decoder. libjpeg reports damage of a JPEG as
warnings, which Pillow drops and simplejpeg raises. Data of other compressions say less, but none has long runs of
zeros, as a copy that was broken off leaves them, unless its pixels are flat.
"""

import io
import math
import re
import zlib
from collections.abc import Iterator

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Pixels
from fedshift_datasets.io import tiff

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_APP1 = b"\xff\xe1"  # a marker: compressed pixels have none within
_MODES = {"Gray": "L", "YCbCr": "RGB", "RGB": "RGB"}  # by simplejpeg's names
_CHUNK = re.compile(rb"\w{4}")  # the kind of a PNG's chunk, as Pillow accepts it
#: Warnings of libjpeg on pixels that it makes up. Others are of a header, or of a kind that simplejpeg does not read.
_MADE_UP = ("Corrupt JPEG data", "Premature end of JPEG file")
_BEFORE_END = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
_PADDING = 16  # bytes that some cameras put between the pixels and the end
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")  # neither a byte of data nor a restart
_SCAN, _TABLES, _END, _BASELINE, _PROGRESSIVE = 0xDA, 0xC4, 0xD9, (0xC0, 0xC1), 0xC2
_ZEROS = 64  # bytes in a row that compressed data have where pixels are flat, if at all
#: The fewest pixels of a flat area to a byte of zeros.
_FLAT_JPEG, _FLAT_LOSSY, _FLAT_LOSSLESS = 64, 4096, 2
_MOST_STEPS = 1 << 10  # megabytes that a strip or tile is unpacked to
_HOLE = "a run of zeros in its compressed pixels"


def check(content: bytes, name: object, pixels: int) -> None:
    """Refuse an image with damage that does not keep Pillow from decoding it.

    Args:
        content: A file that Pillow has decoded, or compressed pixels within one.
        name: Its name in messages.
        pixels: Their number.

    Raises:
        DataError: With what was found; a bad checksum of a PNG raises other types.
    """
    if content.startswith(_PNG):
        if _sums_agree(content):
            return
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            image.verify()
    elif damage := _damage(content, pixels):
        raise DataError(f"{shown(name)}: cannot be read (damaged: {damage})")


def jpeg(content: bytes) -> tuple[Pixels, str] | None:
    """Return the pixels (H, W, 3) and Pillow's mode of a JPEG of grey or colour without damage; None of any other file.

    Pillow would take as long to look at the headers of a small image as this takes for all of it.
    """
    if not content.startswith(_JPEG):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        mode = _MODES.get(colours)
        if mode is None or height * width > (Image.MAX_IMAGE_PIXELS or math.inf):
            return None
        rgb: Pixels = simplejpeg.decode_jpeg(content, "RGB")
    except ValueError:
        return None
    return None if _has_hole(content, height * width) else (rgb, mode)


def states_orientation(content: bytes) -> bool:
    """Return whether a JPEG may state an orientation, in EXIF or XMP."""
    return _APP1 in content


def is_lossy(content: bytes) -> bool:
    """Return whether the pixels of a TIFF or WebP are compressed with loss."""
    if content.startswith(tiff.MAGIC):
        return tiff.pieces(content)[0] == "JPEG"
    return content[8:12] == b"WEBP" and any(kind == b"VP8 " for kind, _ in _webp(content))


def _damage(content: bytes, pixels: int) -> str:
    """Return the damage of a file, or of a JPEG within one; empty if there is none to see."""
    if content.startswith(_JPEG):
        return _of_jpeg(content, pixels)
    if content.startswith(tiff.MAGIC):
        compression, pieces = tiff.pieces(content)
        return next(filter(None, (_of_piece(compression, piece, pixels) for piece in pieces)), "")
    # Of what is flat, little is zeros; lossless data have them where neighbours are equal, if at all.
    for kind, data in _webp(content) if content[8:12] == b"WEBP" else ():
        if bytes(_ZEROS) in data:
            most = pixels // _FLAT_LOSSY if kind == b"VP8 " else _equal_neighbours(content) // _FLAT_LOSSLESS
            if bytes(max(_ZEROS, most)) in data:
                return _HOLE
    return ""


def _of_piece(compression: str, content: bytes, pixels: int) -> str:
    """Return the damage of a strip or tile of a TIFF."""
    if compression == "JPEG":
        return _of_jpeg(content, pixels)
    if compression == "Deflate":
        return "" if _inflates(content) else "its checksum is another one"
    return _HOLE if compression in ("LZW", "PackBits") and bytes(_ZEROS) in content else ""


def _inflates(content: bytes) -> bool:
    unpacker = zlib.decompressobj()
    try:
        for _ in range(_MOST_STEPS):
            unpacker.decompress(content, 1 << 20)
            content = unpacker.unconsumed_tail
    except zlib.error:
        return False
    return True


def _of_jpeg(content: bytes, pixels: int) -> str:
    try:  # an eighth of the size: all data are decoded, and few pixels computed
        simplejpeg.decode_jpeg(content, "GRAY", min_height=1, min_width=1, min_factor=1)
    except ValueError as problem:
        warning = str(problem)
        padded = _BEFORE_END.search(warning)
        if warning.startswith(_MADE_UP) and not (padded and int(padded[1]) <= _PADDING):
            return warning
    return _HOLE if _has_hole(content, pixels) else ""


def _has_hole(content: bytes, pixels: int) -> bool:
    return bytes(_ZEROS) in content and any(_holes(content, pixels))


def _sums_agree(content: bytes) -> bool:
    """Return whether each chunk of a PNG, up to its end, has the right checksum."""
    at = len(_PNG)
    while _CHUNK.match(content, at + 4):
        end = at + 8 + int.from_bytes(content[at : at + 4])
        if zlib.crc32(content[at + 4 : end]) != int.from_bytes(content[end : end + 4]):
            return False
        if content[at + 4 : at + 8] == b"IEND":
            return len(content) >= end + 4
        at = end + 4
    return False


def _holes(content: bytes, pixels: int) -> Iterator[bool]:
    """Yield of each scan of a JPEG whether it has more zeros in a row than flat pixels make."""
    frame, first = 0, dict[int, int]()  # the symbol whose code is all zeros, by table
    at = 2
    while (found := _MARKER.search(content, at)) and found[1][0] != _END:
        kind, start = found[1][0], found.end()
        at = start + int.from_bytes(content[start : start + 2])
        segment = content[start + 2 : at]
        if kind == _TABLES:
            while len(segment) > 17:
                first[segment[0]] = segment[17]
                segment = segment[17 + sum(segment[1:17]) :]
        elif kind in (*_BASELINE, _PROGRESSIVE):
            frame = kind
        elif kind == _SCAN and frame:
            tables = [0x10 | selector & 0xF for selector in segment[2 : 1 + 2 * segment[0] : 2]]
            # Without a short code for the end of a block, zeros are 63 equal coefficients of each.
            flat = frame == _PROGRESSIVE or all(first.get(table) == 0 for table in tables)
            end = following.start() if (following := _MARKER.search(content, at)) else len(content)
            yield content.find(bytes(max(_ZEROS, pixels // _FLAT_JPEG if flat else 0)), at, end) >= 0


def _webp(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the compressed pixels of a WebP, each with its kind."""
    at = 12
    while at + 8 < len(content):
        kind, length = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        if kind == b"ANMF":  # a frame holds such chunks
            length = 16
        elif kind in (b"VP8 ", b"VP8L"):
            yield kind, content[at + 8 : at + 8 + length]
        at += 8 + length + length % 2


def _equal_neighbours(content: bytes) -> int:
    with Image.open(io.BytesIO(content), formats=("WEBP",)) as image:
        pixels = np.asarray(image)
    return int(np.count_nonzero((pixels[:, 1:] == pixels[:, :-1]).all(axis=-1)))
