"""All images of one domain, as :mod:`fedshift_datasets.io.sites` finds them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fedshift_datasets.base import OWN_SPLITS, Split
from fedshift_datasets.listing import Files, Listing


@dataclass(frozen=True, slots=True)
class Picture:
    """One image file of a site.

    Attributes:
        path: Its absolute path.
        label: Index of its class.
        split: Its split, stated or drawn.
        group: The group of images that stay together; empty for none.
    """

    path: Path
    label: int
    split: Split
    group: str = ""


@dataclass(frozen=True, eq=False)
class Pictures(Sequence[Picture]):
    """The image files of a site, by column: a picture is made when it is asked for, as there may be very many.

    Attributes:
        files: Their absolute paths.
        labels: Indices of their classes, (N,), int64.
        splits: Their splits, stated or drawn: indices into ``OWN_SPLITS``, (N,), uint8.
        groups: The group of each; empty where there are none.
    """

    files: tuple[str, ...] = ()
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    splits: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    groups: tuple[str, ...] = ()

    @overload
    def __getitem__(self, place: int) -> Picture: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Picture]: ...
    def __getitem__(self, place: int | slice) -> Picture | Sequence[Picture]:
        """Return the picture at a place, or some of them."""
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        group = self.groups[place] if self.groups else ""
        return Picture(Path(self.files[place]), int(self.labels[place]), OWN_SPLITS[self.splits[place]], group)

    def __len__(self) -> int:
        return len(self.files)

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same pictures in the same order."""
        if not isinstance(other, Pictures) or (self.files, self.groups) != (other.files, other.groups):
            return False
        return np.array_equal(self.labels, other.labels) and np.array_equal(self.splits, other.splits)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def number(self, split: Split) -> int:
        """Return how many are of a split."""
        return int(np.count_nonzero(self.splits == OWN_SPLITS.index(split)))

    def listing(self, split: Split) -> Listing:
        """Return the images of a split."""
        index = np.flatnonzero(self.splits == OWN_SPLITS.index(split))
        places = index.tolist()
        groups = [self.groups[place] for place in places] if self.groups else []
        files = Files([self.files[place] for place in places])
        return Listing(files, self.labels[index], np.array(groups) if any(groups) else None)


@dataclass(frozen=True)
class Site:
    """All images of one domain.

    Attributes:
        domain: Its name.
        layout: ``classes``, ``splits``, ``table`` or ``npz``.
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
        """The files whose content decides the patients, and so a drawn split."""
        dicom = [file for file in self.pictures.files if file.lower().endswith(".dcm")] if self.headers else ()
        return (*self.tables, *dicom)

    @functools.cached_property
    def splits(self) -> tuple[Split, ...]:
        """The splits that it has."""
        archives = {split for split, _ in self.archives}
        return tuple(split for split in OWN_SPLITS if split in archives or self.pictures.number(split))

    @functools.cached_property
    def listings(self) -> dict[Split, Listing]:
        """Its images of each split."""
        return {split: self.pictures.listing(split) for split in self.splits}

    def within(self, folders: Sequence[Path]) -> "Site":
        """Return the same site with the folders that decide what it has."""
        return replace(self, folders=tuple(folders))
