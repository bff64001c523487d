"""Finds the masks of images, and reads them: images whose values are classes, not shades.

| layout | image | its mask |
|---|---|---|
| folders | `images/NAME.png` | `masks/NAME.png`, or with `_mask` or `_segmentation` after NAME; any formats |
| table | column `file` | column `mask` |

A value from 0 is the place of a class, 255 counts nowhere. Where there are two classes, many programs write the second
one as white: in a mask with 255 and without 1, 255 is class 1, and 254 counts nowhere. Values of a palette are its
places, of a grey picture in colours its shades. A volume and that of its masks are cut into slices
(:mod:`fedshift_datasets.io.volumes`). A mask lies on the pixels as the file of its image stores them, and is
turned with them, unless it states an orientation of its own.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Numbers
from fedshift_datasets.io import dicom, intact, layout, npz, pictures, png, presence, volumes
from fedshift_datasets.listing import IGNORED

IMAGES, MASKS = "images", "masks"  # names of the two folders
LAYOUTS = (
    f"<site>/{IMAGES}/* with <site>/{MASKS}/*, <site>/{{train,validation,test}}/{IMAGES}/* with {MASKS}/*, or "
    f"{layout.LABELS} with columns file and mask"
)
BACKGROUND = "background"  # the name of class 0, where nobody gives it another
_ENDS = ("", "_mask", "_segmentation")  # of a mask's name
_MODES = ("1", "L", "P", "LA", "RGB", "RGBA", "I", "I;16", "I;16B")
_SIXTEEN = 16  # bits a channel, in the header of a PNG
_ALLOWED = "allowed are the values of a grey picture or of a palette, as PNG or in another format without loss"


def are_in(folder: Path) -> bool:
    """Return whether a folder has both, images and masks."""
    return all(layout.named(folder, name).is_dir() for name in (IMAGES, MASKS))


def is_taken(name: str) -> bool:
    """Return whether a file is an image or a volume by its name."""
    return pictures.is_image_name(name) or (volumes.is_volume(name) and not name.startswith("."))


def pairs(place: Path) -> list[tuple[str, str]]:
    """Return the files of a folder's images, each with that of its mask; see :func:`lacking` for others.

    An image without a mask has an empty one, and a mask without an image is its own.

    Raises:
        DataError: If a folder is missing, has folders with images, or has two files of one name.
    """
    images, masks = (_by_name(layout.named(place, name)) for name in (IMAGES, MASKS))
    found = []
    for name, image in images.items():
        mask = next((name + end for end in _ENDS if name + end in masks), "")
        found.append((image, masks.pop(mask, "")))
    return [*found, *((mask, mask) for mask in masks.values())]


def _by_name(folder: Path) -> dict[str, str]:
    """Return the files of images in a folder by their names without suffixes."""
    if not folder.is_dir():
        presence.check(folder)
        raise DataError(f"{shown(folder)}: there is no such folder; expected {LAYOUTS}")
    deeper, names = layout.divided(folder)
    below = next((path for path in layout.files_below(deeper) if is_taken(path.name)), None)
    if below is not None:
        raise DataError(f"{shown(below)}: in a folder within {folder.name}; {layout.DEEPER}")
    by_name: dict[str, str] = {}
    for name in filter(is_taken, names):
        stem = Path(name.removesuffix(".gz")).stem
        if (other := by_name.setdefault(stem, f"{folder}/{name}")) != f"{folder}/{name}":
            raise DataError(f"{shown(folder)}: {shown(Path(other).name)} and {shown(name)} are one name; keep one")
    return by_name


def lacking(file: str, mask: str) -> str:
    """Return what one of :func:`pairs` lacks; empty if it is whole."""
    if not mask:
        return f"it has no mask; expected is one of its name in {MASKS}"
    return f"a mask without an image; expected is one of its name in {IMAGES}" if file == mask else ""


def read(content: bytes, name: object, classes: int) -> tuple[Image.Image, int]:
    """Return a mask with the places of classes (mode L), and its own orientation.

    Args:
        content: The file.
        name: Its name in messages.
        classes: Their number, with the background.

    Raises:
        DataError: If it is compressed with loss, has colours, or other values.
    """
    values, turn = _values(content, name)
    return Image.fromarray(npz.as_classes(values, name, classes)), turn


def values_of(file: str) -> set[float]:
    """Return the values that a mask has.

    Raises:
        DataError: As :func:`read`.
    """
    if volumes.is_volume(file):
        return set(np.unique(volumes.values(file)).tolist())
    frames = volumes.slices(file)
    parts = map(volumes.frame, frames) if len(frames) > 1 else [Path(file).read_bytes()]
    return set[float]().union(*(np.unique(_values(part, file)[0]).tolist() for part in parts))


def classes_of(found: Iterable[float], where: Path) -> tuple[str, ...]:
    """Return names of the classes that values of masks stand for.

    Raises:
        DataError: If they are no places in a list.
    """
    every = set(found)
    there = every and {0, 1} if every <= {0, npz.WHITE} else every - {IGNORED}
    most = int(max(there, default=0))
    if min(there, default=0) < 0 or most >= min(2 * len(there), IGNORED) or any(value % 1 for value in there):
        raise DataError(
            f"{shown(where)}: masks with the values {npz.values_text(there)}, which are no places in a list of classes",
            "write 0 for the background and 1, 2, ... for the classes, and state dataset.classes=[background,...]",
        )
    return (BACKGROUND, *(f"class{place}" for place in range(1, max(most, 1) + 1)))


def _values(content: bytes, name: object) -> tuple[Numbers, int]:
    """Return the values (H, W) of a mask, and the orientation that it states."""
    if dicom.is_dicom(content):
        return dicom.stored(content, name), pictures.UPRIGHT
    packed = png.as_bytes(content)
    image, depth = pictures.opened(packed or content, name)
    with image:
        turn = depth.orientation or pictures.orientation(image)
        if packed is not None:
            return png.grey(image), turn
        if image.format == "JPEG" or intact.is_lossy(content):
            raise DataError(f"{shown(name)}: a mask compressed with loss, which changes values; {_ALLOWED}")
        deep = image.format == "PNG" and content[24] == _SIXTEEN and image.mode.startswith("RGB")
        if image.mode not in _MODES or deep:
            raise DataError(f"{shown(name)}: a mask of mode {image.mode}{', 16 bits' * deep}; {_ALLOWED}")
        found = np.asarray(image, np.uint8 if image.mode == "1" else None)
        intact.check(content, name, image.width * image.height)
    if found.ndim > 2:  # with channels, the last of two or four is alpha
        shades = found[..., : found.shape[2] - (found.shape[2] % 2 == 0)]
        if (shades != shades[..., :1]).any():
            raise DataError(f"{shown(name)}: a mask in colours; {_ALLOWED}")
        found = found[..., 0]
    return found, turn
