"""A site: all images of one domain, as :mod:`fedshift_datasets.io.sites` finds them, and as they are kept.

A listing of class folders is kept, so that a start need not list, order and divide its images again.

A process asks a dozen times: it remembers a site for as long as no folder in it has another time of writing, which
tells of every entry that came, went or got another name. On disk a listing is taken again only if all its folders have
the same inodes, times of writing and times of change, which nobody can set back, and the names in them are the same, as
some network disks have no times of folders. Of both the files that tell patients must be as they were. What else is in
files is not kept here: :mod:`fedshift_datasets.io.cache` compares them one by one.

A file (:mod:`fedshift_datasets.io.kept`) says what there is one of, and has columns: the images' labels and splits, and
their names.
"""

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_core.errors import DataError
from fedshift_datasets.arrays import Indices, Pixels
from fedshift_datasets.base import OWN_SPLITS, Split
from fedshift_datasets.io import kept, looks, patients, pictures
from fedshift_datasets.listing import SLICE, Files, Item, Listing, file_of

FORMAT = 5  # another one if the same folders would be listed or kept in another way
_PLAIN = ("domain", "layout", "notes", "drawn", "tables", "headers", "state", "patients_by", "patient_notes")
MOST = 1024  # sites that a process remembers
#: Of a folder: inode, times of writing and of change, and a hash of the names in it.
State = list[Any]

#: What this process has found, with the times of its folders; the last one asked for comes last.
_known: dict[str, tuple["Site", list[int]]] = {}


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

    @functools.cached_property
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


def answer(key: object, classes: Sequence[str], look: Callable[[], Site | None]) -> Site | None:
    """Return what ``look`` returns, or returned before if nothing has changed in the site's folders since.

    Args:
        key: What decides the answer besides the folders; its ``repr`` is compared.
        classes: The run's classes.
        look: Finds the site; one without folders is not kept.

    Raises:
        DataError: As ``look``.
    """
    text = repr((FORMAT, key, tuple(classes), pictures.SUFFIXES))
    if (known := _known.pop(text, None)) is not None:
        before, times = known
        if _times(before) == times and patients.are_still(before.patient_files, before.state):
            _known[text] = known
            return before
    path = kept.cache_dir() / f"site-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:32]}.list"
    began = time.time_ns()
    site = _kept(path, text) or _looked(path, text, look, began - looks.SETTLED)
    now = None if site is None else _times(site)
    # A folder that has changed since shortly before the look may have changed during it.
    if site is not None and now and max(now) < began - looks.SETTLED:
        _known[text] = site, now
        if len(_known) > MOST:
            del _known[next(iter(_known))]
    return site


def _times(site: Site) -> list[int] | None:
    """Return the times of writing of a site's folders; None if one is not there."""
    try:
        return [folder.stat().st_mtime_ns for folder in site.folders]
    except OSError:
        return None


def _looked(path: Path, key: str, look: Callable[[], Site | None], settled: int) -> Site | None:
    """Return what ``look`` returns, and keep it if its folders have not changed since a time."""
    found = look()
    states = _states(found.folders) if found is not None and found.folders else None
    if found is not None and states is not None and max(max(state[1:3]) for _, state in states) < settled:
        with contextlib.suppress(DataError, UnicodeError):  # without room or rights the next run looks again
            _keep(path, key, found, states)
    return found


def _states(folders: Sequence[Path | str]) -> list[tuple[str, State]] | None:
    """Return the states of folders; None if one is not there."""
    try:
        return [(str(folder), _state(str(folder))) for folder in dict.fromkeys(folders)]
    except OSError:
        return None


def _state(folder: str) -> State:
    about = os.stat(folder)  # noqa: PTH116
    names = "/".join(sorted(os.listdir(folder)))  # noqa: PTH208 - names alone
    digest = hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()
    return [about.st_ino, about.st_mtime_ns, about.st_ctime_ns, digest]


def _kept(path: Path, key: str) -> Site | None:
    """Return a kept site whose folders are as they were; None if there is none, or it is damaged."""
    try:
        file = kept.read(path)
        about = file.about
        if about.get("key") != key:
            return None
        if _states([folder for folder, _ in about["states"]]) != [(folder, state) for folder, state in about["states"]]:
            return None
        site = _site(about, file.content(file.chunks[0]))
        return site if patients.are_still(site.patient_files, site.state) else None
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def _keep(path: Path, key: str, site: Site, states: Sequence[tuple[str, State]]) -> None:
    of = site.pictures
    about = {
        "key": key,
        "states": states,
        "groups": [] if of.groups is None else of.groups.tolist(),
        "not_taken": list(map(str, site.not_taken)),
        "masked": of.masks is not None,
        "mask_classes": of.classes,
        **{name: getattr(site, name) for name in _PLAIN},
    }
    names = "\0".join((*of.names, *(of.masks or ()))).encode(errors="surrogateescape")
    kept.keep(path, about, of.labels, of.splits, np.frombuffer(names, np.uint8))


def _site(about: dict[str, Any], columns: bytes) -> Site:
    number = about["shape"][0]
    labels, splits = np.frombuffer(columns, np.int64, number), np.frombuffer(columns, np.uint8, number, 8 * number)
    names = columns[9 * number :].decode(errors="surrogateescape").split("\0")
    files = Files(names[:number], names[number:] if about["masked"] else None, about["mask_classes"])
    groups = np.array(about["groups"]) if about["groups"] else None
    plain: dict[str, Any] = {n: tuple(value) if isinstance(value := about[n], list) else value for n in _PLAIN}
    return Site(
        pictures=Pictures(files, labels, groups, splits),
        not_taken=tuple(map(Path, about["not_taken"])),
        folders=tuple(Path(folder) for folder, _ in about["states"]),
        **plain,
    )
