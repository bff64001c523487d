"""The patient of an image is found in each layout, in tables next to it and DICOM headers; what has none is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digit_files
import numpy as np
import pytest
from dicom_files import made, written
from image_trees import fill, pictures
from refusals import worded

from fedshift_datasets.base import ImageSet, Source
from fedshift_datasets.io import cache, looks, patients, site
from fedshift_datasets.io.patients import Part
from fedshift_datasets.io.site import Site
from fedshift_datasets.listing import Listing
from fedshift_datasets.sets import folders

CLASSES = ("ill", "well")
DCM = digit_files.noise(8, 8).astype(np.uint16)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data-dir: north with ten images of each class, two of a patient."""
    fill(tmp_path / "north", {"ill": 10, "well": 10})
    return tmp_path


def images_of(root: Path) -> list[Path]:
    return sorted(path for path in (root / "north").rglob("*.*") if path.suffix in (".jpg", ".JPG", ".png", ".dcm"))


def whose(path: Path) -> str:
    """Return the patient of an image: two images in turn, of each class."""
    return f"{path.parent.name[0].upper()}{sorted(path.parent.iterdir()).index(path) // 2:03d}"


def site_of(root: Path, **more: Any) -> Site:
    (site,) = folders.survey(Source(root, classes=CLASSES, **more), ("north",)).sites
    return site


def check_whole(site: Site) -> None:
    """Check that ten patients are known, each on one side."""
    sides = {(picture.group, picture.split) for picture in pictures(site)}
    assert len(sides) == len({group for group, _ in sides}) == 10
    assert {split for _, split in sides} == {"train", "test"}


def rows(paths: list[Path], name: Callable[[Path], str], patient: Callable[[Path], str] = whose) -> str:
    return "\n".join(f"{name(path)};{patient(path)}" for path in paths) + "\n"


@pytest.mark.parametrize(
    ("place", "head", "name"),
    [
        ("north/patients.csv", "file;patient", lambda path: f"{path.parent.name}/{path.name}"),
        ("north/Metadata.CSV", "Image Path;Patient ID", lambda path: f"NORTH\\{path.parent.name}\\{path.name}"),
        ("meta.csv", "patient_id;image_id", None),  # in the other order, without suffix
        ("north/ill/of_ill.csv", "file;subject", lambda path: path.name),
    ],
)
def test_a_table_next_to_the_images_tells_patients(
    root: Path, place: str, head: str, name: Callable[[Path], str] | None
) -> None:
    paths = images_of(root)
    if name is None:  # such as ISIC's
        for path in paths:
            path.rename(path.with_name(f"{path.parent.name}_{path.name}"))
        text = "\n".join(f"{whose(path)};{path.stem}" for path in images_of(root))
    else:
        text = rows([path for path in paths if "of_ill" not in place or path.parent.name == "ill"], name)
    (root / place).write_text(f"{head}\n{text}")
    if "of_ill" in place:
        (root / "north" / "patients.csv").write_text(
            "file;patient\n" + rows(paths[10:], lambda path: f"well/{path.name}")
        )
    site = site_of(root)
    check_whole(site)
    assert place in site.patients_by and not site.patient_notes
    assert not folders.survey(Source(root, classes=CLASSES)).others and not site.not_taken
    assert site.drawn and site_of(root, patients="listed").pictures.groups is None


@pytest.mark.parametrize(
    ("head", "name", "patient", "named"),
    [
        ("file;patient", lambda path: path.name, whose, "line 2 2"),
        ("file;patient", lambda path: f"elsewhere/{path.name}", whose, "10 north"),
        ("file;patient", lambda path: f"/data/ill/{path.name}", whose, "data-dir"),
        ("id;patient", lambda path: path.name, whose, "file"),
        ("file;age", lambda path: path.name, whose, "patient"),
        ("file;patient", lambda _: "ill/0000.jpg", lambda path: path.name, "line 3"),
    ],
)
def test_a_table_that_does_not_fit_is_said_and_changes_nothing(
    root: Path, head: str, name: Callable[[Path], str], patient: Callable[[Path], str], named: str
) -> None:
    before = site_of(root).pictures
    (root / "north" / "patients.csv").write_text(f"{head}\n{rows(images_of(root)[:10], name, patient)}")
    site = site_of(root)
    (note,) = site.patient_notes
    worded(note.replace(str(root), "ROOT"), "north/patients.csv", *named.split())
    assert site.pictures == before and site.patients_by == ()


def as_dicom(root: Path, patient: Callable[[Path], str]) -> None:
    for path in images_of(root):
        tags = {"PatientID": patient(path)} if patient(path) else {}
        path.with_suffix(".dcm").write_bytes(written(made(DCM, **tags)))
    for path in images_of(root):
        if path.suffix != ".dcm":
            path.unlink()


def in_pairs(path: Path) -> str:
    return f"{path.parent.name[0]}{int(path.stem) // 2}"


def list_all(root: Path) -> None:
    lines = [f"north/{path.parent.name}/{path.name},{path.parent.name},north" for path in images_of(root)]
    (root / "labels.csv").write_text("\n".join(["file,label,domain", *lines]))


@pytest.mark.parametrize("table", ["none", "patients", "labels"])
def test_a_dicom_file_tells_its_patient(root: Path, table: str) -> None:
    as_dicom(root, lambda path: "" if table == "patients" and path.parent.name == "ill" else f" {in_pairs(path)}\0")
    if table == "labels":
        list_all(root)
    if table == "patients":  # of those whose header does not tell
        text = "file;patient\n" + rows(images_of(root)[:10], lambda path: f"ill/{path.name}", in_pairs)
        (root / "north" / "patients.csv").write_text(text)
    site = site_of(root)
    check_whole(site)
    assert site.patients_by == (("north/patients.csv", "PatientID") if table == "patients" else ("PatientID",))
    own = Source(root / "north" if table == "none" else root, classes=CLASSES)
    here, there = folders.find_own("north", "train", own), folders.find("north", "train", Source(root, classes=CLASSES))
    assert isinstance(here, Listing) and isinstance(there, Listing) and here.names == there.names
    assert here.groups is not None and there.groups is not None and here.groups.tolist() == there.groups.tolist()


def test_a_damaged_header_and_a_pipe_tell_nothing(root: Path) -> None:
    as_dicom(root, in_pairs)
    first, second, *_ = images_of(root)
    first.write_bytes(first.read_bytes()[:140])
    second.unlink()
    os.mkfifo(second)
    groups = {picture.path: picture.group for picture in pictures(site_of(root))}
    assert [path for path, group in groups.items() if not group] == [first, second]


@pytest.mark.parametrize("name", ["", "ANON", "0", "Anonymous", "nan", "7 in all"])
def test_dicom_without_patients_is_said_with_a_remedy(root: Path, name: str) -> None:
    before = site_of(root).pictures
    as_dicom(root, lambda _: name)
    site = site_of(root)
    worded(*site.patient_notes, "north", 20, "PatientID", "patients.csv")
    assert site.pictures.groups is None and site.pictures.number("test") == before.number("test")


@pytest.mark.parametrize("table", [False, True])
def test_headers_are_read_once_and_again_where_a_file_changes(
    root: Path, table: bool, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "SETTLED", -1_000_000_000)  # files count as old
    as_dicom(root, in_pairs)
    if table:
        list_all(root)
    first = site_of(root)
    for _ in range(2):
        site._known.clear()  # as another process
        assert site_of(root) == first and len(given) == 20
    changed = images_of(root)[0]
    before = changed.stat()
    with changed.open("r+b") as file:  # in its place, of the same size, under its old time
        file.write(written(made(DCM, PatientID="w0")))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert [picture.group for picture in pictures(site_of(root)) if picture.path == changed] == ["w0"]
        site._known.clear()
    kept = [path for path in cache.cache_dir().iterdir() if path.suffix in (".json", ".list")]
    assert kept and all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert not any(name in path.name for path in kept for name in ("w0", "i0"))
    cache.remove_lists()
    assert not [path for path in kept if path.exists()]


def images_with(*groups: str) -> ImageSet:
    return ImageSet(
        np.zeros((len(groups), 1, 1, 3), np.uint8), np.zeros(len(groups), np.int64), groups=np.array(groups)
    )


def test_patients_on_several_sides_and_sites_are_counted_and_not_named() -> None:
    none = images_with()
    told = patients.lines(
        [
            Part("a", "train", images_with("Doe", "7", "", "x")),
            Part("a", "test", images_with("doe ", "007", "y")),
            Part("b", "train", images_with("X")),
            Part("c", "test", none),
        ]
    )
    for line, named in zip(told, ("2 4 a train test", "1 7 a", "c", "1"), strict=True):
        worded(line, *named.split())
    assert "doe" not in " ".join(told).lower()
    assert patients.lines([Part("c", "train", none), Part("c", "test", none)]) == []
