"""All images of one domain, as :mod:`datasets.io.sites` finds them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets.base import OWN_SPLITS, Split
from datasets.listing import Item, Listing


@dataclass(frozen=True, slots=True)
class Picture:
    """One image file of a site.

    Attributes:
        path: Its absolute path.
        name: Its path below the site's folder, with the run's spelling of the class; it decides the drawn split.
        label: Index of its class.
        split: Its split, stated or drawn.
        group: The group of images that stay together; empty for none.
    """

    path: Path
    name: str
    label: int
    split: Split
    group: str = ""


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
    """

    domain: str
    layout: str
    pictures: tuple[Picture, ...] = ()
    archives: tuple[tuple[Split, Path], ...] = ()
    not_taken: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    drawn: bool = False

    @functools.cached_property
    def splits(self) -> tuple[Split, ...]:
        """The splits that it has."""
        splits = {picture.split for picture in self.pictures} | {split for split, _ in self.archives}
        return tuple(split for split in OWN_SPLITS if split in splits)

    @functools.cached_property
    def listings(self) -> dict[Split, Listing]:
        """Its images of each split."""
        return {
            split: _listing([picture for picture in self.pictures if picture.split == split]) for split in self.splits
        }


def _listing(taken: Sequence[Picture]) -> Listing:
    items = tuple(Item(picture.path, str(picture.path)) for picture in taken)
    labels = np.array([picture.label for picture in taken], np.int64)
    groups = [picture.group for picture in taken]
    return Listing(items, labels, np.array(groups) if any(groups) else None)
