"""Data set `folders`: a user's own images, in folders by site and class or named by a table.

| layout | below data-dir |
|---|---|
| classes | `<site>/<class>/*`; the split follows from the names (:mod:`fedshift_datasets.partition.stratified`) |
| splits | `<site>/{train,validation,test}/<class>/*`, in their usual spellings; validation may be missing |
| table | `labels.csv`, or `dataset.labels`: columns file, label, domain; split, patient or group where there are any |
| npz | `<site>_{train,validation,test}.npz`, as `fedshift export` writes them; labels need stated classes (`npz.py`) |
| masks | `images/*` and `masks/*` in place of `<class>/*`, or a column mask (:mod:`fedshift_datasets.io.masks`) |

A table, where there is one, is all that counts. Else each site may have another layout. In a real node's data-dir the
level `<site>/` may be left out, and so may the table's column domain.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedshift_core import said_once, same_names
from fedshift_core.accuracies import OVERALL
from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, as_found, shortened, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import SPLITS, Dataset, Names, Source, Split
from fedshift_datasets.io import layout, looks, masks, npz, pictures, pool, presence, sites, table, trees
from fedshift_datasets.io.layout import LAYOUTS
from fedshift_datasets.io.site import Site, answer
from fedshift_datasets.listing import IGNORED, ImageFiles, file_of

NAME = "folders"
TITLE = "Your own images: class folders by site, or labels.csv"
SIZE = 64  # pixels, where dataset.size says nothing
MOST_CLASSES, MOST_DOMAINS = 2000, 1000  # they stand in config.yaml and in each message to a node
_MARKS = frozenset(" ._-+()&")
_MISSING = "nan"  # how pandas writes a cell that is empty


@dataclass(frozen=True)
class Survey:
    """Everything that was found in a data-dir.

    Attributes:
        classes: The classes, in the order of labels.
        sites: The sites, in the order of domains.
        others: What else lies right in data-dir and is neither hidden nor a by-product: no site.
    """

    classes: tuple[str, ...]
    sites: tuple[Site, ...]
    others: tuple[Path, ...]


def check_domain(name: str) -> None:
    """Refuse a site's name that is none, see :func:`check_name`, or that of a number over all sites.

    Raises:
        ValueError: With what is allowed.
    """
    check_name(name)
    if same_names.place(name, OVERALL) is not None:
        raise ValueError(
            f"{as_found(name)} is a column of every table: {', '.join(OVERALL)} are the mean, the spread and the worst "
            "of all sites; allowed is any other name"
        )


def check_name(name: str) -> None:
    """Refuse a name of a site or data set that does not fit into file names, command lines and names of numbers.

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
    root, given = sites.data_dir(source), source.masks or source.classes
    with presence.reading(root):
        rows = sites.table_rows(source)
        if rows is not None:
            there = tuple(same_names.spellings(sorted({row.domain for row in rows})).values())
            known = domains or there
            if missing := [name for name in known if same_names.place(name, there) is None]:
                raise sites.absent(missing[0], source, own=False)
            kinds = [] if given else _labels(rows, known, sites.table_path(source))
        else:
            known = domains or sites.names_in(root)
            for name in known if domains else ():
                if not sites.check_site(layout.named(root, name)) and not layout.archives(root, name):
                    raise sites.absent(name, source, own=False)
            by_site = {} if given else {domain: _kinds(root, domain, known) for domain in known}
            _check_kinds(root, by_site)
            kinds = [kind for site in by_site.values() for kind in site]
    classes = source.classes or (_of_masks(source, known) if source.masks else _ordered(kinds))
    _check_names(root, known, classes, masked=source.masks)
    return Names(known, classes)


def _of_masks(source: Source, domains: tuple[str, ...]) -> tuple[str, ...]:
    """Return classes for the values of all masks that can be read.

    Raises:
        DataError: If values are no places in a list, or masks are in npz files.
    """
    there = [_there(domain, replace(source, classes=(masks.BACKGROUND,)), own=False) for domain in domains]
    if archives := [path for site in there for _, path in site.archives]:
        raise npz.nobody_stated(archives[0])
    paths = sorted({file_of(mask) for site in there for mask in site.pictures.masks or () if mask})
    found = pool.tried(masks.values_of, paths, os.cpu_count() or 1)
    values = set[float]().union(*(made for made in found if not isinstance(made, DataError)))
    return masks.classes_of(values, sites.data_dir(source))


def _labels(rows: Sequence[table.Row], domains: tuple[str, ...], path: Path) -> list[str]:
    """Return the labels of a table's rows of some domains.

    Raises:
        DataError: If one is a number: nobody said whether it names a class or is its place in a list.
    """
    wanted = {same_names.key(domain) for domain in domains}
    mine = [row for row in rows if same_names.key(row.domain) in wanted]
    lines = {row.label: f"line {row.line}" for row in reversed(mine)}
    _check_numbers(lines, "labels", path, lines)
    numbers = {written: label for label in lines if (written := same_names.number(label)) is not None}
    if numbers:
        label = next(row.label for row in mine if same_names.number(row.label) is not None)
        first = sorted(numbers, key=lambda written: float(written))
        named = ",".join([*(numbers[written] for written in first), *sorted(set(lines) - set(numbers.values()))])
        raise DataError(
            f"{shown(path)} {lines[label]}: label {as_found(label)} is a number, and nobody stated the classes",
            f"state dataset.classes=[{shortened(named, 1000)}], or write the names of the classes into the table",
        )
    if (missing := next((label for label in lines if same_names.same(label, _MISSING)), None)) is not None:
        raise DataError(
            f"{shown(path)} {lines[missing]}: label {as_found(missing)} stands for a missing one; leave the row out, "
            "or state dataset.classes=[...] if a class is called so"
        )
    return [row.label for row in mine]


def _kinds(root: Path, domain: str, domains: tuple[str, ...]) -> list[str]:
    """Return the names of a site's classes.

    Raises:
        DataError: If its labels are integers alone, whose order nobody stated.
    """
    archives = layout.archives(root, domain)
    kinds = [] if archives else sites.class_names(root, domain)
    for path in archives.values():
        own = npz.load(path, ("y",)).get(npz.KEY)
        if own is None:
            raise npz.nobody_stated(path, _folder_names(root, domains))
        kinds += npz.names(own, str(path))
    return kinds


def _check_kinds(root: Path, by_site: Mapping[str, Sequence[str]]) -> None:
    """Refuse class folders that are those of masks, or splits without class folders: of a site, or of all together.

    Raises:
        DataError: With their names.
    """
    together = [kind for kinds in by_site.values() for kind in kinds]
    if {same_names.key(kind) for kind in together} == {masks.IMAGES, masks.MASKS}:
        raise DataError(
            f"{shown(root)}: {masks.IMAGES} and {masks.MASKS} are no classes: these images have masks",
            "state task=segmentation, or dataset.classes=[...] if classes are called so",
        )
    for site, kinds in (*by_site.items(), ("", together)):
        splits = {layout.split_of(kind) for kind in kinds}
        if len(splits) > 1 and None not in splits:
            where = f"{shown(root)}: {shown(site)}" if site else shown(root)
            raise DataError(
                f"{where}: images right in {shown(' and '.join(dict.fromkeys(kinds)))}, which are names of splits, and "
                f"no class folders; expected {LAYOUTS}",
                "state dataset.classes=[...] if classes are called so",
            )


def _folder_names(root: Path, domains: tuple[str, ...]) -> str:
    """Return the names of the class folders of sites, for a message; numbers in their order."""
    kinds = _ordered(
        kind for domain in domains if not layout.archives(root, domain) for kind in sites.class_names(root, domain)
    )
    numbers = {kind: same_names.number(kind) for kind in kinds}
    if all(number is not None for number in numbers.values()):
        kinds = tuple(sorted(kinds, key=lambda kind: float(numbers[kind] or 0)))
    return f"; class folders here: {shortened(', '.join(kinds))}" if kinds else ""


def has_masks(source: Source) -> bool:
    """Return whether images lie below data-dir with masks: by a table's column, or by the folders of a site."""
    root = sites.data_dir(source)
    if sites.table_path(source).is_file():
        return "mask" in table.columns_of(sites.table_path(source))
    return any(map(masks.are_in, layout.below(root)))


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
    known = names(source, domains)
    stated = source.classes_stated and bool(source.classes)
    whole = replace(source, classes=known.classes, classes_stated=stated, download=False, skip_broken=False)
    there = [_there(domain, whole, own=False) for domain in known.domains]
    for site in there:
        sites.check_splits(site, reads(site.domain), source)
    root = sites.data_dir(source)
    archives = [path for site in there for _, path in site.archives]
    looks.refuse([*(site.pictures.names for site in there), tuple(map(str, archives))], f"{shown(root)}: ")
    for path in archives:
        trees.npz_arrays(path, whole.classes, stated=stated, masks=source.masks)
    used = {
        sites.table_path(source),
        *archives,
        *(layout.named(root, domain) for domain in known.domains),
        *(root / name for site in there for name in site.patients_by),
    }
    others = tuple(
        path
        for path in layout.visible(root)
        if path not in used and (path.is_dir() or pictures.is_image_name(path.name) or pictures.not_taken([path.name]))
    )
    return Survey(known.classes, tuple(there), others)


def find(domain: str, split: Split, source: Source) -> ImageFiles:
    """Find one domain and split below data-dir.

    Raises:
        DataError: If it is not there, a class folder or a row of the table is of no class of the run, or no image is
            taken.
    """
    part = _find(domain, split, source, own=False)
    assert part is not None  # else it is refused
    return part


def find_own(domain: str, split: Split, source: Source) -> ImageFiles | None:
    """Find one split in a real node's own folder; None if that has no such split.

    Raises:
        DataError: As :func:`find`.
    """
    return _find(domain, split, source, own=True)


def _there(domain: str, source: Source, *, own: bool) -> Site:
    root = sites.data_dir(source)
    # With a folder of its name, a site is the same for its own node, which else may have its images in data-dir itself.
    apart = own and not layout.named(root, domain).is_dir()
    same = replace(source, skip_broken=False, classes_stated=True)  # neither changes what there is
    look = partial(sites.look, domain, source, own=own)
    decided = sites.table_path(source).exists()  # by the table, not by the folders
    found = look() if decided else answer((domain, str(root), repr(same), apart), source.classes, look)
    if found is None:
        raise sites.absent(domain, source, own=own)
    return found


def _find(domain: str, split: Split, source: Source, *, own: bool) -> ImageFiles | None:
    site = _there(domain, source, own=own)
    if split not in site.splits:
        if not own:
            sites.check_splits(site, [split], source)
        return None
    for name, path in site.archives:
        if name == split:
            return trees.npz_arrays(path, source.classes, stated=source.classes_stated, masks=source.masks)
    for note in (*site.patient_notes, *site.notes):
        said_once.warn(note)
    pictures.warn_of_ignored(sites.data_dir(source) / domain, (path.name for path in site.not_taken))
    return site.listings[split]


def _ordered(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return class names by alphabet, of the spellings of one name the first."""
    first = same_names.spellings(kinds)
    return tuple(first[kind] for kind in sorted(first))


def _check_numbers(names: Iterable[str], what: str, place: Path, lines: Mapping[str, str] | None = None) -> None:
    try:
        same_names.check_numbers(names, what, lines)
    except ValueError as problem:
        raise DataError(f"{shown(place)}: {problem}") from None


def _check_names(root: Path, domains: Sequence[str], classes: Sequence[str], *, masked: bool) -> None:
    """Refuse names that cannot be those of domains and classes, too many of them, and too few."""
    most = IGNORED if masked else MOST_CLASSES
    if len(domains) > MOST_DOMAINS or len(classes) > most:
        raise DataError(
            f"{shown(root)}: {plural(len(domains), 'site')} with {plural(len(classes), 'class', 'classes')}; "
            f"allowed are {MOST_DOMAINS} and {most} at most"
        )
    if len(classes) < 2:
        given = ", ".join(map(as_found, classes)) or "none"
        raise DataError(
            f"{shown(root)}: expected at least two classes, found {given}; state dataset.classes, or {LAYOUTS}"
        )
    for kind, known, check in (("site", domains, check_domain), ("class", classes, check_class)):
        _check_numbers(known, "sites" if kind == "site" else "classes", root)
        for name in known:
            try:
                check(name)
            except ValueError as problem:
                raise DataError(f"{shown(root)}: {kind} {problem}") from None


DATASET = Dataset(NAME, TITLE, (), (), SIZE, find, own=names, find_own=find_own, validates=True, masked=(False, True))
