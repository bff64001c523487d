"""Reads PNG files of grey with alpha of 16 bits each, where Pillow drops the lower byte."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_KIND = slice(24, 26)  # in the file: bits a channel, and the kind of channels
_GREY_ALPHA_16 = b"\x10\x04"
_RGBA_8 = b"\x08\x06"
_CRC = slice(29, 33)


def as_bytes(content: bytes) -> bytes | None:
    """Return a PNG whose four channels are the bytes of grey and alpha, high before low. None for other kinds.

    Both kinds have four bytes a pixel, and a PNG's filters and interlacing work on bytes and pixels.

    Args:
        content: The file.
    """
    if not content.startswith(_START) or content[_KIND] != _GREY_ALPHA_16 or _sum(content) != content[_CRC]:
        return None
    other = content[: _KIND.start] + _RGBA_8 + content[_KIND.stop :]
    return other[: _CRC.start] + _sum(other) + other[_CRC.stop :]


def grey(image: Image.Image) -> NDArray[np.uint16]:
    """Return the grey values (H, W) of an image that :func:`as_bytes` made."""
    pixels = np.asarray(image)
    values: NDArray[np.uint16] = pixels[..., 0].astype(np.uint16) << 8 | pixels[..., 1]
    return values


def _sum(content: bytes) -> bytes:
    """Return the correct checksum of the file's first chunk."""
    return struct.pack(">I", zlib.crc32(content[12 : _CRC.start]))
