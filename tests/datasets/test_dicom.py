"""DICOM files: rescaled, windowed and inverted as the standard has it, or refused where a header says two things."""

import io
import sys
from pathlib import Path
from typing import Any

import dicom_files
import numpy as np
import pytest
from digit_files import noise
from PIL import Image
from pydicom import Dataset, Sequence
from pydicom.encaps import encapsulate
from pydicom.pixels import apply_modality_lut, apply_windowing
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.io import pictures, presence
from fedshift_datasets.io.decode import decode
from fedshift_datasets.listing import Item

STORED = noise(12, 9).astype(np.int16) * 16 - 1024  # -1024 to 3056


def pixels(data: Dataset | bytes, window: tuple[float, float] | None = None) -> np.ndarray:
    """Return the red of an image that is read."""
    content = data if isinstance(data, bytes) else dicom_files.written(data)
    image, _ = pictures.read(content, "a.dcm", window)
    assert image.mode == "RGB"
    return np.asarray(image)[..., 0]


def refusal(data: Dataset, window: tuple[float, float] | None = None) -> str:
    with pytest.raises(DataError) as caught, presence.reading("a.dcm"):
        pixels(data, window)
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
    message = refusal_of(DataError, decode, Item(str(path), str(path)), 8)
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


# --- headers

HU = np.array([[0, 864, 1064, 1264]], np.uint16)  # -1024, -160, 40 and 240 Hounsfield units
ROW = np.array([[0, 1000, 2000, 4095]], np.uint16)
SHARED, FRAME = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
RESCALE, VOI = "PixelValueTransformationSequence", "FrameVOILUTSequence"
MEASURES = "PixelMeasuresSequence"
HOUNSFIELD = {"RescaleSlope": 1, "RescaleIntercept": -1024}
OWN = {"WindowCenter": 40, "WindowWidth": 400, "VOILUTFunction": "LINEAR_EXACT"}
SEEN, PLAIN = [0, 0, 128, 255], [0, 62, 125, 255]
OTHER = {"RescaleSlope": 1, "RescaleIntercept": 0}


def item(**tags: Any) -> Dataset:
    data = Dataset()
    for name, value in tags.items():
        setattr(data, name, value)
    return data


def macro(name: str, *items: dict[str, Any], **more: Any) -> Dataset:
    """Return an item with a sequence of this name, of items of these tags."""
    return item(**{name: Sequence([item(**tags) for tags in items])}, **more)


def twelve(pixels: np.ndarray = HU, syntax: UID = ExplicitVRLittleEndian, **tags: Any) -> Dataset:
    tags = {"BitsStored": 12, "HighBit": 11} | tags
    return dicom_files.made(pixels, syntax, **tags)


def enhanced(group: str, *items: Dataset, **tags: Any) -> Dataset:
    return twelve(NumberOfFrames=1, **tags, **{group: Sequence(items)})


def grey(data: Dataset, window: tuple[float, float] | None = None) -> Any:
    return pixels(data, window)[0].tolist()


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian])
@pytest.mark.parametrize("group", [SHARED, FRAME, "no group"])
def test_rescaling_and_window_are_read_in_functional_groups(group: str, syntax: UID) -> None:
    macros: Any = {RESCALE: Sequence([item(**HOUNSFIELD)]), VOI: Sequence([item(**OWN)])}
    pixels = HU.astype(">u2") if syntax == ExplicitVRBigEndian else HU
    data = twelve(pixels, syntax, **(macros if group == "no group" else {group: Sequence([item(**macros)])}))
    assert grey(data, (-160, 240)) == grey(data) == SEEN


APART, FAR = {"PixelSpacing": [0.5, 0.75]}, {"PixelSpacing": [1, 1]}


@pytest.mark.parametrize(
    ("tags", "spacing"),
    [
        (APART, (0.5, 0.75)),
        ({"ImagerPixelSpacing": [0.5, 0.75]}, None),
        ({"PixelSpacing": [0, 1]}, None),
        ({"PixelSpacing": [1]}, None),
        ({SHARED: Sequence([macro(MEASURES, APART)])}, (0.5, 0.75)),
        ({FRAME: Sequence([macro(MEASURES, APART)]), **APART}, (0.5, 0.75)),
        ({FRAME: Sequence([macro(MEASURES, APART)]), **FAR}, None),
    ],
)
def test_spacing_is_that_of_the_patient_or_unknown(tags: dict[str, Any], spacing: tuple[float, float] | None) -> None:
    content = dicom_files.written(twelve(**tags))
    assert pictures.header(content, "a.dcm").spacing == pictures.read(content, "a.dcm")[1].spacing == spacing


def test_spacing_without_numbers_leaves_the_pixels() -> None:
    content = dicom_files.written(twelve(**APART)).replace(b"0.5\\0.75", b"0.5\\none")
    assert pictures.read(content, "a.dcm")[1].spacing is None


OTHER = {"RescaleSlope": 1, "RescaleIntercept": 0}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            enhanced(SHARED, macro(RESCALE, HOUNSFIELD), **OTHER),
            "RescaleSlope 1 and RescaleIntercept 0 at the top level, RescaleSlope 1 and RescaleIntercept -1024 at",
        ),
        (enhanced(SHARED, macro(RESCALE, HOUNSFIELD, OTHER)), "allowed is one pair"),
        (enhanced(FRAME, macro(RESCALE, HOUNSFIELD), macro(RESCALE, OTHER)), "allowed is one pair"),
        (enhanced(FRAME, item(**HOUNSFIELD)), f"RescaleSlope within {FRAME} but not in {RESCALE}; allowed are"),
        (enhanced(FRAME, macro("ModalityLUTSequence", {"LUTExplanation": "x"})), f"ModalityLUTSequence within {FRAME}"),
        (enhanced(SHARED, macro(RESCALE, {"RescaleSlope": 1})), f"RescaleSlope without RescaleIntercept at {SHARED}"),
        (twelve(RescaleSlope=2), "RescaleSlope without RescaleIntercept at the top level"),
        (twelve(RescaleIntercept=-1024), "RescaleIntercept without RescaleSlope at the top level"),
        (twelve(RescaleSlope=None, RescaleIntercept=-1024), "RescaleIntercept without RescaleSlope at the top level"),
        (twelve(RescaleSlope=0, RescaleIntercept=5), "RescaleSlope is 0"),
        (twelve(RescaleSlope=["1", "2"], RescaleIntercept=5), "RescaleSlope at the top level has 2 values that differ"),
    ],
)
@pytest.mark.parametrize("window", [None, (-160, 240)])
def test_rescaling_that_says_two_things_or_half_of_one_is_refused(data: Dataset, words: str, window: Any) -> None:
    assert words in refusal(data, window)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            enhanced(SHARED, macro(VOI, OWN), WindowCenter=40, WindowWidth=80),
            "WindowCenter 40 and WindowWidth 80 by LINEAR at the top level, WindowCenter 40 and WindowWidth 400 by "
            f"LINEAR_EXACT at {SHARED}; allowed is one pair; dataset.window=[low,high] takes its place",
        ),
        (enhanced(FRAME, macro(VOI, OWN, {"WindowCenter": 1, "WindowWidth": 2})), "one pair"),
        (enhanced(FRAME, item(**OWN)), f"WindowCenter within {FRAME} but not in {VOI}"),
        (twelve(WindowCenter=40), "WindowCenter without WindowWidth at the top level"),
    ],
)
def test_windows_that_say_two_things_are_refused_unless_the_run_states_one(data: Dataset, words: str) -> None:
    assert words in refusal(data)
    assert grey(data, (0, 4095)) == [0, 54, 66, 79]


def table(values: np.ndarray) -> Dataset:
    lut = item(LUTDescriptor=[len(values), 0, 16], ModalityLUTType="US")
    lut["LUTDescriptor"].VR = "US"
    lut.add_new("LUTData", "US", values.tolist())
    return lut


def test_a_table_and_rescaling_are_refused_but_for_one_that_changes_nothing() -> None:
    def tables(*values: np.ndarray, **tags: Any) -> Dataset:
        return twelve(ROW, ModalityLUTSequence=Sequence([*map(table, values)]), **tags)

    square = np.minimum(np.arange(4096) ** 2 // 256, 65535)
    assert grey(tables(square, **OTHER)) == grey(tables(square)) == [0, 15, 61, 255]
    both = refusal(tables(square, **HOUNSFIELD))
    assert "ModalityLUTSequence and RescaleSlope 1 and RescaleIntercept -1024; allowed is one of them" in both
    assert "ModalityLUTSequence has 2 tables that differ" in refusal(tables(square, np.arange(4096)))


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("shape", ["", "IDENTITY", "INVERSE", "LIN OD"])
def test_what_is_black_follows_from_two_tags(kind: str, shape: str) -> None:
    data = twelve(ROW, PhotometricInterpretation=kind, PresentationLUTShape=shape)
    if shape == "LIN OD" or (kind, shape) == ("MONOCHROME1", "IDENTITY"):  # contradicts the image
        assert f"PresentationLUTShape {shape} of a {kind} image" in refusal(data)
    else:
        assert grey(data) == ([255, 193, 130, 0] if "INVERSE" in shape or kind == "MONOCHROME1" else PLAIN)


@pytest.mark.parametrize("high", [11, 12, 15])
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless])
def test_high_bit_says_where_stored_bits_lie(high: int, syntax: UID) -> None:
    """Below them and above them there may be others, of overlays."""
    shifted = (ROW << (high - 11)) | (0x8000 if high < 15 else 1)
    packed, big = syntax == RLELossless, syntax == ExplicitVRBigEndian
    data = twelve(shifted.astype(">u2" if big else "<u2"), ExplicitVRLittleEndian if packed else syntax, HighBit=high)
    if packed:
        data.compress(RLELossless, generate_instance_uid=False)
    assert grey(data) == PLAIN


def test_signed_values_keep_their_sign_wherever_their_bits_lie() -> None:
    values = np.array([[-2048, -1, 0, 2047]], np.int16)
    unextended = (values & 0x0FFF).astype(np.int16)
    for pixels, high in ((values, 11), (unextended, 11), (values << 4, 15), (values << 2, 13)):
        assert grey(twelve(pixels.astype(np.int16), HighBit=high)) == [0, 127, 128, 255]


@pytest.mark.parametrize(("stored", "high"), [(12, 10), (12, 16), (12, 0), (16, 11), (0, 0), (17, 16)])
def test_bits_that_cannot_lie_so_are_refused(stored: int, high: int) -> None:
    data = twelve(ROW, BitsStored=stored, HighBit=high)
    wanted = f"BitsStored {stored} with HighBit {high} of BitsAllocated 16; allowed is a HighBit from"
    assert wanted in refusal(data)
    with pytest.raises(DataError, match=wanted):  # `prepare` looks at bits too
        pictures.header(dicom_files.written(data), "a.dcm")


def test_high_bit_of_a_codestream_that_has_bits_of_its_own_is_refused() -> None:
    data = twelve(ROW, HighBit=15)
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    data.PixelData = encapsulate([b"\xff\x4f\xff\x51"])
    data["PixelData"].is_undefined_length = True
    assert "HighBit 15 with BitsStored 12, compressed as JPEG 2000" in refusal(data)


@pytest.mark.parametrize(
    ("key", "value", "words"), [("BitsStored", 7, "7 bits, unsigned"), ("PixelRepresentation", 1, "8 bits, signed")]
)
def test_colours_of_other_bits_are_refused(key: str, value: int, words: str) -> None:
    data = dicom_files.made(noise(4, 4, 3), **{"HighBit": 6 if value == 7 else 7, key: value})
    assert f"colours of {words}; allowed are 8 bits, unsigned" in refusal(data)
