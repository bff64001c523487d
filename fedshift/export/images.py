"""Finds the images that the user names (files, folders, class folders) and decodes them in batches."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedshift_core import same_names
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import shown, some
from fedshift_core.plural import plural
from fedshift_datasets.base import Form
from fedshift_datasets.io import layout, pictures, presence
from fedshift_datasets.io.decode import Decoded, decode
from fedshift_datasets.listing import Item

MOST_CLASSES = 10  # named in a line
_SCORED = "FOLDER/<class>/* is"


@dataclass(frozen=True)
class Picture:
    """An image file.

    Attributes:
        path: The file.
        label: The class that its folder is named after; else None.
    """

    path: Path
    label: int | None = None


#: Images that are predicted together: each file, and what is in it.
Batch = list[tuple[Picture, Decoded]]


def find(given: Sequence[Path], classes: Sequence[str]) -> tuple[list[Picture], list[str]]:
    """Return the images of files and folders, in order, and notes for the user.

    The images of ``folder/<class>/`` are labelled if all its folders have names of classes;
    :mod:`fedshift_core.same_names` compares spellings. A note says why other images are not scored.

    Raises:
        ConfigError: If a path does not exist, or a folder holds no image.
        DataError: If a path exists but cannot be read.
    """
    pictures: list[Picture] = []
    lines: list[str] = []
    for path in given:
        if path.is_dir():
            inside, note = _in_folder(path, classes)
            pictures += inside
            lines += [note] if note else []
        elif path.is_file():
            pictures.append(Picture(path))
        else:
            presence.check(path)
            raise ConfigError(f"there is no file and no folder {shown(path)}")
    return pictures, lines


def _in_folder(folder: Path, classes: Sequence[str]) -> tuple[list[Picture], str]:
    """Return the images of a folder, and the reason why some are not scored; empty if all are.

    Raises:
        ConfigError: If there is none.
        DataError: If a folder cannot be listed, or class folders are none that a data set takes.
    """
    with presence.reading(folder):
        folders, names = layout.divided(folder)
        labels = {path.name: same_names.place(path.name, classes) for path in folders}
        others = [name for name, label in labels.items() if label is None]
        note, ignored = "", names
        if folders and not others:
            loose = list(filter(pictures.is_image_name, names))
            taken = []
            for path in folders:
                images, not_taken, _ = layout.class_folder(path)
                taken += [Picture(path / name, labels[path.name]) for name in images]
                ignored = [*ignored, *not_taken]
            taken += [Picture(folder / name) for name in loose]
            if loose:
                are = plural(len(loose), "image directly in it is", "images directly in it are")
                note = f"{shown(folder)}: {are} not scored: in no class folder"
        else:
            below = sorted(layout.files_below([folder]))
            taken = [Picture(path) for path in below if pictures.is_image_name(path.name)]
            ignored = [path.name for path in below]
            inner, known = some(others, 3) or "none", some(classes, MOST_CLASSES)
            note = f"{shown(folder)} is not scored: its folders are {inner}, the classes {known}; {_SCORED}"
    pictures.warn_of_ignored(folder, ignored)
    if not taken:
        raise ConfigError(f"{shown(folder)} holds no image; accepted are {', '.join(pictures.SUFFIXES)}")
    return taken, note


def read(path: Path, size: int, form: Form) -> Decoded:
    """Decode an image as the run did; all decoding happens here.

    Raises:
        DataError: If it cannot be.
    """
    return decode(Item(str(path), str(path)), size, form)


def batches(
    all_pictures: Sequence[Picture], size: int, form: Form, number: int, least: int, broken: list[str]
) -> Iterator[Batch]:
    """Decode images and yield them in batches; unreadable ones are left out and reported in ``broken``.

    Args:
        all_pictures: The files.
        size: Height and width in pixels.
        form: The conversion to squares of 8 bits per channel.
        number: Batch size.
        least: Images of the last batch at least, if there are so many: it is joined to the one before.
        broken: Receives a line for each unreadable image.
    """

    def decoded() -> Iterator[tuple[Picture, Decoded]]:
        for picture in all_pictures:
            try:
                yield picture, read(picture.path, size, form)
            except DataError as error:
                broken.append(str(error))

    source, waiting = decoded(), Batch()
    while batch := list(itertools.islice(source, number)):
        if waiting and len(batch) >= min(least, number):
            yield waiting
            waiting = batch
        else:
            waiting = waiting + batch
    if waiting:
        yield waiting
