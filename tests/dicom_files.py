"""DICOM files as the tests need them, written with pydicom."""

import io
from typing import Any

import digit_files
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import Dataset, FileMetaDataset, Sequence
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)

NAME = "Doe^Jane"  # of the patient of each file
WAYS: dict[str, dict[str, Any]] = {"jpeg": {"format": "JPEG"}, "j2k": {"format": "JPEG2000", "no_jp2": True}}
COMPRESSED = ("rle", "jpeg", "j2k")


def made(pixels: NDArray[Any], syntax: UID = ExplicitVRLittleEndian, **tags: Any) -> Dataset:
    """Return a file's dataset: grey pixels (H, W) or colours (H, W, 3), all bits stored unless ``tags`` say so."""
    bits = pixels.dtype.itemsize * 8
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(entropy_srcs=["test"])
    data.PatientName = NAME
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    data.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        data.PlanarConfiguration = 0
    data.BitsAllocated = data.BitsStored = bits
    data.HighBit = bits - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    data.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    return data


def written(data: Dataset) -> bytes:
    """Return a dataset as a file's content."""
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()


def grey() -> bytes:
    """Return 12 bits of 16, rescaled, with a window."""
    pixels = digit_files.noise(24, 20).astype(np.uint16) * 16
    tags = {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": [40, 60], "WindowWidth": [400, 100]}
    return written(made(pixels, BitsStored=12, HighBit=11, **tags))


def enhanced() -> bytes:
    """Return 12 bits of 16, high in them, with rescaling and window in functional groups."""
    rescaling, window, group, frame = Dataset(), Dataset(), Dataset(), Dataset()
    rescaling.RescaleSlope, rescaling.RescaleIntercept = 2, -1024
    window.WindowCenter, window.WindowWidth = 40, 400
    group.PixelValueTransformationSequence = Sequence([rescaling])
    frame.FrameVOILUTSequence = Sequence([window])
    groups = {
        "SharedFunctionalGroupsSequence": Sequence([group]),
        "PerFrameFunctionalGroupsSequence": Sequence([frame]),
    }
    pixels = digit_files.noise(24, 20).astype(np.uint16) << 8
    return written(made(pixels, BitsStored=12, NumberOfFrames=1, **groups))


def colour() -> bytes:
    """Return RGB."""
    return written(made(digit_files.noise(24, 20, 3)))


def compressed(kind: str) -> bytes:
    """Return grey of 8 bits, compressed as one of :data:`COMPRESSED`."""
    pixels = digit_files.noise(24, 20)
    data = made(pixels)
    if kind == "rle":
        data.compress(RLELossless, generate_instance_uid=False)
        return written(data)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, **WAYS[kind])
    data.file_meta.TransferSyntaxUID = JPEGBaseline8Bit if kind == "jpeg" else JPEG2000Lossless
    data.PixelData = encapsulate([file.getvalue()])
    data["PixelData"].is_undefined_length = True
    return written(data)
