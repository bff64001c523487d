"""TIFF files: what is taken of them, and that nothing else of one reaches Pillow."""

import io
import struct

import numpy as np
import pytest
from PIL import Image
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.io import pictures, tiff


def tif(image: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "TIFF", **options)
    return file.getvalue()


def made(data: bytes, order: str = "<", following: int = 0, **values: int) -> bytes:
    """Return a TIFF of 8 x 8 grey pixels in one strip; ``values`` (``t258=12``) replace or add tags."""
    tags = {256: 8, 257: 8, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: len(data)}
    tags |= {int(name[1:]): value for name, value in values.items()}
    listed = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    at = 8 + len(data)
    header = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, at)
    return header + data + struct.pack(f"{order}H", len(tags)) + listed + struct.pack(f"{order}I", following)


def pixels(content: bytes, window: tuple[float, float] | None = None) -> np.ndarray:
    image, _ = pictures.read(content, "a.tif", window)
    assert image.mode == "RGB"
    return np.asarray(image)


def refusal(content: bytes) -> str:
    message = refusal_of(DataError, pictures.read, content, "a.tif")
    assert message.startswith("a.tif: ") and "\n" not in message
    return message


def test_12_bits_have_the_range_of_12_bits() -> None:
    values = np.arange(64) * 65  # 0 to 4095
    bits = "".join(f"{value:012b}" for value in values.tolist())
    result = pixels(made(int(bits, 2).to_bytes(96, "big"), t258=12))
    assert np.array_equal(result[..., 0].ravel(), np.rint(values / 4095 * 255))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tif(np.full((8, 8), 0.5, np.float32)), "floating-point numbers; allowed are whole ones"),
        (made(bytes(512), t258=64, t339=3), "floating-point numbers"),
        (made(bytes(128), following=8), "several pages; allowed is one"),
        (made(bytes(128), t259=6), "compression 6; allowed are none, LZW, JPEG, Deflate, PackBits"),
        (made(bytes(128), t259=34712), "compression 34712"),
        (made(bytes(128), t322=60_000, t323=60_000), "tiles of 3600000000 pixels"),
        (made(bytes(192), t258=24), "a TIFF of a kind that is not taken"),
        (b"II+\0" + bytes(60), "a BigTIFF; allowed is TIFF"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_refused_in_a_line(content: bytes, words: str) -> None:
    assert words in refusal(content)


@pytest.mark.parametrize(("at", "number"), [(10**6, 1), (8, 0), (8, 1025)])
def test_a_damaged_list_of_tags_is_an_error(at: int, number: int) -> None:
    content = struct.pack("<2sHIH", b"II", 42, at, number)
    with pytest.raises(DataError):
        tiff.reduced(content, "a.tif")


@pytest.mark.parametrize(
    "entry", [(273, 4, 1 << 16, 8), (273, 4, 1 << 20, 8), (273, 13, 1, 8), (273, 12, 1, 8), (273, 4, 0, 8)]
)  # the first two lie behind the end
def test_tags_point_into_the_file_and_have_few_values(entry: tuple[int, int, int, int]) -> None:
    content = struct.pack("<2sHIH", b"II", 42, 8, 1) + struct.pack("<HHII", *entry) + bytes(4)
    assert ("truncated: TIFF tag 273" if entry[2] > 1 else "damaged (TIFF tag 273") in refusal(content)


def test_only_tags_of_the_pixels_get_as_far_as_pillow() -> None:
    """A thousand tags that name the same megabyte would be a gigabyte in memory; lists below are never followed."""
    tags = [(tag, 7, 1 << 20, 8) for tag in range(40_000, 41_000)]
    tags += [(256, 4, 1, 8), (257, 4, 1, 8), (273, 4, 1, 8), (34665, 4, 1, 8), (330, 4, 1, 8), (274, 3, 1, 6)]
    data = bytes(1 << 20)
    listed = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    content = struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(tags)) + listed + bytes(4)
    result, _ = tiff.reduced(content, "a.tif")
    image = Image.open(io.BytesIO(result))
    assert set(image.tag_v2) == {256, 257, 273}  # type: ignore[attr-defined]
