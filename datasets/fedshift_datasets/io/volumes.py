"""Reads the slices of volumes: of NIfTI through nibabel, an optional extra, and of DICOM files of several frames.

A slice of NIfTI lies across the last axis of the stored array; its rows are the second axis, turned as screens show
them. The volume's place in space turns nothing: image and mask must have the same one. All slices are of one patient.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Numbers, Reals
from fedshift_datasets.io import dicom, dicom_header, looks
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.io.presence import check_room
from fedshift_datasets.io.resize import levels
from fedshift_datasets.listing import SLICE, file_of

if TYPE_CHECKING:
    from pydicom import Dataset

SUFFIXES = (".nii", ".nii.gz")
_DICOM = ".dcm"
_AXES = 3
NEAR = 1e-3  # millimetres between places in space that are the same
_MILLIMETRES = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}  # by the header's unit: not stated, as of most programs, m, mm, um
_SEGMENTATION = "1.2.840.10008.5.1.4.1.1.66.4"  # the class of DICOM files whose frames are of several segments
_OF_FRAMES = ("NumberOfFrames", "PixelData", "PerFrameFunctionalGroupsSequence")


class _Volume(NamedTuple):
    """A volume: stored values, slope and intercept to real ones, the affine to space, and the display's window.

    Spacing is that of a slice's pixels in millimetres, down and across; None if the unit is unknown.
    """

    stored: Numbers
    scale: tuple[float, float]
    affine: Reals
    window: tuple[float, float] | None
    spacing: tuple[float, float] | None


def is_volume(name: str) -> bool:
    """Return whether a file, or a slice by its name, is a NIfTI volume by its suffix."""
    return file_of(name).lower().endswith(SUFFIXES)


def may_be(name: str) -> bool:
    """Return whether a file may be cut into slices by its suffix."""
    return is_volume(name) or name.lower().endswith(_DICOM)


def slices(file: str) -> list[str]:
    """Return the names of a volume's slices; its own name of what is none or damaged, as decoding says what is wrong.

    Raises:
        DataError: If nibabel or pydicom is missing.
    """
    if not is_volume(file):
        number = dicom.frames(file) if may_be(file) else 1
        return [file] if number <= 1 else [f"{file}{SLICE}{place:04d}" for place in range(number)]
    _library(file)
    try:
        return [f"{file}{SLICE}{number:04d}" for number in range(_opened(file).shape[2])]
    except Exception:  # nibabel raises nearly any type on damaged bytes
        return [file]


def values(name: str) -> Numbers:
    """Return the real values of a slice, or of a whole volume, (H, W) or (H, W, D).

    Raises:
        DataError: If it is no grey volume of three axes; damaged bytes raise other types.
    """
    file, _, number = name.partition(SLICE)
    volume = _read(Path(file))
    stored = np.rot90(volume.stored[..., int(number)] if number else volume.stored)
    return stored if volume.scale == (1, 0) else stored * volume.scale[0] + volume.scale[1]


def picture(name: str, window: tuple[float, float] | None) -> tuple[Image.Image, Header]:
    """Return a slice as RGB of 8 bits a channel, and its properties, with the type of its values as mode.

    Args:
        name: Of the slice.
        window: As in :class:`~fedshift_datasets.base.Form`, in the volume's real values; else its own, else the full
            range of 8 bits.

    Raises:
        DataError: If the range of its values is not known; and as :func:`values`.
    """
    real, volume = values(name), _read(Path(file_of(name)))
    ends = window or volume.window or ((0, 255) if volume.stored.dtype == np.uint8 and volume.scale == (1, 0) else None)
    if ends is None:
        raise DataError(
            f"{shown(name)}: values of type {volume.stored.dtype} without a window; state dataset.window=[low,high], "
            "such as [-160,240] for soft tissue in CT"
        )
    grey = levels(np.nan_to_num(real, nan=ends[0]), *ends)
    about = Header((grey.shape[1], grey.shape[0]), f"NIfTI {volume.stored.dtype}", volume.spacing)
    return Image.fromarray(grey).convert("RGB"), about


def check_place(name: str, mask: str) -> None:
    """Refuse a mask that is of another shape, or elsewhere in space, than the image of which it is a slice too.

    Raises:
        DataError: With both.
    """
    image, outlined = (_read(Path(file_of(each))) for each in (name, mask))
    if image.stored.shape != outlined.stored.shape:
        sizes = [" x ".join(map(str, each.stored.shape)) for each in (outlined, image)]
        raise DataError(f"{shown(name)}: its mask {shown(mask)} has {sizes[0]} voxels, the image {sizes[1]}")
    if not np.allclose(image.affine, outlined.affine, atol=NEAR):
        raise DataError(f"{shown(name)}: its mask {shown(mask)} lies elsewhere in space; its affine is another one")


def _library(file: str) -> Any:
    try:
        import nibabel
    except ImportError:
        raise DataError(f"{shown(file)}: a NIfTI volume, which needs nibabel; run: {dicom.EXTRA}") from None
    return nibabel


def _opened(file: str) -> Any:
    """Return a volume whose header alone is read.

    Raises:
        DataError: If nibabel is missing, or it has not three axes.
    """
    volume = _library(file).load(file)
    axes = [length for place, length in enumerate(volume.shape) if length > 1 or place < _AXES]
    if len(axes) != _AXES or volume.get_data_dtype().kind not in "iuf":
        kind = f"{len(volume.shape)} axes and values of type {volume.get_data_dtype()}"
        raise DataError(f"{shown(file)}: a NIfTI volume of {kind}; allowed are three axes of numbers")
    return volume


@looks.remembered(2)  # an image and its mask: their slices follow one another
def _read(path: Path) -> _Volume:
    volume = _opened(str(path))
    check_room(path, int(np.prod(volume.shape)) * volume.get_data_dtype().itemsize)
    data, header = volume.dataobj, volume.header
    stored = np.asanyarray(data.get_unscaled()).reshape(volume.shape[:_AXES])
    ends = float(header.get("cal_min", 0)), float(header.get("cal_max", 0))
    across, down, _ = np.linalg.norm(volume.affine[:_AXES, :_AXES], axis=0) * _MILLIMETRES.get(
        int(header["xyzt_units"]) % 8, np.nan
    )
    spacing = (float(down), float(across)) if 0 < min(down, across) < np.inf else None
    window = ends if ends[0] < ends[1] else None
    return _Volume(stored, (float(data.slope), float(data.inter)), volume.affine, window, spacing)


def frame(name: str) -> bytes:
    """Return a frame, by the name of its slice, as the content of a DICOM file of its own.

    Raises:
        DataError: If pydicom is missing, or frames are of segments; damaged bytes raise other types.
    """
    from pydicom import Dataset, Sequence
    from pydicom.encaps import encapsulate, get_frame
    from pydicom.uid import UID

    whole, number = _whole(Path(file_of(name))), int(name.partition(SLICE)[2])
    count = int(whole.NumberOfFrames)
    alone = Dataset({element.tag: element for element in whole if element.keyword not in _OF_FRAMES})
    if compressed := UID(whole.file_meta.TransferSyntaxUID).is_compressed:
        alone.PixelData = encapsulate([get_frame(whole.PixelData, number, number_of_frames=count)])
    else:
        size = int(whole.Rows) * int(whole.Columns) * int(whole.SamplesPerPixel) * int(whole.BitsAllocated) // 8
        alone.PixelData = whole.PixelData[number * size : (number + 1) * size]
    alone["PixelData"].is_undefined_length = compressed
    alone.NumberOfFrames, groups = 1, whole.get("PerFrameFunctionalGroupsSequence")
    if groups:
        alone.PerFrameFunctionalGroupsSequence = Sequence([groups[number]])
    alone.file_meta, alone.preamble, out = whole.file_meta, bytes(128), io.BytesIO()
    alone.save_as(out)
    return out.getvalue()


def check_frames(name: str, outline: str) -> None:
    """Refuse a mask whose frames are others than those of its image, by their number or by the place of one in space.

    Raises:
        DataError: With both.
    """
    file, mask, number = file_of(name), file_of(outline), int(name.partition(SLICE)[2])
    counts = [int(_whole(Path(each)).NumberOfFrames) for each in (file, mask)]
    if counts[0] != counts[1]:
        raise DataError(f"{shown(file)}: its mask {shown(mask)} has {counts[1]} frames, the image {counts[0]}")
    own, outlined = (dicom_header.place(_whole(Path(each)), number) for each in (file, mask))
    if own and outlined and not np.allclose(own, outlined, atol=NEAR):
        raise DataError(f"{shown(file)}: its mask {shown(mask)} lies elsewhere in space in frame {number}")


@looks.remembered(2)  # as of :func:`_read`
def _whole(path: Path) -> "Dataset":
    """Return a file of several frames, whose pixels are not decoded."""
    check_room(path, path.stat().st_size)
    data = dicom.parsed(path.read_bytes(), shown(path))
    if data.file_meta.get("MediaStorageSOPClassUID") == _SEGMENTATION:
        raise DataError(
            f"{shown(path)}: a DICOM segmentation, whose frames are of segments; allowed are frames of classes' values"
        )
    return data
