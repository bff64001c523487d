"""DICOM files: rescaled, windowed and inverted as the standard has it; nothing of the header but pixels."""

import io
import sys
from pathlib import Path

import dicom_files
import numpy as np
import pytest
from digit_files import noise
from PIL import Image
from pydicom import Dataset
from pydicom.encaps import encapsulate
from pydicom.pixels import apply_modality_lut, apply_windowing
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
)
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.io import files, pictures
from fedshift_datasets.io.decode import decode
from fedshift_datasets.listing import Item

STORED = noise(12, 9).astype(np.int16) * 16 - 1024  # -1024 to 3056


def pixels(data: Dataset | bytes, window: tuple[float, float] | None = None) -> np.ndarray:
    """Return the red of an image that is read."""
    content = data if isinstance(data, bytes) else dicom_files.written(data)
    image, _ = pictures.read(content, "a.dcm", window)
    assert image.mode == "RGB"
    return np.asarray(image)[..., 0]


def refusal(data: Dataset) -> str:
    with pytest.raises(DataError) as caught, files.reading("a.dcm"):
        pixels(data)
    message = str(caught.value)
    assert message.startswith("a.dcm: ") and message.isprintable() and dicom_files.NAME not in message
    return message


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", None])
@pytest.mark.parametrize("window", [(40, 400), (-600, 1500), (300.5, 1), ([60, 40], [350, 80])])
def test_a_files_own_window_is_the_standards(function: str | None, window: tuple) -> None:  # type: ignore[type-arg]
    data = dicom_files.made(STORED, RescaleSlope="1.5", RescaleIntercept=-24)
    data.WindowCenter, data.WindowWidth = window
    if function is not None:
        data.VOILUTFunction = function
    if window == (300.5, 1) and function in ("LINEAR", None):
        shown = np.where(apply_modality_lut(STORED, data) > 300, 255, 0)
    else:
        shown = apply_windowing(apply_modality_lut(STORED, data), data)
        low, high = np.array([-32768, 32767]) * 1.5 - 24
        shown = (shown - low) / (high - low) * 255
    # pydicom's sigmoid adds its range to its least value; both are rounded once.
    assert np.abs(pixels(data) - shown).max() <= 0.5 + 1e-6


def test_without_a_window_the_range_of_the_stored_bits_counts_never_the_images_own() -> None:
    eight, long = noise(12, 9), noise(12, 9).astype(np.uint32) << 24
    twelve = eight.astype(np.uint16) // 4 * 60
    for data, wanted in (
        (dicom_files.made(twelve, BitsStored=12, HighBit=11), twelve / 4095 * 255),
        (dicom_files.made(STORED, RescaleSlope=-2, RescaleIntercept=7), (32767.0 - STORED) / 65535 * 255),
        (dicom_files.made(eight), eight),
        (dicom_files.made(long), long / (2**32 - 1) * 255),
    ):
        assert np.array_equal(pixels(data), np.rint(wanted))


def test_a_stated_window_takes_the_place_of_the_files() -> None:
    tags = {"RescaleSlope": 1, "RescaleIntercept": -100, "WindowCenter": 0, "WindowWidth": 10}
    wanted = np.rint(np.clip((STORED - 100 + 160) / 400, 0, 1) * 255)
    assert np.array_equal(pixels(dicom_files.made(STORED, **tags), (-160, 240)), wanted)
    inverted = dicom_files.made(STORED, PhotometricInterpretation="MONOCHROME1", **tags)
    assert np.array_equal(pixels(inverted, (-160, 240)), 255 - wanted)
    of_8_bits = np.rint(np.clip((noise(12, 9) - 64.0) / 128, 0, 1) * 255)
    assert np.array_equal(pixels(dicom_files.made(noise(12, 9)), (64, 192)), of_8_bits), "DICOM of any depth"


def test_colour_and_other_encodings_give_the_pixels() -> None:
    eight, packed = noise(8, 6), noise(24, 20)
    for data, wanted in (
        (dicom_files.made(eight, ImplicitVRLittleEndian), eight),
        (dicom_files.made(eight.astype(">u2"), ExplicitVRBigEndian, BitsStored=8, HighBit=7), eight),
        (dicom_files.compressed("rle"), packed),
        (dicom_files.compressed("j2k"), packed),
    ):
        assert np.array_equal(pixels(data), wanted)
    assert np.abs(pixels(dicom_files.compressed("jpeg")) - packed.astype(int)).mean() < 25


def test_a_dicom_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "dog" / "a.png"
    path.parent.mkdir()
    path.write_bytes(dicom_files.written(dicom_files.made(noise(8, 8, 3))))
    assert np.array_equal(decode(Item(path, str(path)), 8), noise(8, 8, 3))
    path.write_bytes(dicom_files.written(dicom_files.made(noise(8, 8)))[132:])  # without its beginning
    assert "by its content it is no PNG" in refusal_of(DataError, decode, Item(path, str(path)), 8)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"NumberOfFrames": 3}, "a DICOM file of 3 frames; allowed is one"),
        ({"Rows": 65535, "Columns": 65535}, "65535 x 65535 pixels; allowed are 89478485 in all"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "pixels of kind PALETTE COLOR, 1 of 8 bits; allowed are"),
        ({"BitsAllocated": 64}, "1 of 64 bits; allowed are"),
        ({"WindowCenter": 4, "WindowWidth": 0}, "a window of center 4 and width 0 by LINEAR; allowed are LINEAR"),
        ({"WindowCenter": 4, "WindowWidth": 9, "VOILUTFunction": "ODD"}, "by ODD; allowed are LINEAR"),
        ({"RescaleSlope": "1e308", "RescaleIntercept": 0}, "values that are no numbers"),
        ({"Rows": 9}, "cannot be read (ValueError: The number of bytes of pixel data is less than expected"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_refused_in_a_line(tags: dict[str, object], words: str) -> None:
    assert words in refusal(dicom_files.made(noise(8, 8), **tags))


def test_pixels_that_are_not_there_or_packed_in_ways_that_are_not_taken() -> None:
    empty = dicom_files.made(noise(8, 8))
    del empty.PixelData
    assert "without pixels of whole numbers" in refusal(empty)
    deflated = dicom_files.made(noise(8, 8), DeflatedExplicitVRLittleEndian)
    assert "a deflated DICOM file" in refusal(deflated)
    packed = dicom_files.made(noise(8, 8))
    packed.file_meta.TransferSyntaxUID = JPEGLSLossless
    packed["PixelData"].is_undefined_length = True
    packed.PixelData = b"\xfe\xff\x00\xe0\0\0\0\0\xfe\xff\x00\xe0\4\0\0\0abcd\xfe\xff\xdd\xe0\0\0\0\0"
    assert "compressed as JPEG-LS Lossless Image Compression; to read it run: pip install pylibjpeg" in refusal(packed)


def test_without_pydicom_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    message = refusal_of(DataError, pictures.read, dicom_files.grey(), "a.dcm")
    assert message == 'a.dcm: a DICOM file, which needs pydicom; run: pip install "fedshift[medical]"'


def test_sequences_in_sequences_without_end_are_an_error(tmp_path: Path) -> None:
    sequence, item = b"\x40\0\x75\xa0SQ\0\0\xff\xff\xff\xff", b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    path = tmp_path / "a.dcm"
    empty = dicom_files.made(noise(8, 8))
    del empty.PixelData
    path.write_bytes(dicom_files.written(empty) + (sequence + item) * 20_000)
    message = refusal_of(DataError, decode, Item(path, str(path)), 8)
    assert message.startswith(f"{path}: ") and len(message) < 400 + len(str(path))


def test_a_jp2_file_within_is_refused() -> None:
    """A box of no length in one is a way without end for pydicom 3.0.2; in two fragments it is one all the same."""
    file = io.BytesIO()
    Image.fromarray(noise(8, 8)).save(file, "JPEG2000")
    content = file.getvalue()
    data = dicom_files.made(noise(8, 8))
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    data.PixelData = encapsulate([content[:20] + bytes(4) + content[24:]], fragments_per_frame=2)
    data["PixelData"].is_undefined_length = True
    assert "JPEG 2000 within a JP2 file" in refusal(data)
