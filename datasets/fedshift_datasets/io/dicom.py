"""Reads DICOM files through pydicom, an optional extra: only their pixels, as radiologists' screens show them.

Only the parts of a header that decide pixels are read (:data:`_READ`), so that no patient's name reaches an error, and
by itself the PatientID, which decides which images stay together.
"""

import io
import os
import re
import warnings
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_datasets.arrays import Numbers, Pixels
from fedshift_datasets.io import dicom_header, intact
from fedshift_datasets.io.resize import levels

if TYPE_CHECKING:
    from pydicom import Dataset

#: The top-level tags that are read; a sequence is read with its content.
_READ = ["PlanarConfiguration", "NumberOfFrames", "Rows", "Columns", "PixelData", *dicom_header.READ]
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # a transfer syntax that is unpacked completely before any check
_JP2 = b"\0\0\0\x0cjP  "  # start of a JP2 file; a damaged one sends pydicom 3.0.2 into an endless loop
_MOST_TABLE = 16  # bits of values that are computed once each, not for each pixel
_PATIENT, _FRAMES = 0x00100020, 0x00280008  # the tags of PatientID and NumberOfFrames
_GREY, _INVERTED = "MONOCHROME2", "MONOCHROME1"
#: Width and height, kind and bits, and the spacing of pixels (:class:`fedshift_datasets.io.pictures.Header`).
About = tuple[tuple[int, int], str, tuple[float, float] | None]
_NUMBER = "[0-9]{1,6}"  # of frames, of which a damaged header may state very many
EXTRA = 'pip install "fedshift[medical]"'
_DECODERS = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"


def is_dicom(content: bytes) -> bool:
    """Return whether a file is DICOM by its content."""
    return content[128:132] == b"DICM"


def decoded(content: bytes, name: object, window: tuple[float, float] | None = None) -> tuple[Image.Image, About]:
    """Return the image of a DICOM file as RGB of 8 bits a channel, and what :func:`header` returns.

    Grey values pass the modality's table or rescaling, then ``window``, else the file's first WindowCenter and
    WindowWidth, else the full range of its bits. MONOCHROME1, and images with a PresentationLUTShape INVERSE, are then
    inverted. :mod:`fedshift_datasets.io.dicom_header` describes the places of these values and what is refused.

    Args:
        content: The file.
        name: Its name in messages.
        window: As in :class:`~fedshift_datasets.base.Form`, in the modality's units (Hounsfield).

    Raises:
        DataError: If pydicom is missing, or the file has no image, several, or one of an unsupported kind; damaged
            bytes raise other types.
    """
    where = shown(name)
    data = _read(content, where)
    about = _about(data)
    pixels = _stored(data, where)
    if (frame := _compressed(data)) is not None:
        intact.check(frame, name, int(data.Rows) * int(data.Columns))
    if data.SamplesPerPixel == 3:
        return Image.fromarray(np.ascontiguousarray(pixels, dtype=np.uint8)), about
    inverted = dicom_header.is_inverted(data, where)
    grey = _grey(pixels, data, window, where)
    return Image.fromarray(255 - grey if inverted else grey).convert("RGB"), about


def stored(content: bytes, name: object) -> Numbers:
    """Return the values (H, W) that a DICOM file of one channel stores.

    Raises:
        DataError: As :func:`decoded`, or if it has colours.
    """
    data = _read(content, shown(name))
    if data.SamplesPerPixel != 1:
        raise DataError(f"{shown(name)}: a DICOM file in colours; allowed is one of grey values")
    return _stored(data, shown(name))


def header(content: bytes, name: object) -> About:
    """Return what a DICOM file says of its image.

    Raises:
        DataError: As :func:`decoded`.
    """
    return _about(_read(content, shown(name)))


def _lacking(where: str) -> DataError:
    return DataError(f"{where}: a DICOM file, which needs pydicom; run: {EXTRA}")


def patient(file: str) -> str:
    """Return the PatientID of a file; empty if it has none or is damaged.

    Raises:
        DataError: If pydicom is missing.
    """
    return _written(file, _PATIENT)


def frames(file: str) -> int:
    """Return the number of frames of a file; 1 if it says none or is damaged.

    Raises:
        DataError: If pydicom is missing.
    """
    number = _written(file, _FRAMES)
    return int(number) if re.fullmatch(_NUMBER, number) else 1


def _written(file: str, of: int) -> str:
    """Return an element of a file's header, by its tag, as it is written there; empty if there is none."""
    try:
        from pydicom.filereader import read_file_meta_info, read_partial
    except ImportError:
        raise _lacking(shown(file)) from None
    try:
        if not os.path.isfile(file):  # noqa: PTH113 - a pipe would never end
            return ""
        if read_file_meta_info(file).TransferSyntaxUID == _DEFLATED.decode():  # it would be unpacked first
            return ""
        with open(file, "rb") as content:  # noqa: PTH123 - ten thousand of them
            data = read_partial(content, stop_when=lambda tag, *_: tag > of, specific_tags=[of])
        written = data.get_item(of).value or b""  # as bytes: a warning of pydicom about the text would show it
        return written.decode(errors="backslashreplace").strip(" \0")
    except Exception:  # pydicom raises nearly any type on damaged bytes, and decoding says what is wrong
        return ""


def _about(data: "Dataset") -> About:
    kind = f"{data.PhotometricInterpretation} {int(data.BitsStored)}"
    return (int(data.Columns), int(data.Rows)), kind, dicom_header.spacing(data)


def _read(content: bytes, where: str) -> "Dataset":
    """Return the checked header and pixels.

    Raises:
        DataError: As :func:`decoded`.
    """
    data = parsed(content, where)
    _check(data, where)
    return data


def parsed(content: bytes, where: str) -> "Dataset":
    """Return a header and pixels that are not checked.

    Raises:
        DataError: If pydicom is missing, or the file is deflated.
    """
    try:
        from pydicom import dcmread
    except ImportError:
        raise _lacking(where) from None
    if _DEFLATED in content:
        raise DataError(f"{where}: a deflated DICOM file; allowed are others, as nothing bounds what it unpacks to")
    return dcmread(io.BytesIO(content), specific_tags=list(_READ))


def _stored(data: "Dataset", where: str) -> Numbers:
    """Return stored values (H, W), or (H, W, 3) of colours, YCbCr as RGB."""
    from pydicom.pixels import pixel_array

    warnings.filterwarnings("error", "The decoded RLE segment")  # more pixels than there are: their data are damaged
    shift = dicom_header.shift(data, where)
    if not shift:
        return pixel_array(data, index=0)
    # pydicom does not look at HighBit; with the bits below counted as stored it reads them all, and their sign.
    stored = data.BitsStored
    data.BitsStored = stored + shift
    pixels: Numbers = pixel_array(data, index=0) >> shift
    data.BitsStored = stored
    return pixels


def _check(data: "Dataset", where: str) -> None:
    """Refuse a file without a single image, or with one that cannot be read here.

    Raises:
        DataError: With the reason.
    """
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    if "PixelData" not in data:
        raise DataError(f"{where}: a DICOM file without pixels of whole numbers (Pixel Data), or a truncated one")
    if int(data.get("NumberOfFrames") or 1) != 1:
        number = shown(data.NumberOfFrames, MOST_NAME)
        raise DataError(
            f"{where}: a DICOM file of {number} frames; allowed is one, and with masks in a site's folder more"
        )
    rows, columns = int(data.Rows), int(data.Columns)
    if rows * columns > (Image.MAX_IMAGE_PIXELS or 0):
        raise DataError(f"{where}: {rows} x {columns} pixels; allowed are {Image.MAX_IMAGE_PIXELS} in all")
    kind, samples, bits = data.PhotometricInterpretation, int(data.SamplesPerPixel), int(data.BitsAllocated)
    grey = samples == 1 and kind in (_GREY, _INVERTED) and bits <= 32
    if not grey and not (samples == 3 and bits == 8 and (kind == "RGB" or str(kind).startswith("YBR_"))):
        raise DataError(
            f"{where}: pixels of kind {shown(kind, MOST_NAME)}, {samples} of {bits} bits; allowed are {_INVERTED} and "
            f"{_GREY} of up to 32 bits, RGB and YBR of 8 bits a channel"
        )
    dicom_header.shift(data, where)  # raises if the bits are invalid
    syntax = UID(data.file_meta.TransferSyntaxUID)
    if syntax.is_compressed and not get_decoder(syntax).is_available:
        raise DataError(f"{where}: compressed as {shown(syntax.name, MOST_NAME)}; to read it run: {_DECODERS}")
    if (_compressed(data) or b"").startswith(_JP2):
        raise DataError(f"{where}: JPEG 2000 within a JP2 file; allowed is its codestream alone, as DICOM has it")


def _compressed(data: "Dataset") -> bytes | None:
    """Return the compressed pixels; None if they are not compressed."""
    from pydicom.encaps import get_frame
    from pydicom.uid import UID

    if not UID(data.file_meta.TransferSyntaxUID).is_compressed:
        return None
    return get_frame(data.PixelData, 0, number_of_frames=1)


def _grey(stored: Numbers, data: "Dataset", window: tuple[float, float] | None, where: str) -> Pixels:
    """Return stored values (H, W) as 8 bits, not inverted."""
    bits = int(data.BitsStored)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if data.PixelRepresentation else (0, (1 << bits) - 1)
    rescaling = dicom_header.rescaling(data, where)
    own = dicom_header.own_window(data, where) if window is None else None

    def shades(values: Numbers) -> Pixels:
        values = _in_units(values, data, rescaling)
        ends = window
        if own is not None:
            values, ends = _by_own_window(values, *own, where)
        elif ends is None:
            ends = _full_range(data, rescaling, (low, high))
        if not np.isfinite([values.min(), values.max(), *ends]).all():
            raise DataError(f"{where}: damaged (its rescaling or window makes values that are no numbers)")
        return levels(values, *ends)

    stored = np.clip(stored.astype(np.int64), low, high)  # overlays may lie in the bits above
    return shades(np.arange(low, high + 1))[stored - low] if bits <= _MOST_TABLE else shades(stored)


def _in_units(values: Numbers, data: "Dataset", rescaling: tuple[float, float] | None) -> Numbers:
    """Return stored values in the modality's units."""
    from pydicom.pixels import apply_modality_lut

    if data.get("ModalityLUTSequence"):
        return apply_modality_lut(values, data)
    return values if rescaling is None else values.astype(np.float64) * rescaling[0] + rescaling[1]


def _by_own_window(
    values: Numbers, center: float, width: float, function: str, where: str
) -> tuple[Numbers, tuple[float, float]]:
    """Return values and the two that become black and white, by PS3.3 C.11.2.1.2 and C.11.2.1.3.

    Raises:
        DataError: If the function is unknown, or the width is too small for it.
    """
    least = 1 if function == "LINEAR" else np.finfo(float).tiny
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID") or not width >= least:
        raise DataError(
            f"{where}: a window of center {center:g} and width {width:g} by {shown(function, MOST_NAME)}; allowed are "
            "LINEAR of a width of 1 or more, LINEAR_EXACT and SIGMOID of one above 0"
        )
    if function == "SIGMOID":
        from scipy.special import expit

        return expit(4 * (values - center) / width), (0, 1)
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    return values, (center - width / 2, center + width / 2)


def _full_range(data: "Dataset", rescaling: tuple[float, float] | None, ends: tuple[int, int]) -> tuple[float, float]:
    """Return the least and the largest value that can come out of the modality's table or rescaling."""
    if data.get("ModalityLUTSequence"):
        return 0, 2 ** int(data.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    first, last = (float(value) for value in _in_units(np.array(ends), data, rescaling))
    return min(first, last), max(first, last)
