"""Decides which files are images, and decodes them in the allowed formats only."""

import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedshift_core import said_once
from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Numbers, Pixels
from fedshift_datasets.io import dicom, intact, png, tiff
from fedshift_datasets.io.resize import levels

#: Suffixes of image files, in any letter case.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".dcm")
#: Pillow's names of formats that it opens directly. It knows dozens, decides by the content of a file, and runs
#: Ghostscript for one of them. TIFF is reduced first (datasets/fedshift_datasets/io/tiff.py), and Pillow does not read
#: DICOM (datasets/fedshift_datasets/io/dicom.py). A JPEG named .png is accepted, as published data sets have some.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
#: Files and folders of systems and file managers that no folder of images lists, in any letter case.
_BY_PRODUCTS = frozenset(
    {
        *("@eadir", "@__thumb", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "recycler", "__macosx"),
        *("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"),
        *("lost+found", "system volume information", "network trash folder"),
    }
)
_AUTHORS = ("readme", "license", "licence", "copying", "copyright", "citation")
_TEXTS = ("", ".txt", ".md", ".rst")
_MOST_SUFFIXES = 6  # named in a message
_LFS = b"version https://git-lfs.github.com/spec/"
_ANNEX = re.compile(rb"(?:\.\./)*(?:\.git)?/?annex/objects/")  # an unlocked file, or a link on a disk without links
_MOST_POINTER = 1 << 15
_ORIENTATION = 274  # the tag
UPRIGHT = 1  # of an orientation


class Header(NamedTuple):
    """Properties of an image in its file.

    Attributes:
        size: Width and height.
        mode: Pillow's.
        spacing: Millimetres from pixel to pixel, down and across; None if they are unknown.
        orientation: EXIF's.
    """

    size: tuple[int, int]
    mode: str
    spacing: tuple[float, float] | None = None
    orientation: int = UPRIGHT

    @property
    def turned(self) -> bool:
        """Whether it must be turned or mirrored."""
        return self.orientation != UPRIGHT


def read(content: bytes, name: object, window: tuple[float, float] | None = None) -> tuple[Image.Image, Header]:
    """Return an image as RGB of 8 bits a channel, decoded to the last byte and without another program; and its header.

    Values of 8 bits stay unchanged. An alpha channel is dropped, so a transparent pixel has its stored colour. Colour
    profiles and orientation (:func:`orientation`) are ignored, as in the data sets of papers. The first frame of a WebP
    or PNG counts. Grey of 16 bits, with or without alpha, is divided by 257, the full range, not by an image's own
    range, which would remove differences between sites. Colour of 16 bits keeps the upper byte, as Pillow reads it.
    Pillow's limit of pixels (``Image.MAX_IMAGE_PIXELS``) applies.

    Args:
        content: The file.
        name: Its name in messages.
        window: As in :class:`~fedshift_datasets.base.Form`.

    Raises:
        DataError: If its format is not among :data:`FORMATS`, TIFF and DICOM, or its pixels are of another kind.
    """
    if dicom.is_dicom(content):
        rgb, about = dicom.decoded(content, name, window)
        return rgb, Header(*about)
    if whole := intact.jpeg(content):
        rgb, mode = Image.fromarray(whole[0]), whole[1]
        turn = orientation(opened(content, name)[0]) if intact.states_orientation(content) else UPRIGHT
        return rgb, Header(rgb.size, mode, orientation=turn)
    packed = png.as_bytes(content)
    image, depth = opened(packed or content, name)
    ends = window or (0, 2**depth.bits - 1)
    with image:
        if packed is not None:
            grey = _grey(png.grey(image), ends, depth, whole=True)
            intact.check(content, name, grey.size)
            return Image.fromarray(grey).convert("RGB"), header(content, name)
        size, mode = image.size, image.mode
        rgb = _rgb(image, name, ends, depth, windowed=window is not None)
        intact.check(content, name, size[0] * size[1])
        return rgb, Header(size, mode, orientation=depth.orientation or orientation(image))


def _rgb(
    image: Image.Image, name: object, ends: tuple[float, float], depth: tiff.Depth, *, windowed: bool
) -> Image.Image:
    """Return an opened image as RGB of 8 bits a channel.

    Raises:
        DataError: If its pixels are of another kind.
    """
    if image.mode == "RGB":
        image.load()
        return image
    if not image.mode.startswith(("I", "F")):
        return image.convert("RGB")
    whole = image.mode.startswith("I;16") or image.format == "PNG"  # "I" of a PNG: so old versions of Pillow call it
    if not whole and (image.mode != "I" or not windowed):
        raise DataError(
            f"{shown(name)}: pixels of mode {image.mode}; allowed are 8 and 16 bits a channel, and with "
            "dataset.window=[low,high] signed and longer whole numbers"
        )
    return Image.fromarray(_grey(np.asarray(image), ends, depth, whole)).convert("RGB")


def header(content: bytes, name: object) -> Header:
    """Return an image's properties without decoding pixels, if its format allows that.

    Raises:
        DataError: As :func:`read`.
    """
    if dicom.is_dicom(content):
        return Header(*dicom.header(content, name))
    image, depth = opened(content, name)
    with image:
        return Header(image.size, image.mode, orientation=depth.orientation or orientation(image))


def orientation(image: Image.Image) -> int:
    """Return the orientation that an opened image states in EXIF or XMP, 1 to 8; 1 (upright) without a known one."""
    try:
        value = image.getexif().get(_ORIENTATION)
    except Exception:  # Pillow raises nearly any type on a damaged EXIF block, and the pixels may be fine
        return UPRIGHT
    return value if isinstance(value, int) and value in range(1, 9) else UPRIGHT


def turned(image: Image.Image, stated: int) -> Image.Image:
    """Return an image turned or mirrored as a stated orientation says."""
    image.info.clear()
    image.getexif()[_ORIENTATION] = stated
    return ImageOps.exif_transpose(image)


def opened(content: bytes, name: object) -> tuple[Image.Image, tiff.Depth]:
    """Return an opened image, and what Pillow does not report about more than 8 bits a channel.

    Raises:
        DataError: If its format is not supported.
    """
    depth = tiff.Depth()
    formats: tuple[str, ...] = FORMATS
    if content.startswith(tiff.MAGIC):
        content, depth = tiff.reduced(content, name)
        formats = ("TIFF",)
    try:
        return Image.open(io.BytesIO(content), formats=formats), depth
    except UnidentifiedImageError:
        raise DataError(f"{shown(name)}: cannot be read ({_unknown(content)})") from None


def _grey(values: Numbers, window: tuple[float, float], depth: tiff.Depth, whole: bool) -> Pixels:
    """Return grey values (H, W) of more than 8 bits as 8 bits; ``whole``: they have exactly 16 bits."""
    # By a table if possible: 64 bits for each pixel would take eight times the memory.
    if depth.unsigned and not whole:
        values = values.view(np.uint32)
    grey = levels(np.arange(1 << 16), *window)[values] if whole else levels(values, *window)
    return 255 - grey if depth.inverted else grey


def _unknown(content: bytes) -> str:
    """Return the reason why Pillow does not know an image."""
    if content.startswith(_LFS):
        return "a pointer of Git LFS in place of the image: `git lfs pull` brings it"
    if len(content) < _MOST_POINTER and _ANNEX.match(content):
        return "a pointer of git-annex in place of the image: `git annex get` or `datalad get` brings it"
    if content.startswith(tiff.MAGIC):
        return "a TIFF of a kind that is not taken: grey, RGB, CMYK or palette of 8 or 16 bits a channel are"
    if content.startswith(tiff.BIG_MAGIC):
        return "a BigTIFF; allowed is TIFF"
    return f"by its content it is no {', '.join(FORMATS)}, TIFF or DICOM image"


def is_passed_over(name: str) -> bool:
    """Return whether a file or folder is hidden, or a by-product of a system or file manager: none is ever listed."""
    return name.startswith(".") or name.lower() in _BY_PRODUCTS


def is_image_name(name: str) -> bool:
    """Return whether a file name is that of an image: a known suffix, and not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def not_taken(names: Iterable[str]) -> Counter[str]:
    """Return the number of ignored files by suffix, without usual by-products of a folder of images.

    Args:
        names: Names of files.
    """
    return Counter(
        shown(Path(name).suffix.lower(), MOST_NAME) or "no suffix"
        for name in names
        if not is_image_name(name)
        and not is_passed_over(name)
        and not (Path(name).stem.lower() in _AUTHORS and Path(name).suffix.lower() in _TEXTS)
    )


def warn_of_ignored(where: Path, names: Iterable[str]) -> None:
    """Warn once of ignored files in a folder, or of ignored members of a tar."""
    if counts := not_taken(names):
        said_once.warn(f"{shown(where)}: {describe(counts)}", str(where))


def describe(counts: Counter[str]) -> str:
    """Return a line on ignored files: ``3 files are not taken: .heic (2), .txt (1); taken are .png, ...``."""
    number = counts.total()
    suffixes = [f"{suffix} ({count})" for suffix, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    if more := suffixes[_MOST_SUFFIXES:]:
        suffixes[_MOST_SUFFIXES:] = [plural(len(more), "more suffix", "more suffixes")]
    files = plural(number, "file is", "files are")
    return f"{files} not taken: {', '.join(suffixes)}; taken are {', '.join(SUFFIXES)}"
