"""All images of one domain, as :mod:`fedshift_datasets.io.sites` finds them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedshift_datasets.arrays import Indices, Pixels
from fedshift_datasets.base import OWN_SPLITS, Split
from fedshift_datasets.listing import SLICE, Files, Item, Listing, file_of


@dataclass(frozen=True, eq=False)
class Pictures(Listing):
    """The image files of a site.

    Attributes:
        splits: Their splits, stated or drawn: indices into ``OWN_SPLITS``, (N,), uint8.
    """

    items: Sequence[Item] = field(default_factory=lambda: Files(()))
    labels: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    splits: Pixels = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same pictures in the same order."""
        names = ("names", "masks", "labels", "splits", "groups")
        return isinstance(other, Pictures) and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def number(self, split: Split) -> int:
        """Return how many are of a split."""
        return int(np.count_nonzero(self.splits == OWN_SPLITS.index(split)))

    def listing(self, split: Split) -> Listing:
        """Return the images of a split."""
        part = self.select(np.flatnonzero(self.splits == OWN_SPLITS.index(split)))
        return part if part.groups is not None and any(part.groups) else replace(part, groups=None)


@dataclass(frozen=True)
class Site:
    """All images of one domain.

    Attributes:
        domain: Its name.
        layout: ``classes``, ``masks``, ``splits``, ``table`` or ``npz``.
        pictures: Its images, by class, then by name.
        archives: For the layout npz the file of each split; its images are not read.
        not_taken: Files of other suffixes in its class folders.
        notes: Lines on irregularities.
        drawn: Its split is drawn, as it is not stated.
        folders: The folders that decide all this; empty where the content of files does, or nobody looked.
        tables: Tables next to the images that were asked for patients.
        headers: Whether DICOM files were asked for patients.
        state: The state of both kinds of files then.
        patients_by: What tells the patients, as :class:`fedshift_datasets.io.patients.Patients` has it.
        patient_notes: Lines on what does not tell them.
    """

    domain: str
    layout: str
    pictures: Pictures = field(default_factory=Pictures)
    archives: tuple[tuple[Split, Path], ...] = ()
    not_taken: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    drawn: bool = False
    folders: tuple[Path, ...] = field(default=(), compare=False)
    tables: tuple[str, ...] = ()
    headers: bool = False
    state: str = ""
    patients_by: tuple[str, ...] = ()
    patient_notes: tuple[str, ...] = ()

    @property
    def patient_files(self) -> tuple[str, ...]:
        """The files whose content decides the patients, and so a drawn split, or how many slices there are."""
        dicom = [file for file in self.pictures.names if file.lower().endswith(".dcm")] if self.headers else ()
        cut = dict.fromkeys(file_of(name) for name in self.pictures.names if SLICE in name)
        return (*self.tables, *dicom, *cut)

    @property
    def unread(self) -> bool:
        """Whether labels are not read when it is found: of npz files, and of images with masks."""
        return bool(self.archives or self.pictures.masks)

    @functools.cached_property
    def splits(self) -> tuple[Split, ...]:
        """The splits that it has."""
        archives = {split for split, _ in self.archives}
        return tuple(split for split in OWN_SPLITS if split in archives or self.pictures.number(split))

    @functools.cached_property
    def listings(self) -> dict[Split, Listing]:
        """Its images of each split."""
        return {split: self.pictures.listing(split) for split in self.splits}
