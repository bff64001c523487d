"""Takes DICOM files of several frames apart: each frame is a slice of a volume, and read as a file of its own."""

import functools
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.io import dicom, dicom_header
from fedshift_datasets.io.reading import check_room
from fedshift_datasets.io.volumes import NEAR
from fedshift_datasets.listing import SLICE, file_of

if TYPE_CHECKING:
    from pydicom import Dataset

_SEGMENTATION = "1.2.840.10008.5.1.4.1.1.66.4"  # the class of files whose frames are of several segments
_OF_FRAMES = ("NumberOfFrames", "PixelData", "PerFrameFunctionalGroupsSequence")


def frame(name: str) -> bytes:
    """Return a frame, by the name of its slice, as the content of a DICOM file of its own.

    Raises:
        DataError: If pydicom is missing, or frames are of segments; damaged bytes raise other types.
    """
    from pydicom import Dataset, Sequence
    from pydicom.encaps import encapsulate, get_frame
    from pydicom.uid import UID

    whole, number = _whole(file_of(name)), _number(name)
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


def check(name: str, outline: str) -> None:
    """Refuse a mask whose frames are others than those of its image, by their number or by the place of one in space.

    Raises:
        DataError: With both.
    """
    file, mask, number = file_of(name), file_of(outline), _number(name)
    counts = [int(_whole(each).NumberOfFrames) for each in (file, mask)]
    if counts[0] != counts[1]:
        raise DataError(f"{shown(file)}: its mask {shown(mask)} has {counts[1]} frames, the image {counts[0]}")
    own, outlined = (dicom_header.place(_whole(each), number) for each in (file, mask))
    if own and outlined and not np.allclose(own, outlined, atol=NEAR):
        raise DataError(f"{shown(file)}: its mask {shown(mask)} lies elsewhere in space in frame {number}")


def _number(name: str) -> int:
    return int(name.partition(SLICE)[2])


def _whole(file: str) -> "Dataset":
    """Return a file of several frames, whose pixels are not decoded."""
    about = os.stat(file)  # noqa: PTH116
    return _kept(file, (about.st_ino, about.st_size, about.st_mtime_ns))


@functools.lru_cache(maxsize=2)  # an image and its mask: their frames follow one another
def _kept(file: str, identity: tuple[int, ...]) -> "Dataset":
    check_room(file, identity[1])
    data = dicom.parsed(Path(file).read_bytes(), shown(file))
    if data.file_meta.get("MediaStorageSOPClassUID") == _SEGMENTATION:
        raise DataError(
            f"{shown(file)}: a DICOM segmentation, whose frames are of segments; allowed are frames of classes' values"
        )
    return data
