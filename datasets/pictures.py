"""Image files: which are taken, and opening them as what they may be and as nothing else."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from fedshift_wire.bounds import MOST_NAME, shown
from fedshift_wire.errors import DataError

#: Suffixes of image files, in any letter case.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: Pillow's names of their formats. It knows dozens, goes by the content of a file, runs Ghostscript for one of them.
#: A JPEG that is called .png is taken: published data sets have such.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
#: What file managers and authors leave in a folder of images; hidden files are passed over anyway.
_BY_PRODUCTS = ("thumbs.db", "desktop.ini")
_AUTHORS = ("readme", "license", "licence", "copying", "copyright", "citation")
_TEXTS = ("", ".txt", ".md", ".rst")
_MOST_SUFFIXES = 6  # that a message names

log = logging.getLogger("fedshift")
_told: set[str] = set()  # folders of which this process has spoken


@contextmanager
def opened(file: Path | BinaryIO, name: object) -> Iterator[Image.Image]:
    """Open an image of 8 bits a channel; no other program is started for it.

    Pillow's bound of pixels (``Image.MAX_IMAGE_PIXELS``) stays.

    Args:
        file: The file.
        name: How messages name it.

    Raises:
        DataError: If it is of no format of :data:`FORMATS`, or has more bits, which Pillow would clip without a word.
    """
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        kinds = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise DataError(f"{shown(name)}: cannot be read (by its content it is no {kinds} image)") from None
    with image:
        if image.mode.startswith(("I", "F")):
            raise DataError(f"{shown(name)}: pixels of mode {image.mode}; allowed are 8 bits a channel")
        yield image


def is_image_name(name: str) -> bool:
    """Tell whether a file of this name is taken for an image: a known suffix, and not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def not_taken(names: Iterable[str]) -> Counter[str]:
    """Count, by suffix, the files that are not taken; those that lie in any folder of images do not count.

    Args:
        names: Names of files.
    """
    return Counter(
        shown(Path(name).suffix.lower(), MOST_NAME) or "no suffix"
        for name in names
        if not is_image_name(name)
        and not name.startswith(".")
        and name.lower() not in _BY_PRODUCTS
        and not (Path(name).stem.lower() in _AUTHORS and Path(name).suffix.lower() in _TEXTS)
    )


def tell_not_taken(where: Path, counts: Counter[str]) -> None:
    """Warn of files in a folder, or members of a tar, that are not taken; once in a process for each."""
    if counts and str(where) not in _told:
        _told.add(str(where))
        log.warning("%s: %s", shown(where), describe(counts))


def describe(counts: Counter[str]) -> str:
    """Return what is not taken in one line: ``3 files are not taken: .heic (2), .txt (1); taken are .png, ...``."""
    number = counts.total()
    found = [f"{suffix} ({count})" for suffix, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    if len(found) > _MOST_SUFFIXES:
        found = [*found[:_MOST_SUFFIXES], f"{len(found) - _MOST_SUFFIXES} more suffixes"]
    files = "1 file is" if number == 1 else f"{number} files are"
    return f"{files} not taken: {', '.join(found)}; taken are {', '.join(SUFFIXES)}"
