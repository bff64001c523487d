"""PNG and TIFF files of 16 and more bits a channel as the tests need them, written byte by byte."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_ORDERS = {"<": b"II*\0", ">": b"MM\0*"}


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels: Any, kind: int, *, extra: bytes = b"", bits: int = 16) -> bytes:
    """Return a PNG.

    Args:
        pixels: Values, (H, W, channels).
        kind: 0 grey, 2 RGB, 4 grey with alpha, 6 RGBA.
        extra: Chunks before the pixels, see :func:`transparent`.
        bits: 8 or 16.
    """
    values = np.asarray(pixels).astype(">u2" if bits == 16 else "u1")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, kind, 0, 0, 0)
    body = _chunk(b"IHDR", header) + extra + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def transparent(*values: int) -> bytes:
    """Return the chunk that makes one colour transparent."""
    return _chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


def tiff(
    planes: Any, *, order: str = "<", photo: int = 1, kind: int = 1, bits: int = 16, apart: bool = False,
    packed: bool = False, tiled: bool = False, predicted: bool = False, extra: int | None = None,
) -> bytes:  # fmt: skip
    """Return a TIFF of one row.

    Args:
        planes: Values by channel, (channels, W), W at most 16.
        order: ``<`` or ``>``.
        photo: 0 white is zero, 1 black is zero, 2 RGB, 5 CMYK.
        kind: 1 unsigned, 2 signed.
        bits: 8, 16 or 32.
        apart: Channel after channel, not pixel after pixel.
        packed: By Deflate.
        tiled: As one tile of 16 x 16 for each plane.
        predicted: Differences of neighbours, of pixels that are packed.
        extra: What the last channel is: 0 anything, 1 associated alpha, 2 alpha.
    """
    rows = np.asarray(planes).astype(f"i{bits // 8}" if kind == 2 else f"u{bits // 8}")
    channels, width = rows.shape
    if tiled:
        padded = np.zeros((channels, 16, 16), rows.dtype)
        padded[:, 0, :width] = rows
        rows = padded.reshape(channels, -1)
    blocks = list(rows) if apart else [rows.T]
    if predicted:
        blocks = [np.diff(block, axis=0, prepend=np.zeros_like(block[:1])) for block in blocks]
    pieces = [np.asarray(block).astype(block.dtype.newbyteorder(order)).tobytes() for block in blocks]
    pieces = [zlib.compress(piece) if packed else piece for piece in pieces]
    pieces = [piece + b"\0" * (len(piece) % 2) for piece in pieces]
    starts = [8 + sum(map(len, pieces[:place])) for place in range(len(pieces))]
    lengths = [len(piece) for piece in pieces]
    tags: list[tuple[int, int, Sequence[int]]] = [
        (256, 4, [width]), (257, 4, [1]), (258, 3, [bits] * channels), (259, 3, [8 if packed else 1]),
        (262, 3, [photo]), (277, 3, [channels]), (284, 3, [2 if apart else 1]), (339, 3, [kind] * channels),
    ]  # fmt: skip
    if tiled:
        tags += [(322, 3, [16]), (323, 3, [16]), (324, 4, starts), (325, 4, lengths)]
    else:
        tags += [(273, 4, starts), (278, 4, [1]), (279, 4, lengths)]
    tags += [(317, 3, [2])] if predicted else []
    tags += [(338, 3, [extra])] if extra is not None else []
    return _listed(order, b"".join(pieces), sorted(tags))


def _listed(order: str, body: bytes, tags: list[tuple[int, int, Sequence[int]]]) -> bytes:
    at = 8 + len(body)
    after = at + 2 + 12 * len(tags) + 4
    listed, outside = struct.pack(f"{order}H", len(tags)), b""
    for tag, kind, values in tags:
        written = struct.pack(order + {3: "H", 4: "I"}[kind] * len(values), *values)
        if len(written) > 4:
            place = struct.pack(f"{order}I", after + len(outside))
            outside += written + b"\0" * (len(written) % 2)
        else:
            place = written.ljust(4, b"\0")
        listed += struct.pack(f"{order}HHI", tag, kind, len(values)) + place
    return _ORDERS[order] + struct.pack(f"{order}I", at) + body + listed + bytes(4) + outside
