"""What a data set is: named domains of labelled uint8 images with one class list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.listing import Found
from datasets.listing import ImageSet as ImageSet
from fedshift_core.errors import DataError
from fedshift_core.limits import shown

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")  # of every data set
OWN_SPLITS: tuple[Split, ...] = ("train", "validation", "test")  # a user's own site may have images to validate on
TEST_SHARE = 0.2  # of a user's own images
Resize = Literal["squash", "crop", "pad"]
Exif = Literal["ignore", "apply"]


@dataclass(frozen=True)
class Form:
    """How an image of any shape and depth becomes a square of 8 bits a channel.

    Attributes:
        resize: squash: both sides to the size; crop: the shorter side, of which the middle is kept; pad: the longer
            side, the rest black.
        window: The values that become black and white in files of more than 8 bits; None: the file's full range, of
            DICOM its own window.
        exif: ignore: pixels stay as the file stores them; apply: an image is turned or mirrored as its orientation
            (EXIF) says.
    """

    resize: Resize = "squash"
    window: tuple[float, float] | None = None
    exif: Exif = "ignore"

    @property
    def mark(self) -> str:
        """What names of folders say of it; empty for what images have always been."""
        mark = "" if self.resize == "squash" else f"-{self.resize}"
        if self.window is not None:
            mark += f"-w{self.window[0]:g}to{self.window[1]:g}"
        return mark if self.exif == "ignore" else f"{mark}-exif"


#: What images have always been.
PLAIN = Form()


@dataclass(frozen=True)
class Source:
    """Where a data set's images come from on this machine.

    Attributes:
        data_dir: Folder with the images, or None where the data set makes its own.
        download: Let torchvision fetch what is missing, where it can.
        seed: Seed of generated images, and of the split of a user's own.
        classes: Of a user's own images the class names; a label is an index into them.
        labels: Of a user's own images the table in ``data_dir`` that names them; empty for ``labels.csv``, if there.
        test_share: Of a user's own images the part that is test, where they do not say themselves.
        skip_broken: Leave out images that cannot be read.
        classes_stated: Somebody stated the order of ``classes``; False where it is that of folders' names, and an
            integer label means nothing.
    """

    data_dir: Path | None = None
    download: bool = False
    seed: int = 0
    classes: tuple[str, ...] = ()
    labels: str = ""
    test_share: float = TEST_SHARE
    skip_broken: bool = False
    classes_stated: bool = True


@dataclass(frozen=True)
class Names:
    """The domains and classes of a user's own images, each in the order of tables and labels."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """A data set of several domains.

    Attributes:
        name: The name by which a configuration asks for it.
        title: One line for lists.
        domains: All domains, in their fixed order.
        classes: Class names; a label is an index into them.
        size: Height and width of the images in pixels, unless a configuration asks for another.
        find: Finds one domain and split without decoding it: ``find(domain, split, source)``.
        counts: Published number of images by domain, both splits together; a domain may be left out.
        test_only: Domains that are a test set and nothing else: no node can train on them.
        defaults: Of a data set that is not FedShift's own, what conf/datasets/NAME.yaml says of ours: ``images``,
            ``allocation``, and ``domains`` where a run does not have all of them.
        own: Of a data set whose domains and classes are a user's, how they are found; it names none itself.
        find_own: Finds one domain and split in the folder of a real node, None if that has no such split; None: in the
            plain layouts (:func:`datasets.io.trees.find_plain`).
        validates: Its sites may have a split validation; ``find`` and ``find_own`` are called for it.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    size: int
    find: Callable[[str, Split, Source], Found]
    counts: Mapping[str, int] = field(default_factory=dict)
    test_only: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own: Callable[[Source, tuple[str, ...]], Names] | None = None
    find_own: Callable[[str, Split, Source], Found | None] | None = None
    validates: bool = False

    def splits(self, domain: str) -> tuple[Split, ...]:
        """Return the splits that a domain has."""
        return ("test",) if domain in self.test_only else SPLITS


def checked(images: ImageSet, *, classes: int, size: int | None, where: str) -> ImageSet:
    """Return ``images`` unchanged if they keep the promise of :class:`ImageSet`.

    Args:
        images: What a loader read.
        classes: Number of classes.
        size: Height and width in pixels; None allows any.
        where: The file or folder they came from, for the message.

    Raises:
        DataError: If there are none, a shape or type is wrong, or a label is outside the classes.
    """
    x, y, where = images.x, images.y, shown(where)
    if len(y) == 0:
        raise DataError(f"{where}: no images found")
    shape = (len(y), size or x.shape[1], size or x.shape[2], 3)
    if x.dtype != np.uint8 or x.shape != shape:
        raise DataError(f"{where}: images of shape {x.shape} and type {x.dtype}, expected {shape} and uint8")
    check_range(y, classes, where)
    return images


def check_range(y: NDArray[np.int64], classes: int, where: str) -> None:
    """Refuse labels outside the classes.

    Args:
        y: Labels, shape (N,).
        classes: Number of classes.
        where: The file or folder they came from, for the message.

    Raises:
        DataError: With the least and the largest label.
    """
    low, high = (int(y.min()), int(y.max())) if len(y) else (0, 0)
    if low < 0 or high >= classes:
        raise DataError(f"{shown(where)}: labels from {low} to {high}, allowed are 0 to {classes - 1}")
