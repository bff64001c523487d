"""Reads and writes npz files of images; integers of labels are places in a stated list of classes.

| keys | what an integer of `y` means |
|---|---|
| `x`, `y` and `classes`, text (C,) | place in the file's own list, from 0; its names are matched with the run's |
| `x` and `y` | place in the run's classes, from 0 |

The second case is refused if it is ambiguous: nobody stated the run's classes (they are folder names by alphabet), or
a class has a number as its name that is not its place (``0, 1, 10, 2``, or ``1 .. 10``).
"""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_core import private_files, same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, as_found, shortened, shown, some
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Indices, Numbers, Pixels, Reals, Texts
from fedshift_datasets.base import ImageSet, checked
from fedshift_datasets.io import kept
from fedshift_datasets.io.presence import brief, check_room, listed, reading
from fedshift_datasets.io.resize import rgb
from fedshift_datasets.listing import IGNORED, main_class

WHITE, _NOWHERE = 255, 254  # in masks of two classes: the second one, and what counts nowhere
_MOST_NAMED = 6  # values in a message
KEY = "classes"
MASKS = "masks"  # integers (N, H, W), where images have masks: classes as in `y`; 255 counts nowhere
GROUPS = "patient"  # text or integers (N,), optional: the patient, or another group, of each image; empty: on its own
SPACING = "spacing"  # numbers (N, 2), optional, of masks: millimetres from pixel to pixel, down and across; or NaN
REMEDY = (
    "state the classes in the order of these integers, dataset.classes=[NAME_OF_0,NAME_OF_1,...], or in the file: "
    "numpy.savez(FILE, x=x, y=y, classes=[NAME_OF_0, NAME_OF_1, ...])"
)
REMEDY_NUMBERS = (
    "state in the file which class each integer is: numpy.savez(FILE, x=x, y=y, classes=[NAME_OF_0, NAME_OF_1, ...]); "
    "dataset.classes is enough if each class named by a number stands at that place: [0,1,2,...]"
)


def described(found: Numbers) -> str:
    """Return the type and shape of an array, for messages."""
    return f"type {shown(found.dtype, MOST_NAME)} and shape {found.shape}"


def groups(found: Numbers | None, number: int, where: str) -> Texts | None:
    """Return the group of each image of a file, (N,); None if it has none.

    Args:
        found: Its key ``patient``; None where it has none.
        number: N.
        where: The file, for messages.

    Raises:
        DataError: If it is no such list.
    """
    if found is None:
        return None
    if found.dtype.kind not in "Uiu" or found.shape != (number,):
        description = described(found)
        raise DataError(
            f"{shown(where)}: {GROUPS} has {description}; allowed are text, integers and ({number},). Name the key "
            "otherwise if it does not say which images are of one patient"
        )
    return np.array(same_names.patients(found.astype(np.str_).tolist()), np.str_)


def spacing(found: Numbers | None, number: int, where: str) -> Reals | None:
    """Return the spacing of each image's pixels in a file, (N, 2); None if it has none.

    Args:
        found: Its key ``spacing``; None where it has none.
        number: N.
        where: The file, for messages.

    Raises:
        DataError: If it is no such list.
    """
    if found is None:
        return None
    fits = found.dtype.kind in "fiu" and found.shape == (number, 2)
    if not fits or not (np.isnan(found) | ((found > 0) & (found < np.inf))).all():
        description = described(found) if not fits else "other numbers"
        raise DataError(
            f"{shown(where)}: {SPACING} has {description}; allowed are millimetres above 0 as ({number}, 2)"
        )
    return found.astype(np.float64)


def load(path: Path, wanted: tuple[str, ...]) -> dict[str, Numbers]:
    """Return the wanted arrays of an npz file, and its ``classes`` if there are any.

    Raises:
        DataError: If the file is broken, or has no ``x`` or ``y``.
    """
    where = path.absolute()
    with reading(where), path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise DataError(f"{shown(where)}: not an npz file, or cut short; allowed is a zip as numpy.savez writes it")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            missing = {"x", "y"} - set(archive.files)
            if missing:
                keys_text = listed(archive.files) or "none"
                raise DataError(
                    f"{shown(where)}: no key {' and '.join(sorted(missing))}; it must have x and y, found: {keys_text}"
                )
            keys = [key for key in (*wanted, KEY) if key in archive.files]
            members = [name for key in keys for name in (key, f"{key}.npy")]
            check_room(where, sum(part.file_size for part in archive.zip.infolist() if part.filename in members))
            return {key: _load_key(archive, key, where) for key in keys}


def _load_key(archive: Any, key: str, where: Path) -> Numbers:
    with reading(f"{shown(where)}: key {key}"):
        value = archive[key]
    # A zip member that is not an npy file comes back as bytes.
    if not isinstance(value, np.ndarray):
        raise DataError(f"{shown(where)}: key {key} is no array; allowed is what numpy.savez writes")
    return value


def names(own: Numbers, where: str) -> tuple[str, ...]:
    """Return the classes in a file's own list.

    Args:
        own: Its key ``classes``.
        where: The file, for messages.

    Raises:
        DataError: If it is not a list of different names.
    """
    if own.dtype.kind != "U" or own.ndim != 1 or not len(own):
        description = described(own)
        raise DataError(f"{shown(where)}: classes has {description}; allowed are text and (C,)")
    names_of_file = tuple(own.tolist())
    if pair := same_names.twice(names_of_file):
        raise DataError(f"{shown(where)}: classes has {as_found(pair[0])} and {as_found(pair[1])}, which are one name")
    return names_of_file


def of_run(y: Numbers, own: Numbers | None, *, where: str, classes: tuple[str, ...], stated: bool) -> Numbers:
    """Return labels as places in the run's classes; non-integers are returned unchanged.

    Args:
        y: Labels of a file.
        own: Its key ``classes``; None where it has none.
        where: The file, for messages.
        classes: The run's classes.
        stated: Somebody stated their order.

    Raises:
        DataError: If a name is no class, or an integer may be read in two ways.
    """
    if y.dtype.kind not in "iu" or y.ndim != 1 or not len(y):
        return y  # `files.as_images` refuses it
    if own is None:
        _check_places(classes, where, stated=stated)
        return y
    names_of_file = names(own, where)
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(names_of_file):
        raise DataError(
            f"{shown(where)}: labels from {low} to {high}; its key classes has 0 to {len(names_of_file) - 1}"
        )
    table = np.full(len(names_of_file), -1, np.int64)
    for number in np.unique(y).tolist():  # a class without an image may be unknown to the run
        place = same_names.place(names_of_file[number], classes)
        if place is None:
            allowed = shortened(", ".join(classes))
            raise DataError(
                f"{shown(where)}: its class {as_found(names_of_file[number])} is none of the run's: {allowed}"
            )
        table[number] = place
    places: Indices = table[y]
    return places


def check_integers(y: Numbers, where: str) -> None:
    """Refuse labels that are not integers of shape (N,).

    Raises:
        DataError: With their type and shape.
    """
    if y.dtype.kind not in "iu" or y.ndim != 1:
        description = described(y)
        raise DataError(f"{shown(where)}: y has {description}; allowed are integers and (N,)")


def nobody_stated(where: object, there: str = "") -> DataError:
    """Return the error of integer labels whose classes nobody stated.

    Args:
        where: The file.
        there: More text for the message.
    """
    return DataError(f"{shown(where)}: y holds integers, and nobody stated which classes they are{there}", REMEDY)


def _check_places(classes: tuple[str, ...], where: str, *, stated: bool) -> None:
    """Refuse integer labels that are not places in a stated list."""
    if not stated:
        raise nobody_stated(where)
    for number, name in enumerate(classes):
        if (written := same_names.number(name)) is not None and written != str(number):
            raise DataError(
                f"{shown(where)}: y holds integers, and {number} is the place of class {as_found(name)}", REMEDY_NUMBERS
            )


def read(path: Path, *, classes: tuple[str, ...], stated: bool = True, masks: bool = False) -> ImageSet:
    """Read the images of an npz file with the keys ``x``, ``y`` and optionally ``classes``; other keys are ignored.

    Args:
        path: The file.
        classes: The classes of the run.
        stated: Somebody stated the order of ``classes``, see :mod:`fedshift_datasets.io.npz`.
        masks: It must have ``masks`` too.

    Returns:
        Images of shape (N, H, W, 3), in the file's order.

    Raises:
        DataError: If the file is broken or ``x`` and ``y`` are not images and labels.
    """
    arrays = load(path, ("x", "y", *([MASKS, SPACING] if masks else [])))
    where, own = str(path.absolute()), arrays.get(KEY)
    y = of_run(arrays["y"], own, where=where, classes=classes, stated=stated)
    images = as_images(arrays["x"], y, where=where, classes=classes)
    if not masks:
        return images
    if MASKS not in arrays:
        raise DataError(f"{shown(where)}: no key {MASKS}; with task=segmentation it must have x, y and {MASKS}")
    outlines = masks_of_run(arrays[MASKS], own, where=where, classes=classes)
    apart = spacing(arrays.get(SPACING), len(images), where)
    whole = ImageSet(images.x, main_class(outlines, IGNORED), masks=outlines, spacing=apart)
    return checked(whole, classes=len(classes), size=None, where=where)


def as_images(x: Numbers, y: Numbers, *, where: str, classes: tuple[str, ...]) -> ImageSet:
    """Check raw arrays and turn them into an :class:`ImageSet`.

    Args:
        x: Images, uint8, shape (N, H, W), (N, H, W, 1) or (N, H, W, 3).
        y: Labels, any integer type, shape (N,).
        where: The file they came from, for the messages.
        classes: Class names.

    Returns:
        Images of shape (N, H, W, 3).

    Raises:
        DataError: If a type, a shape or a label is not allowed, or there are no images.
    """
    where = shown(where)
    images = x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3))
    if x.dtype != np.uint8 or not images or 0 in x.shape[1:]:
        raise DataError(f"{where}: x has {described(x)}; allowed are uint8 and (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    check_integers(y, where)
    if len(x) != len(y):
        raise DataError(
            f"{where}: {plural(len(x), 'image')} (x) but {plural(len(y), 'label')} (y); the numbers must be equal"
        )
    return checked(ImageSet(rgb(x), y.astype(np.int64)), classes=len(classes), size=None, where=where)


def as_classes(found: Numbers, name: object, classes: int) -> Pixels:
    """Return the values of a mask as places of classes.

    Raises:
        DataError: If one is none.
    """
    if classes == 2 and 1 not in found:
        found = np.where(found == WHITE, 1, np.where(found == _NOWHERE, IGNORED, found))
    if unknown := {*np.unique(found).tolist()} - {*range(classes), IGNORED}:
        raise DataError(
            f"{shown(name)}: values {values_text(unknown)}; allowed are 0 to {classes - 1} for the classes, and "
            f"{IGNORED} for pixels that count nowhere"
        )
    return found.astype(np.uint8)


def masks_of_run(found: Numbers, own: Numbers | None, *, where: str, classes: tuple[str, ...]) -> Pixels:
    """Return the masks of an npz file with places in the run's classes.

    Args:
        found: Its key ``masks``.
        own: Its key ``classes``; None where it has none.
        where: The file, for messages.
        classes: The run's classes.

    Raises:
        DataError: If they are no masks, or a value is no class.
    """
    if found.dtype.kind not in "iu" or found.ndim != 3:  # (N, H, W)
        description = described(found)
        raise DataError(f"{shown(where)}: {MASKS} has {description}; allowed are integers and (N, H, W)")
    found = as_classes(found, where, len(classes if own is None else own))
    there = np.unique(found[found != IGNORED]).astype(np.int64)
    table = np.full(IGNORED + 1, IGNORED, np.uint8)
    table[there] = of_run(there, own, where=where, classes=classes, stated=True)
    return table[found]


def values_text(found: Iterable[float]) -> str:
    """Return values of masks for a message."""
    return some([f"{value:g}" for value in sorted(found)], _MOST_NAMED)


def write(path: Path, images: ImageSet, classes: tuple[str, ...] = ()) -> None:
    """Write ``images`` as a compressed npz, with all else that they have: completely or not at all, for its owner only.

    Args:
        path: The file.
        images: The images to write.
        classes: The classes that labels index, for the key ``classes``; empty for none.

    Raises:
        DataError: If the file cannot be written.
    """
    content: dict[str, Any] = {
        "x": images.x,
        "y": images.y,
        GROUPS: images.groups,
        MASKS: images.masks,
        SPACING: images.spacing,
        KEY: np.array(classes) if classes else None,
    }
    try:
        private_files.make_folder(path.parent)
        with kept.building(path) as file:
            np.savez_compressed(file, **{key: array for key, array in content.items() if array is not None})
    except OSError as cause:
        raise DataError(f"{shown(path.absolute())}: cannot be written ({brief(cause)})") from cause
