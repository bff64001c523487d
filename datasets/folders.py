"""Data set `folders`: a user's own images, in folders by site and class or named by a table.

| layout | below data-dir |
|---|---|
| classes | `<site>/<class>/*`; the split follows from the names (:mod:`datasets.stratified`) |
| splits | `<site>/{train,validation,test}/<class>/*`, in their usual spellings; validation may be missing |
| table | `labels.csv`, or `dataset.labels`: columns file, label, domain; split, patient or group where there are any |
| npz | `<site>_{train,validation,test}.npz`, as `fedshift export` writes them; the classes must be stated |

A table, where there is one, is all that counts. Else each site may have another layout. In a real node's data-dir the
level `<site>/` may be left out, and so may the table's column domain.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from datasets import files, layout, pictures, sites
from datasets.base import SPLITS, Names, Source, Split
from datasets.listing import Arrays, Found, Item, Listing
from datasets.sites import LAYOUTS, Site
from fedshift_wire.bounds import MOST_NAME, as_found, shown
from fedshift_wire.errors import DataError

NAME = "folders"
TITLE = "Your own images: class folders by site, or labels.csv"
SIZE = 64  # pixels, where dataset.size says nothing
MOST_CLASSES, MOST_DOMAINS = 2000, 1000  # they stand in config.yaml and in each message to a node
_MARKS = frozenset(" ._-+()&")

log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Survey:
    """Everything that was found in a data-dir.

    Attributes:
        classes: The classes, in the order of labels.
        sites: The sites, in the order of domains.
        beside: What else lies right in data-dir and is neither hidden nor a by-product: no site.
    """

    classes: tuple[str, ...]
    sites: tuple[Site, ...]
    beside: tuple[Path, ...]

    def files(self, domain: str, split: Split, kind: str) -> tuple[Path, ...]:
        """Return the image files of one class in one domain and split."""
        wanted = self.classes.index(kind), split
        site = next(site for site in self.sites if site.domain == domain)
        return tuple(picture.path for picture in site.pictures if (picture.label, picture.split) == wanted)


def check_domain(name: str) -> None:
    """Refuse a site's name that could not stand in a file's name, on a command line, or in the name of a number.

    Raises:
        ValueError: With what is allowed.
    """
    fits = name and all(letter.isalnum() or letter in _MARKS for letter in name) and name == name.strip(" ")
    if not fits or name[0] in ".-" or len(name.encode()) > MOST_NAME:
        raise ValueError(
            f"{as_found(name)}; allowed are letters, digits, inner spaces and ._-+()& in a name of at most {MOST_NAME} "
            "bytes that begins with neither . nor -"
        )


def check_class(name: str) -> None:
    """Refuse a class's name that could not be shown.

    Raises:
        ValueError: With what is allowed.
    """
    if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
        raise ValueError(f"{as_found(name)}; allowed are names that print, of at most {MOST_NAME} characters")


def names(source: Source, domains: tuple[str, ...] = ()) -> Names:
    """Return the domains and classes that a data-dir holds, by name.

    Args:
        source: Where the images are; ``classes`` are returned as they are, if there are any.
        domains: Those of the run, if they are stated; then the classes are theirs alone.

    Raises:
        DataError: If there are none, or a name cannot be one.
    """
    root = sites.data_dir(source)
    with files.reading(root):
        rows = sites.table_rows(source)
        if rows is not None:
            there = sorted({row.domain for row in rows})
            known = domains or tuple(there)
            if missing := [name for name in known if name not in there]:
                raise sites.absent(missing[0], source, own=False)
            wanted = set(known)
            kinds = [row.label for row in rows if row.domain in wanted]
        else:
            known = domains or sites.names_in(root)
            for name in known if domains else ():
                if not sites.check_site(root / name) and not sites.npz_files(root, name):
                    raise sites.absent(name, source, own=False)
            kinds = [kind for domain in known for kind in sites.class_names(root, domain)]
    classes = source.classes or _ordered(kinds)
    _check_names(root, known, classes)
    return Names(known, classes)


def survey(
    source: Source, domains: tuple[str, ...] = (), reads: Callable[[str], Sequence[Split]] = lambda _: SPLITS
) -> Survey:
    """Return everything that a data-dir holds.

    Args:
        source: Where the images are; without ``classes`` they are those that are found.
        domains: Those of the run; empty for all.
        reads: Returns the splits of a domain that a run needs.

    Raises:
        DataError: As :func:`names` and :func:`find`, for a split of ``reads`` too.
    """
    found = names(source, domains)
    whole = Source(source.data_dir, False, source.seed, found.classes, source.labels, source.test_share)
    there = [_there(domain, whole, own=False) for domain in found.domains]
    for site in there:
        sites.check_splits(site, reads(site.domain), source)
    root = sites.data_dir(source)
    used = {root / domain for domain in found.domains} | {path for site in there for _, path in site.archives}
    beside = [path for path in layout.visible(root) if path not in used and path != sites.table_path(source)]
    taken = [path for path in beside if path.is_dir() or pictures.not_taken([path.name]) or sites.is_image(path)]
    return Survey(found.classes, tuple(there), tuple(taken))


def find(domain: str, split: Split, source: Source) -> Found:
    """Find one domain and split below data-dir.

    Raises:
        DataError: If it is not there, a class folder or a row of the table is of no class of the run, or no image is
            taken.
    """
    found = _find(domain, split, source, own=False)
    assert found is not None  # else it is refused
    return found


def find_own(domain: str, split: Split, source: Source) -> Found | None:
    """Find one split in a real node's own folder; None if that has no such split.

    Raises:
        DataError: As :func:`find`.
    """
    return _find(domain, split, source, own=True)


def _there(domain: str, source: Source, *, own: bool) -> Site:
    site = sites.look(domain, source, own=own)
    if site is None:
        raise sites.absent(domain, source, own=own)
    return site


def _find(domain: str, split: Split, source: Source, *, own: bool) -> Found | None:
    site = _there(domain, source, own=own)
    if split not in site.splits:
        if not own:
            sites.check_splits(site, [split], source)
        return None
    for name, path in site.archives:
        if name == split:
            return Arrays((path,), partial(files.read_npz, path, classes=source.classes, size=None))
    for note in site.notes:
        _warn(note)
    taken = [picture for picture in site.pictures if picture.split == split]
    pictures.tell_not_taken(sites.data_dir(source) / domain, pictures.not_taken(path.name for path in site.not_taken))
    items = tuple(Item(picture.path, str(picture.path)) for picture in taken)
    return Listing(items, np.array([picture.label for picture in taken], np.int64))


@functools.cache
def _warn(text: str) -> None:
    """Say something once in a process."""
    log.warning("%s", text)


def _ordered(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return class names by alphabet; of names that differ in letter case alone the one that comes first."""
    first: dict[str, str] = {}
    for kind in kinds:
        first.setdefault(kind.casefold(), kind)
    return tuple(first[kind] for kind in sorted(first))


def _check_names(root: Path, domains: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse names that cannot be those of domains and classes, too many of them, and too few."""
    if len(domains) > MOST_DOMAINS or len(classes) > MOST_CLASSES:
        raise DataError(
            f"{shown(root)}: {len(domains)} sites with {len(classes)} classes; allowed are {MOST_DOMAINS} and "
            f"{MOST_CLASSES} at most"
        )
    if len(classes) < 2:
        found = ", ".join(map(as_found, classes)) or "none"
        raise DataError(
            f"{shown(root)}: expected at least two classes, found {found}; state dataset.classes, or {LAYOUTS}"
        )
    for kind, known, check in (("site", domains, check_domain), ("class", classes, check_class)):
        for name in known:
            try:
                check(name)
            except ValueError as problem:
                raise DataError(f"{shown(root)}: {kind} {problem}") from None
