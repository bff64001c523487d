"""Reads tables of images: each row of a CSV file names an image file, its class and its site."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TextIO

import numpy as np

from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import as_found, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import Split
from fedshift_datasets.io import layout, looks, presence
from fedshift_datasets.listing import Files, Listing

MOST_BYTES = 1 << 29  # of a table; Camelyon17's, with 455,954 rows, has 40 MB
_DELIMITERS = ",;\t"
#: Columns of labels.csv, of one with masks, and those of which at most one names the group of an image.
COLUMNS, OUTLINED, GROUPS = ("file", "label"), ("file", "mask"), ("patient", "group")


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a table.

    Attributes:
        line: Its line in the file, from 1.
        file: Path below data-dir, with ``/``.
        label: Name of its class.
        domain: Its site; empty if the table has no such column.
        split: Its split, or None.
        group: The group of images that stay together, such as a patient; empty for none.
        mask: Path of its mask, likewise; empty for none.
    """

    line: int
    file: str
    label: str
    domain: str
    split: Split | None = None
    group: str = ""
    mask: str = ""


class _Cells(csv.excel):
    """How a line is divided: quotes around a cell may follow a space."""

    skipinitialspace = True


#: Makes a row from its line and its cells by column; a ``ValueError`` describes a mistake in a few words.
Make = Callable[[int, Mapping[str, str]], Row]


@looks.remembered(4)  # each domain and split of a run reads it again
def read(path: Path, columns: tuple[str, ...], make: Make, *, resolved: bool | None = False) -> tuple[Row, ...]:
    """Return the rows of a table; commas, semicolons or tabs separate cells, and columns have any order.

    Args:
        path: The file.
        columns: Lower-case names of columns that it must have.
        make: Makes a row.
        resolved: Compare files below the table's folder, so that a link or another spelling of a path is the same file.
            Otherwise compare paths; with None not at all, so that a file may have several rows.

    Raises:
        DataError: With the line, if something is missing, empty or not allowed, or a file comes twice.
    """
    with presence.reading(path):
        size = path.stat().st_size
    if size > MOST_BYTES:
        raise DataError(f"{shown(path)}: {plural(size, 'byte')}; a table has at most {MOST_BYTES}")
    rows: list[Row] = []
    seen: dict[object, Row] = {}
    with presence.reading(path), _as_text(path) as file:
        first = file.readline()
        names = _header(path, first, columns)
        reader = csv.reader(file, _Cells, delimiter=_delimiter(first))
        for cells in reader:
            if not any(cells):
                continue
            line = reader.line_num + 1
            row = _row(path, line, names, cells, make)
            about = looks.entry(path.parent / row.file) if resolved else looks.ABSENT
            marks = (str(PurePosixPath(row.file)), about)[: 1 + (about != looks.ABSENT)]  # the path without // and ./
            for mark in () if resolved is None else marks:
                if (other := seen.setdefault(mark, row)) is not row:
                    same = f"the same file as {as_found(other.file)} in line {other.line}; keep one of them"
                    same = f"in line {other.line} too" if row.file == other.file else same
                    raise DataError(f"{shown(path)} line {line}: {as_found(row.file)} is {same}")
            rows.append(row)
    if not rows:
        raise DataError(f"{shown(path)}: no row below the names of its columns")
    return tuple(rows)


@contextmanager
def _as_text(path: Path) -> Iterator[TextIO]:
    """Open a table.

    Raises:
        DataError: With the first line that is not UTF-8, such as one of Windows' own encoding.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        with path.open("rb") as content:
            line = next(at for at, text in enumerate(content, 1) if text.decode(errors="ignore").encode() != text)
        raise DataError(f"{shown(path)} line {line}: it is not UTF-8; save the table as UTF-8") from None


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _names(line: str) -> list[str]:
    return [same_names.key(name) for name in next(csv.reader([line], _Cells, delimiter=_delimiter(line)), [])]


def columns_of(path: Path) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        DataError: If it cannot be read.
    """
    with presence.reading(path), _as_text(path) as file:
        return _names(file.readline(MOST_BYTES))


def _header(path: Path, line: str, columns: tuple[str, ...]) -> list[str]:
    names = _names(line)
    for column in columns:
        if names.count(column) != 1:
            number, found = "two columns" if column in names else "no column", presence.listed(names)
            raise DataError(f"{shown(path)} line 1: {number} {column}; it needs {', '.join(columns)}, found {found}")
    return names


def _row(path: Path, line: int, names: list[str], cells: list[str], make: Make) -> Row:
    if len(cells) != len(names):
        raise DataError(
            f"{shown(path)} line {line}: {plural(len(cells), 'cell')}, the table has {plural(len(names), 'column')}"
        )
    try:
        row = make(line, {name: cell.strip() for name, cell in zip(names, cells, strict=True)})
        for file in (row.file, *filter(None, [row.mask])):  # it may not leave data-dir
            parts = PurePosixPath(file).parts
            if not parts or parts[0] == "/" or ".." in parts or "\0" in file:
                raise ValueError(f"file {as_found(file)}; allowed is a path below data-dir")
    except ValueError as problem:
        raise DataError(f"{shown(path)} line {line}: {problem}") from None
    return row


def labelled(line: int, cells: Mapping[str, str]) -> Row:
    """Return a row of ``labels.csv``: columns file, label, domain, optionally split, and patient or group."""
    if all(column in cells for column in GROUPS):
        raise ValueError(f"columns {' and '.join(GROUPS)}; allowed is one of them")
    if not cells["file"]:
        raise ValueError("file is empty")
    names = {column: same_names.cleaned(cell) for column, cell in cells.items() if column != "file"}
    for column in ("label", "domain"):
        if column in names and not names[column]:
            raise ValueError(f"{column} is empty")
    group = next((names[column] for column in GROUPS if column in names), "")
    text = names.get("split", "")
    split = layout.split_of(text)
    if text and split is None:
        raise ValueError(f"split {as_found(text)}; allowed are {layout.USUAL}, or nothing in all rows of a domain")
    return Row(line, cells["file"], names["label"], names.get("domain", ""), split, group)


def outlined(line: int, cells: Mapping[str, str]) -> Row:
    """Return a row of ``labels.csv`` with masks: as :func:`labelled`, with the column mask in place of label."""
    if not cells["mask"]:
        raise ValueError("mask is empty")
    return replace(labelled(line, {**cells, "label": "mask"}), label="", mask=cells["mask"])


def listing(
    path: Path, rows: Sequence[Row], domain: str, split: Split, folder: Path, classes: tuple[str, ...]
) -> Listing:
    """Return the images of one domain and split, in the order of the table.

    Args:
        path: The table, for messages.
        rows: Its rows, each with a split.
        domain: Name of the domain.
        split: Which split.
        folder: The folder of the files.
        classes: Class names; a label is an index into them.

    Raises:
        DataError: If there is no row, or a file is missing.
    """
    rows_of_split = [row for row in rows if (row.domain, row.split) == (domain, split)]
    if not rows_of_split:
        raise DataError(f"{shown(path)}: no {split} images of {domain}")
    for row in rows_of_split:
        place = folder / row.file
        if not place.is_file() and not place.is_symlink():  # a broken link fails later, with a reason
            presence.check(place)
            raise DataError(f"{shown(path)} line {row.line}: no file {shown(place)}")
    items = Files(str(folder / row.file) for row in rows_of_split)
    groups = [row.group for row in rows_of_split]
    labels = np.array([classes.index(row.label) for row in rows_of_split], np.int64)
    return Listing(items, labels, np.array(groups) if any(groups) else None)
