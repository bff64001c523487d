"""Finds the patient of each image: in the table of the images, in a table next to them, or in a DICOM file's header.

| in this order | |
|---|---|
| `labels.csv` | its column `patient` or `group` |
| any other `*.csv` in a folder of the images or above them, up to data-dir | a column of patients and one of files |
| a DICOM file | PatientID |

Patients stay on the machine of the images. No message has their names: only numbers of them, and names of files.
"""

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedshift_core import same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import shown, some
from fedshift_core.plural import plural
from fedshift_datasets.base import Source
from fedshift_datasets.io import dicom, kept, layout, looks, pictures, pool, table
from fedshift_datasets.listing import ImageSet, Listing

REMEDY = "list them in patients.csv next to the images (columns file and patient)"
#: How a PatientID begins that is none.
_DUMMIES = ("anon", "deident", "de-ident", "removed", "patientid")
#: Names of columns, without what is neither a letter nor a digit.
_PATIENT = ("patient", "patientid", "subject", "subjectid")
_FILE = ("file", "filename", "filepath", "path", "image", "imagename", "imagefile", "imagepath", "imageid", "isicid")
_OTHER, _ELSEWHERE = "no column patient", "none of its"  # of a table of something else, or of other sites
_FORMAT = 1  # of the kept patients of DICOM files; another one if the same files would give others


@dataclass(frozen=True)
class Patients:
    """The patients of the images of a site.

    Attributes:
        groups: The patient of each image; empty for an unknown one.
        tables: Files whose content was asked for them.
        headers: The DICOM files were asked for them.
        by: What tells them: tables by their paths below data-dir, and PatientID.
        notes: Lines on what does not tell patients.
    """

    groups: tuple[str, ...]
    tables: tuple[str, ...] = ()
    headers: bool = False
    by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find(
    domain: str, files: Sequence[str], stated: Sequence[str], source: Source, root: Path, labels: Path
) -> Patients:
    """Return the patients of a site's images.

    Args:
        domain: The site.
        files: The absolute paths of its images.
        stated: Their patients as far as the table of the images states them, else empty.
        source: Says where patients are looked for.
        root: data-dir.
        labels: The table of the images, whether it exists or not.
    """
    if source.patients == "listed":
        return Patients(tuple(same_names.patients(stated, unknown=())))
    groups = same_names.patients(stated)
    by = [labels.name] if any(groups) else []
    if all(groups):
        return Patients(tuple(groups), by=tuple(by))
    tables = [
        path
        for folder in _folders(files, root)
        for name in layout.divided(folder)[1]
        if name.lower().endswith(".csv") and (path := folder / name) != labels and path.is_file()
    ]
    groups, used, misfits, notes = _with_tables(groups, tables, domain, files, root)
    by += used
    groups, asked, missing = _with_headers(groups, files)
    if asked > missing:
        by.append("PatientID")
    if missing and not any(groups):
        notes.append(
            f"{shown(root)}: {domain}: {plural(missing, 'DICOM file')} without a PatientID that tells patients apart "
            f"(none, or one for all), so images of one patient may be trained and tested on; {REMEDY}"
        )
    unknown = () if all(groups) else notes  # a table of other images or things matters to nobody where all are known
    return Patients(
        tuple(same_names.patients(groups)), tuple(map(str, tables)), asked > 0, tuple(by), (*misfits, *unknown)
    )


def _with_tables(
    groups: Sequence[str], tables: Sequence[Path], domain: str, files: Sequence[str], root: Path
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return patients with those of tables next to the images, and the tables that tell some.

    Then come lines on tables of patients that do not fit, and on others.
    """
    known, used, misfits, others = list(groups), list[str](), list[str](), list[str]()
    for path in tables:
        try:
            rows = _rows(path, domain, files)
        except (DataError, ValueError) as problem:
            reason = str(problem).removeprefix(f"{shown(path)} ")
            line = f"{shown(path)}: it does not tell the patients of {domain}: {reason}"
            elsewhere = path.parent == root and reason.startswith(_ELSEWHERE)
            (others if elsewhere or _OTHER in reason else misfits).append(line)
            continue
        if any(rows.get(place) and not group for place, group in enumerate(known)):
            used.append(str(path.relative_to(root)))
        known = [group or rows.get(place, "") for place, group in enumerate(known)]
    return known, used, misfits, others


def _folders(files: Sequence[str], root: Path) -> list[Path]:
    """Return the folders of files and those above them, up to data-dir; the deepest first."""
    folders = {Path(folder) for folder in dict.fromkeys(file.rpartition("/")[0] for file in files)}
    above = {parent for folder in folders for parent in folder.parents if parent.is_relative_to(root)}
    within = {folder for folder in folders if folder.is_relative_to(root)}
    return sorted(within | above | {root}, key=lambda folder: (-len(folder.parts), str(folder)))


def _rows(path: Path, domain: str, files: Sequence[str]) -> dict[int, str]:
    """Return the patient of each image that a table has a row of, by the image's place among ``files``.

    Raises:
        DataError: If it cannot be read, or has no columns of files and patients.
        ValueError: If it does not fit the images.
    """
    rows = [
        row
        for row in table.read(path, (), _row, resolved=None)
        if not row.domain or same_names.same(row.domain, domain)
    ]
    by_path = {same_names.key(file): place for place, file in enumerate(files)}
    by_name: dict[str, list[int]] = {}
    for place, file in enumerate(files):
        name = file.rpartition("/")[2]
        for written in dict.fromkeys((same_names.key(name), same_names.key(PurePosixPath(name).stem))):
            by_name.setdefault(written, []).append(place)
    names = same_names.patients([row.group for row in rows])
    patients: dict[int, str] = {}
    for row, patient in zip(rows, names, strict=True):
        exact = by_path.get(same_names.key(f"{path.parent}/{PurePosixPath(row.file)}"))
        places = [exact] if exact is not None else _ending(row.file, by_name, files)
        if len(places) > 1:
            raise ValueError(
                f"line {row.line}: the file may be any of {len(places)}; write its path below {path.parent.name}"
            )
        for place in places if patient else ():
            if patients.setdefault(place, patient) != patient:
                raise ValueError(f"line {row.line}: an image has two patients")
    if not patients:
        raise ValueError(f"{_ELSEWHERE} {plural(len(rows), 'row')} is of an image of {domain}")
    return patients


def _row(line: int, cells: Mapping[str, str]) -> table.Row:
    """Return a row of a table next to images.

    Raises:
        ValueError: If it lacks a column.
    """
    columns = {"".join(filter(str.isalnum, name)): name for name in reversed(list(cells))}
    patient, file = (next((columns[n] for n in names if n in columns), None) for names in (_PATIENT, _FILE))
    if patient is None or file is None:
        raise ValueError(_OTHER if patient is None else "a column of patients, but no column file")
    return table.Row(line, cells[file].replace("\\", "/"), "", cells.get("domain", ""), None, cells[patient])


def _ending(row: str, by_name: Mapping[str, Sequence[int]], files: Sequence[str]) -> list[int]:
    """Return the images whose paths end as a row's, whatever its suffix if no image has that."""
    *above, name = [same_names.key(part) for part in PurePosixPath(row).parts]
    places = by_name.get(name, ())
    if not places and pictures.is_image_name(name):  # the images may have been written in another format
        places = by_name.get(PurePosixPath(name).stem, ())
    if not above:
        return list(places)
    folders = {place: [same_names.key(part) for part in Path(files[place]).parts[:-1]] for place in places}
    return [place for place, parts in folders.items() if parts[-len(above) :] == above]


def _with_headers(groups: Sequence[str], files: Sequence[str]) -> tuple[list[str], int, int]:
    """Return patients with those of DICOM headers, the number of DICOM files asked, and of those that do not tell."""
    asked = [place for place, group in enumerate(groups) if not group and files[place].lower().endswith(".dcm")]
    names = [_told(name) for name in _headers(tuple(files[place] for place in asked))] if asked else []
    alone = len(asked) > 1 and len(set(same_names.patients(names)) - {""}) == 1 and not any(groups)
    merged = list(groups)
    for place, name in zip(asked, names, strict=True):
        merged[place] = "" if alone else name
    return merged, len(asked), len(asked) if alone else names.count("")


def _told(name: str) -> str:
    """Return a PatientID; empty for one that stands for many patients."""
    (known,) = same_names.patients([name])
    return "" if same_names.key(known).startswith(_DUMMIES) else known


def _headers(files: tuple[str, ...]) -> list[str]:
    """Return the PatientID of each DICOM file; it is read once, as long as no file changes."""
    names = "\0".join(files).encode(errors="surrogateescape")
    path = kept.cache_dir() / f"patients-{hashlib.sha256(names).hexdigest()[:32]}.list"
    seen, began = looks.some(files), time.time_ns()
    of = {"format": _FORMAT, "stamp": looks.stamp(seen)}
    about = kept.read(path).about
    if of.items() <= about.items():
        return list(about["patients"])
    patients = list(pool.mapped(dicom.patient, files, os.cpu_count() or 1))
    if seen[:, looks.CHANGED].max() < began - looks.SETTLED:
        with contextlib.suppress(DataError):  # without room or rights the next run reads them again
            kept.keep(path, of | {"patients": patients})
    return patients


def state(sources: Sequence[str]) -> str:
    """Return a hash of the state of files that tell patients; empty if one has just been written, or there is none."""
    seen = looks.some(tuple(sources))
    settled = len(seen) and seen[:, looks.CHANGED].max() < time.time_ns() - looks.SETTLED
    return looks.stamp(seen) if settled else ""


def are_still(sources: Sequence[str], before: str) -> bool:
    """Return whether files that tell patients are in the state that they were in."""
    return not sources or looks.stamp(looks.some(tuple(sources))) == before


class Part(NamedTuple):
    """Images of a domain that are used alike.

    Attributes:
        domain: Their domain.
        use: Their use: train, validation or test.
        images: The images.
    """

    domain: str
    use: str
    images: ImageSet | Listing


def uses_of_patients(parts: Sequence[Part]) -> dict[str, dict[str, set[str]]]:
    """Return the uses of each known patient, by domain and key of the patient."""
    known: dict[str, dict[str, set[str]]] = {part.domain: {} for part in parts}
    for part in parts:
        for name in set() if part.images.groups is None else set(part.images.groups.tolist()) - {""}:
            known[part.domain].setdefault(same_names.patient(name), set()).add(part.use)
    return known


def lines(parts: Sequence[Part]) -> list[str]:
    """Return lines for the user on patients in several parts, and on images whose patient is unknown."""
    known = uses_of_patients(parts)
    images, unknown = Counter[str](), Counter[str]()
    for part in parts:
        images[part.domain] += len(part.images)
        unknown[part.domain] += len(part.images) - (
            0 if part.images.groups is None else int((part.images.groups != "").sum())
        )
    if not any(known.values()):
        return []
    result = []
    for domain, uses in known.items():
        if both := [sides for sides in uses.values() if len(sides) > 1]:
            sides = " and ".join(side for side in ("train", "validation", "test") if any(side in each for each in both))
            result.append(
                f"patients: {len(both)} of {len(uses)} of {shown(domain)} are on several sides ({sides}), so scores "
                "there are too good for new ones; divide the images by patient, or leave it to FedShift"
            )
        if uses and unknown[domain]:
            result.append(
                f"patients: {unknown[domain]} of {plural(images[domain], 'image')} of {shown(domain)} are of unknown "
                f"ones, so each counts as a patient of its own; {REMEDY}"
            )
    if without := [domain for domain, uses in known.items() if not uses]:
        named = some([shown(domain) for domain in without], 5)
        result.append(
            f"patients: known at other sites, but not at {named}, where images are divided one by one; {REMEDY}"
        )
    shared = Counter(name for uses in known.values() for name in uses)
    if number := sum(sites > 1 for sites in shared.values()):
        result.append(
            f"patients: {number} of one name at several sites; if they are the same people, one site may train on some "
            "of whom another is a test"
        )
    return result
