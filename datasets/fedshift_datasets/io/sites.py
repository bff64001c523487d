"""Finds a site's images: in class folders, with or without split folders, in rows of a table, or in npz files."""

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import as_found, shown
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Flags
from fedshift_datasets.base import OWN_SPLITS, SPLITS, Source, Split
from fedshift_datasets.io import layout, looks, masks, patients, pictures, pool, presence, table, volumes
from fedshift_datasets.io.layout import DEEPER, LABELS, LAYOUTS
from fedshift_datasets.io.site import Pictures, Site
from fedshift_datasets.listing import Files
from fedshift_datasets.partition import stratified


class _Found(NamedTuple):
    """One image file.

    Attributes:
        label: Index of its class.
        name: Its path below the site's folder, with the run's spelling of the class; it decides the drawn split.
        file: Its absolute path.
        split: Its split, as far as it is stated.
        group: The group of images that stay together; empty for none.
        mask: As ``Item.mask``.
    """

    label: int
    name: str
    file: str
    split: Split
    group: str = ""
    mask: str | None = None


def check_splits(site: Site, wanted: Sequence[Split], source: Source) -> None:
    """Refuse a site that lacks images of a split, for `init`, `prepare`, a run and a node.

    Raises:
        DataError: With its splits and a remedy.
    """
    missing = next((split for split in wanted if split not in site.splits), None)
    if missing is None:
        return
    site_name, present = f"{shown(data_dir(source))}: {site.domain}", " and ".join(site.splits) or "no"
    if site.drawn:
        number = len(site.pictures)
        count = "its only image is" if number == 1 else f"all {number} images are"
        raise DataError(
            f"{site_name} has no {missing} images: {count} {present}, and no class has two images, or two "
            "patients, to divide; add images, or leave it out (dataset.domains)"
        )
    raise DataError(
        f"{site_name} has no {missing} images, only {present} ones; allowed are train and test, or no stated split, "
        "and only test for a site that no node holds (allocation.held_out)"
    )


def data_dir(source: Source) -> Path:
    """Return the absolute data-dir.

    Raises:
        DataError: If there is none.
    """
    if source.data_dir is None:
        raise DataError(f"folders needs the key data-dir: a folder with {masks.LAYOUTS if source.masks else LAYOUTS}")
    root = source.data_dir.absolute()
    layout.check_data_dir(root)
    return root


def look(domain: str, source: Source, *, own: bool) -> Site | None:
    """Return the site of a domain; None if there is none."""
    root = data_dir(source)
    with presence.reading(root):
        rows = table_rows(source, own=own)
        if rows is not None:
            return _from_table(domain, rows, source)
        if archives := tuple(layout.archives(root, domain).items()):
            looks.refuse([tuple(str(path) for _, path in archives)])
            return Site(domain, "npz", archives=archives)
        folder = _folder(root, domain, source, own=own)
        return None if folder is None else _from_folder(domain, folder, source)


def table_path(source: Source) -> Path:
    """Return the path of the table, whether it exists or not."""
    return data_dir(source) / (source.labels or LABELS)


def table_rows(source: Source, *, own: bool = False) -> tuple[table.Row, ...] | None:
    """Return the rows of the table; None if there is no table.

    Args:
        source: The place of the images.
        own: It is a real node's own, which may lack the column domain.

    Raises:
        DataError: If a named table is missing, or it cannot be read.
    """
    path = table_path(source)
    if not path.is_file():
        presence.check(path)
        if source.labels:
            raise DataError(f"dataset.labels: there is no file {shown(path)}")
        return None
    columns = table.OUTLINED if source.masks else table.COLUMNS
    make = table.outlined if source.masks else table.labelled
    return table.read(path, columns if own else (*columns, "domain"), make, resolved=True)


def _from_table(domain: str, rows: Sequence[table.Row], source: Source) -> Site | None:
    path = table_path(source)
    rows_of_domain = [row for row in rows if not row.domain or same_names.same(row.domain, domain)]
    if not rows_of_domain:
        return None
    has_split = {row.split is not None for row in rows_of_domain}
    if len(has_split) > 1:
        first = next(row for row in rows_of_domain if row.split is None)
        raise DataError(f"{shown(path)} line {first.line}: split is empty; other rows of {domain} have one")
    entries = functools.cache(layout.by_key)  # a folder is listed once, however many of its files are spelled otherwise
    images = [_picture(row, path, domain, source, entries) for row in rows_of_domain]
    return _split_up(domain, "table", images, source, drawn=has_split == {False})


def _picture(row: table.Row, path: Path, domain: str, source: Source, entries: layout.ByKey) -> _Found:
    label = 0 if source.masks else layout.label_of(row.label, source.classes)
    if label is None:
        raise DataError(
            f"{shown(path)} line {row.line}: label {as_found(row.label)}; the classes are {', '.join(source.classes)}"
        )
    file = _file_of(row.file, row, path, entries)
    mask = _file_of(row.mask, row, path, entries) if source.masks else None
    parts = PurePosixPath(row.file).parts
    parts_below = parts[1:] if len(parts) > 1 and same_names.same(parts[0], domain) else parts
    return _Found(label, "/".join(parts_below), file, row.split or "train", row.group, mask)


def _file_of(name: str, row: table.Row, path: Path, entries: layout.ByKey) -> str:
    """Return the file of an image, or of a mask, in a table's row; each part of its path may be in another spelling.

    Raises:
        DataError: If there is none.
    """
    file = path.parent / name
    if not _is_there(file):
        file = path.parent
        for part in PurePosixPath(name).parts:
            file = layout.named(file, part, entries)
    is_image = pictures.is_image_name(file.name)
    if _is_there(file) and (is_image or (row.mask and volumes.is_volume(file.name))):
        return str(file)
    if is_image:
        presence.check(file)  # a broken link on the way
    suffixes = "" if is_image else f"; taken are {', '.join(pictures.SUFFIXES)}"
    separator = "; folders in a path are divided by /" if "\\" in name else ""
    raise DataError(f"{shown(path)} line {row.line}: no image file {shown(file)}{suffixes}{separator}")


def _is_there(path: Path) -> bool:
    """Return whether there is a file, or a broken link, which then cannot be decoded."""
    return not path.is_dir() and (path.exists() or path.is_symlink())


def _folder(root: Path, domain: str, source: Source, *, own: bool) -> Path | None:
    """Return a domain's folder; for a real node it may be data-dir itself."""
    place = layout.named(root, domain)
    if place.is_dir():
        check_site(place)
        return place
    presence.check(place)
    inside = layout.folders_in(root) if own else ()
    if any(_is_split(sub) or layout.label_of(sub.name, source.classes) is not None for sub in inside):
        return root
    return root if own and source.masks and masks.are_in(root) else None


def _from_folder(domain: str, folder: Path, source: Source) -> Site:
    splits = _split_folders(folder)
    found: list[_Found] = []
    ignored: list[Path] = []
    notes: list[str] = []
    folders = [data_dir(source), folder]
    for split, place in splits.items() or [(SPLITS[0], folder)]:
        folders.append(place)
        if loose := list(filter(pictures.is_image_name, layout.divided(place)[1])):
            number = plural(len(loose), "such image")
            notes.append(f"{shown(place / loose[0])}: lies next to class folders; ignored: {number}")
        if source.masks:
            pairs = masks.pairs(place)
            found += [_Found(0, "/".join(Path(file).parts[-2:]), file, split, mask=mask) for file, mask in pairs]
            folders += layout.below(place)
            continue
        for label, sub, images, others, empty in layout.class_folders(place, source.classes):
            kind = source.classes[label]
            found += [_Found(label, f"{kind}/{name}", f"{sub}/{name}", split) for name in images]
            ignored += [sub / name for name in others]
            notes += [f"{shown(path)}: a folder in a class folder is ignored; it has no image" for path in empty]
            folders += [sub, *empty]
    if not found:
        where = masks.IMAGES if source.masks else "<class>"
        raise DataError(f"{shown(folder)}: no images found; expected {where}/*{{{','.join(pictures.SUFFIXES)}}}")
    form = "splits" if splits else "masks" if source.masks else "classes"
    site = _split_up(domain, form, found, source, drawn=not splits, ignored=ignored, notes=notes)
    return replace(site, folders=tuple(dict.fromkeys(folders)))


def _split_up(
    domain: str,
    kind: str,
    found: Sequence[_Found],
    source: Source,
    *,
    drawn: bool,
    ignored: Sequence[Path] = (),
    notes: Sequence[str] = (),
) -> Site:
    """Return a site with its images in order, and with a drawn split if none is stated."""
    ordered = sorted(found, key=itemgetter(0, 1))  # by label, then by name
    paths, stated = tuple(each.file for each in ordered), [each.group for each in ordered]
    where, all_notes = f"{shown(data_dir(source))}: {domain}", list(notes)
    looks.refuse([paths], f"{where}: ")
    known = patients.find(domain, paths, stated, source, data_dir(source), table_path(source))
    labels, names, paths, splits, groups_of, outlines = zip(*_cut(ordered, known.groups), strict=True)
    if drawn:
        # No name starts with a slash.
        units = [f"/{group}" if group else name for group, name in zip(groups_of, names, strict=True)]
        test = stratified.test_part(labels, units, source.test_share, source.seed)
        splits = tuple(SPLITS[int(is_test)] for is_test in test.tolist())
        all_notes += _uncovered(labels, test, source.classes, where)
    used = {data_dir(source) / name for name in known.by}
    groups = np.array(groups_of) if any(groups_of) else None
    places = np.array([OWN_SPLITS.index(split) for split in splits], np.uint8)
    pictured = Files(paths, outlines if source.masks else None, len(source.classes))
    site = Site(
        domain,
        kind,
        Pictures(pictured, np.array(labels, np.int64), groups, places),
        not_taken=tuple(path for path in ignored if path not in used),
        notes=tuple(all_notes),
        drawn=drawn,
        tables=known.tables,
        headers=known.headers,
        patients_by=known.by,
        patient_notes=known.notes,
    )
    return replace(site, state=patients.state(site.patient_files))


def _cut(found: Sequence[_Found], groups: Sequence[str]) -> Iterator[_Found]:
    """Yield images with their groups, and slices in place of volumes: all of one are of one patient."""
    pairs = [(each.file, each.mask) for each in found if each.mask and not masks.lacking(each.file, each.mask)]
    files = tuple({file for pair in pairs for file in pair if volumes.may_be(file)})
    slices = dict(zip(files, pool.mapped(volumes.slices, files, os.cpu_count() or 1), strict=True))
    for each, group in zip(found, groups, strict=True):
        cut = volumes.is_volume(each.mask or "") or len(slices.get(each.mask or "", ())) > 1
        for file in slices.get(each.file, [each.file]):
            number = file.removeprefix(each.file)
            mask = f"{each.mask}{number}" if cut else each.mask
            yield each._replace(name=each.name + number, file=file, group=group or each.name * bool(number), mask=mask)


def _uncovered(labels: Sequence[int], test: Flags, classes: tuple[str, ...], where: str) -> list[str]:
    """Return a note on each class that one side of a drawn split lacks."""
    notes = []
    for label, in_test in stratified.uncovered(labels, test):
        sides = ("train", "test") if in_test else ("test", "train")
        notes.append(
            f"{where}: all {plural(labels.count(label), 'image')} of class {classes[label]} are in {sides[0]}, none is "
            f"in {sides[1]}: they are one image, or their groups allow no other split"
        )
    return notes


def _is_split(folder: Path) -> bool:
    """Return whether a folder has the name of a split and has class folders; otherwise it is a class."""
    return layout.split_of(folder.name) is not None and bool(layout.folders_in(folder))


def _split_folders(folder: Path) -> dict[Split, Path]:
    """Return the split folders of a site; empty if it has class folders directly.

    Raises:
        DataError: If another folder is next to them, or two name one split.
    """
    inside = layout.folders_in(folder)
    if not any(map(_is_split, inside)):
        return {}
    other = next((path for path in inside if layout.split_of(path.name) is None), None)
    if other is not None:
        raise DataError(
            f"{shown(other)}: is next to split folders and is none; allowed are {layout.USUAL}, with class folders"
        )
    return layout.split_folders(folder)


def names_in(root: Path) -> tuple[str, ...]:
    """Return the names of the sites: of folders and of npz files.

    Raises:
        DataError: As :func:`check_site`, if there is no site, or if two are spellings of one name.
    """
    names = {name for name, _ in layout.all_archives(root).values()}
    if split_like := sorted(filter(layout.split_of, names)):
        raise _is_no_site(root, split_like[0])
    there = sorted(names | {folder.name for folder in layout.folders_in(root) if check_site(folder)})
    if not there:
        raise DataError(f"{shown(root)}: no site found; expected {LAYOUTS}")
    if both := same_names.twice(there):
        first, second = map(as_found, both)
        raise DataError(f"{shown(root)}: {first} and {second} are one site in two spellings; join them, or rename one")
    return tuple(map(same_names.cleaned, there))


def check_site(folder: Path) -> bool:
    """Return whether a folder is a site: it has images in class folders, with or without split folders.

    A missing folder, or one without images, is no site.

    Raises:
        DataError: If its images have no known layout, or it has the name of a split.
    """
    presence.check(folder)
    inside = layout.folders_in(folder)
    places = [sub for top in inside for sub in (layout.folders_in(top) if _is_split(top) else [top])]
    is_site = any(
        any(map(masks.is_taken if masks.are_in(place.parent) else pictures.is_image_name, layout.divided(place)[1]))
        for place in places
    )
    below = layout.files_below([folder] if folder.is_dir() and not is_site else [])
    first = next((path for path in below if pictures.is_image_name(path.name)), None)
    if (is_site or first) and layout.split_of(folder.name):
        raise _is_no_site(folder.parent, folder.name)
    if first and not inside:
        raise DataError(f"{shown(folder)}: it has images but no class folders; expected {LAYOUTS}")
    if first:
        raise DataError(
            f"{shown(folder)}: images in no known layout, such as {shown(first)}; expected {LAYOUTS}: {DEEPER}; "
            "dataset.domains leaves out a folder that is no site"
        )
    return is_site


def _is_no_site(root: Path, name: str) -> DataError:
    return DataError(f"{shown(root)}: {shown(name)} is no site, but the name of a split; expected {LAYOUTS}")


def class_names(root: Path, domain: str) -> list[str]:
    """Return the names of a site's class folders."""
    folder = layout.named(root, domain)
    places = list(_split_folders(folder).values()) or [folder]
    return [path.name for place in places for path in layout.folders_in(place)]


def absent(domain: str, source: Source, *, own: bool) -> DataError:
    """Return the error that names the expected and the existing places."""
    root, rows = data_dir(source), table_rows(source, own=own)
    if rows is not None:
        domains = presence.listed(sorted({row.domain for row in rows}))
        return DataError(f"{shown(table_path(source))}: no row of {domain}; its domains are {domains}")
    start, inside = f"[{domain}/]" if own else f"{domain}/", f"{masks.IMAGES}/*" if source.masks else "<class>/*"
    return DataError(
        f"{domain} not found in {shown(root)}; looked for {start}{inside}, "
        f"{start}{{train,validation,test}}/{inside}, {LABELS} and {domain}_train.npz\n"
        f"Folders there: {presence.listed(path.name for path in layout.folders_in(root)) or 'none'}"
    )
