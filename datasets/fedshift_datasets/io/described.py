"""Data sets that a few words describe: where their domains lie below data-dir, and how each is listed and split."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.base import Source, Split
from fedshift_datasets.io import table, trees
from fedshift_datasets.listing import Files, Listing


@dataclass(frozen=True, kw_only=True)
class _Description(ABC):
    """What every description has.

    Attributes:
        name: The data set's name, for messages.
        domains: Its domains.
        classes: Its class names; a label is an index into them.
        layouts: What is looked for, for messages; ``<domain>`` stands for the domain.
        levels: Lower-case names of the folders between data-dir and what is looked for; each level may be left out.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    layouts: str
    levels: tuple[tuple[str, ...], ...] = ()

    def find(self, domain: str, split: Split, source: Source) -> Listing:
        """List one domain and split.

        Raises:
            DataError: If the domain is unknown, absent or incomplete, or not as published.
        """
        place = trees.locate(self.name, domain, source, domains=self.domains, finder=self._place, layouts=self.layouts)
        return self._listing(place, domain, split)

    @abstractmethod
    def _place(self, root: Path, domain: str) -> Path | None: ...

    @abstractmethod
    def _listing(self, place: Path, domain: str, split: Split) -> Listing: ...


@dataclass(frozen=True, kw_only=True)
class FolderTree(_Description):
    """A data set of the form ``<domain>/<class>/*``, in folders or uncompressed tars; letter case does not matter.

    Attributes:
        divide: Returns one split of a domain that comes undivided.
        folders: Lower-case names of the folder of a domain, where it has others than its own.
        archives: Suffixes of tars that stand for the folder of a domain.
        inner: Lower-case names of a folder between domain and classes, which may be left out.
        aliases: Class name by a further, lower-case name of its folder.
        others: Lower-case names of class folders to pass over.
        splits: The folders between domain and classes that hold each split; the first is called like the split and
            has every class. Empty where all domains come undivided.
        whole: The folder next to them that holds the images of a domain that comes undivided.
    """

    divide: Callable[[Listing, Split], Listing]
    folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    archives: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    others: Collection[str] = ()
    splits: Mapping[Split, tuple[str, ...]] = field(default_factory=dict)
    whole: str = ""

    def _place(self, root: Path, domain: str) -> Path | None:
        bases, names = trees.places(root, *self.levels), self.folders.get(domain, (domain,))
        folders = (path for base in bases for path in trees.children(base, names) if path.is_dir())
        if tars := [f"{domain}{suffix}" for suffix in self.archives]:
            files = (path for base in bases for path in trees.children(base, tars) if path.is_file())
            return next(iter([*folders, *files]), None)
        return next((trees.places(folder, self.inner)[-1] for folder in folders), None)

    def _listing(self, place: Path, domain: str, split: Split) -> Listing:
        if self.archives and not place.is_dir():
            return self.divide(trees.list_tar(place, (domain,), self.classes), split)
        names = [name for folders in self.splits.values() for name in folders]
        parts = {path.name.lower(): path for path in trees.children(place, [*names, self.whole])} if names else {}
        if not parts.keys() & self.splits.keys():
            return self.divide(self._list(parts.get(self.whole, place)), split)
        if split not in parts:
            both = " and ".join(self.splits)
            raise DataError(f"{shown(place)}: no folder {split}, only {', '.join(parts)}; expected both {both}")
        listings = [self._list(parts[name], complete=name == split) for name in self.splits[split] if name in parts]
        items = Files(name for listing in listings for name in listing.names)
        joined = Listing(items, np.concatenate([listing.labels for listing in listings]))
        return joined.select(np.argsort(joined.labels, kind="stable"))  # by class

    def _list(self, folder: Path, *, complete: bool = True) -> Listing:
        return trees.list_folders(folder, self.classes, aliases=self.aliases, others=self.others, complete=complete)


@dataclass(frozen=True, kw_only=True)
class TableTree(_Description):
    """A data set whose images, domains and splits a CSV file names.

    Attributes:
        tables: Names of the file; the first that is there counts.
        columns: Lower-case names of the columns that it must have.
        row: Makes a row, with its split, of a line and its cells.
        images: Folders next to the table for the images; the first that is there, else the table's own folder.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    row: table.Make
    images: tuple[str, ...] = ()

    def _place(self, root: Path, _: str) -> Path | None:
        return trees.first_file(root, self.levels, self.tables)

    def _listing(self, place: Path, domain: str, split: Split) -> Listing:
        folder = next((path for name in self.images if (path := place.parent / name).is_dir()), place.parent)
        return table.listing(place, table.read(place, self.columns, self.row), domain, split, folder, self.classes)
