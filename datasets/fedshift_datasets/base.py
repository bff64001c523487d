"""Defines a data set: named domains of labelled uint8 images with one class list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Indices, Pixels
from fedshift_datasets.listing import IGNORED, ImageFiles
from fedshift_datasets.listing import ImageSet as ImageSet

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")  # of every data set
OWN_SPLITS: tuple[Split, ...] = ("train", "validation", "test")  # a user's own site may have validation images
TEST_SHARE = 0.2  # test part of a user's own images
Resize = Literal["squash", "crop", "pad"]
Exif = Literal["ignore", "apply"]
Patients = Literal["all", "listed"]


@dataclass(frozen=True)
class Form:
    """How an image of any shape and depth becomes a square of 8 bits a channel.

    Attributes:
        resize: squash: scale both sides to the size; crop: scale the shorter side and keep the middle; pad: scale the
            longer side and fill the rest with black.
        window: The values that become black and white in files of more than 8 bits and in grey DICOM of any depth;
            None: the file's full range, or the window of a DICOM file.
        exif: ignore: pixels stay as the file stores them; apply: an image is turned or mirrored as its orientation
            (EXIF) says.
    """

    resize: Resize = "squash"
    window: tuple[float, float] | None = None
    exif: Exif = "ignore"

    @property
    def mark(self) -> str:
        """The part of folder names that states the form; empty for the original form."""
        mark = "" if self.resize == "squash" else f"-{self.resize}"
        if self.window is not None:
            mark += f"-w{self.window[0]:g}to{self.window[1]:g}"
        return mark if self.exif == "ignore" else f"{mark}-exif"


#: The original form of images.
PLAIN = Form()


@dataclass(frozen=True)
class Source:
    """The place of a data set's images on this machine.

    Attributes:
        data_dir: Folder with the images; None if the data set generates its own.
        download: Let torchvision fetch missing images.
        seed: Seed of generated images, and of the split of a user's own.
        classes: Class names of a user's own images; a label is an index into them.
        labels: Table in ``data_dir`` that lists a user's own images; empty for ``labels.csv``, if there is one.
        test_share: Test part of a user's own images, where the images have no split.
        skip_broken: Leave out images that cannot be read.
        classes_stated: Somebody stated the order of ``classes``; False if it is the order of folder names, so that an
            integer label has no meaning.
        patients: all: patients are looked for wherever they may be known; listed: ``labels`` alone states them.
        masks: The run asks for masks of the images (``ImageSet.masks``).
    """

    data_dir: Path | None = None
    download: bool = False
    seed: int = 0
    classes: tuple[str, ...] = ()
    labels: str = ""
    test_share: float = TEST_SHARE
    skip_broken: bool = False
    classes_stated: bool = True
    patients: Patients = "all"
    masks: bool = False


@dataclass(frozen=True)
class Names:
    """The domains and classes of a user's own images, each in the order of tables and labels."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """A data set of several domains.

    Attributes:
        name: Its name in a configuration.
        title: One line for lists.
        domains: All domains, in their fixed order.
        classes: Class names; a label is an index into them.
        size: Height and width of the images in pixels, unless a configuration sets another.
        find: Finds one domain and split without decoding it: ``find(domain, split, source)``.
        counts: Published number of images by domain, both splits together; a domain may be left out.
        test_only: Domains that are only a test set: no node can train on them.
        defaults: For a data set outside FedShift, the content of a conf/datasets/NAME.yaml: ``images``, ``allocation``,
            and ``domains`` if a run does not have all of them.
        own: For a data set with a user's domains and classes, a function that finds them; it names none itself.
        find_own: Finds one domain and split in the folder of a real node, None if there is no such split; by default
            in the plain layouts (:func:`fedshift_datasets.io.trees.find_plain`).
        validates: Its sites may have a split validation, for which ``find`` and ``find_own`` are called.
        masked: The values of ``Source.masks`` that it allows: one with masks has class 0 for the background.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    size: int
    find: Callable[[str, Split, Source], ImageFiles]
    counts: Mapping[str, int] = field(default_factory=dict)
    test_only: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own: Callable[[Source, tuple[str, ...]], Names] | None = None
    find_own: Callable[[str, Split, Source], ImageFiles | None] | None = None
    validates: bool = False
    masked: tuple[bool, ...] = (False,)

    def splits(self, domain: str) -> tuple[Split, ...]:
        """Return the splits that a domain has."""
        return ("test",) if domain in self.test_only else SPLITS


def checked(images: ImageSet, *, classes: int, size: int | None, where: str) -> ImageSet:
    """Return ``images`` unchanged if they fit the description of :class:`ImageSet`.

    Args:
        images: The result of a loader.
        classes: Number of classes.
        size: Height and width in pixels; None allows any.
        where: The file or folder they came from, for the message.

    Raises:
        DataError: If there are none, a shape or type is wrong, or a label, also of a mask, is outside the classes.
    """
    x, y, where = images.x, images.y, shown(where)
    if len(y) == 0:
        raise DataError(f"{where}: no images found")
    if y.dtype != np.int64 or y.ndim != 1:
        raise DataError(f"{where}: labels of shape {y.shape} and type {y.dtype}, expected ({len(y)},) and int64")
    if x.ndim != 4:  # (N, H, W, 3)
        raise DataError(f"{where}: images of shape {x.shape}, expected ({len(y)}, height, width, 3)")
    shape = (len(y), size or x.shape[1], size or x.shape[2], 3)
    if x.dtype != np.uint8 or x.shape != shape:
        raise DataError(f"{where}: images of shape {x.shape} and type {x.dtype}, expected {shape} and uint8")
    check_range(y, classes, where)
    if images.masks is not None:
        _check_masks(images.masks, shape[:3], classes, where)
    return images


def _check_masks(masks: Pixels, shape: tuple[int, ...], classes: int, where: str) -> None:
    if masks.dtype != np.uint8 or masks.shape != shape:
        raise DataError(f"{where}: masks of shape {masks.shape} and type {masks.dtype}, expected {shape} and uint8")
    unknown = {int(value) for mask in masks for value in mask[(mask >= classes) & (mask != IGNORED)][:1]}
    if unknown:
        raise DataError(
            f"{where}: masks with the values {shown(sorted(unknown))}; allowed are 0 to {classes - 1}, and {IGNORED} "
            "for pixels that count nowhere"
        )


def check_range(y: Indices, classes: int, where: str) -> None:
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
