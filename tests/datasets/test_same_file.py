"""One image file under two paths, in tables and in folders, and spellings of names in both."""

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import fill, pictures

from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.sets import folders

CLASSES = ("x", "y")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for site in ("a", "b"):
        fill(tmp_path / site, {"x": 10, "y": 10})
    return tmp_path


LINKS = pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])


def write(root: Path, *rows: str, header: str = "file,label,domain") -> Path:
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return root


def rows_of(*sites: str) -> list[str]:
    return [f"{site}/{kind}/{i:04}.jpg,{kind},{site}" for site in sites for kind in CLASSES for i in range(10)]


# --- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "named"),
    [
        *((file, "'a/x/0000.jpg' line 2") for file in ("a//x/0000.jpg", "./a/x/0000.jpg", "a/./x/0000.jpg")),
        *((file, "") for file in ("a/x/../x/0000.jpg", "a/x/../../b/x/0000.jpg", "a\\x\\0000.jpg")),
    ],
)
@pytest.mark.parametrize("rest", ["x,a", "y,a", "x,b"])
def test_another_spelling_of_a_path_is_the_same_file_or_none(root: Path, file: str, named: str, rest: str) -> None:
    write(root, *rows_of("a", "b"), f"{file},{rest}")
    with refuses("labels.csv line 42", file, *named.split()):
        folders.survey(Source(root))


@LINKS
@pytest.mark.parametrize("name", ["a/x/other.jpg", "a/x/0000.JPG"])  # the latter as on a disk blind to letter case
def test_a_link_is_the_same_file(root: Path, make: Callable[[Path, Path], None], name: str) -> None:
    make(root / name, root / "a/x/0000.jpg")
    write(root, *rows_of("a", "b"), f"{name},x,b")
    with refuses("line 42", name, "a/x/0000.jpg", "line 2"):
        folders.find("b", "train", Source(root, classes=CLASSES))


# --- folders --------------------------------------------------------------------------------------------


@LINKS
@pytest.mark.parametrize("place", ["a/x/again.jpg", "a/y/again.jpg", "b/x/again.jpg"])
def test_a_file_lies_in_one_folder(root: Path, make: Callable[[Path, Path], None], place: str) -> None:
    make(root / place, root / "a/x/0000.jpg")
    with refuses("a/x/0000.jpg", place):  # `fedshift init` and `prepare`
        folders.survey(Source(root))
    parts = [(domain, split) for domain in ("a", "b") for split in ("train", "test")]
    with refuses("a/x/0000.jpg", place):
        catalog.check_files("folders", parts, Source(root, classes=CLASSES))  # type: ignore[arg-type]


def test_a_file_in_train_and_test_is_refused_on_a_node_too(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "test")):
        fill(tmp_path / split, {"x": 3, "y": 3}, first=10 * number)
    (tmp_path / "test" / "x" / "again.jpg").symlink_to(tmp_path / "train" / "x" / "0000.jpg")
    with refuses("again.jpg", "0000.jpg"):
        folders.find_own("a", "train", Source(tmp_path, classes=CLASSES))


# --- names ------------------------------------------------------------------------------------------------

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Läsion") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("first", "second"),
    [(COMPOSED, DECOMPOSED), ("Benign", "Benign "), ("Benign", "benign"), ("a b", "a\u00a0b"), ("x", "x\u200b")],
)
def test_class_folders_of_sites_are_one_class(tmp_path: Path, first: str, second: str) -> None:
    fill(tmp_path / "Linux", {first: 5, "other": 5})
    fill(tmp_path / "Mac", {second: 5, "other": 5})
    survey = folders.survey(Source(tmp_path))
    assert len(survey.classes) == 2 and first in survey.classes
    assert [sum(survey.classes[p.label] == first for p in pictures(site)) for site in survey.sites] == [5, 5]
    fill(tmp_path / "mac", {"other": 5})
    with refuses("'Mac'", "'mac'"):
        folders.survey(Source(tmp_path))
    fill(tmp_path / "Linux", {second: 5}, first=5)
    with refuses("both name the class"):
        folders.survey(Source(tmp_path), ("Linux",))


@pytest.mark.parametrize(
    ("first", "second"), [("P{}", " p{}\u00a0"), ("{}", "{:03d}"), ("{}", "{}.0"), ("{:03d}", "+{:02d}.00 ")]
)
def test_patients_in_two_spellings_stay_on_one_side(root: Path, first: str, second: str) -> None:
    plain = [f"{row},{first.format(i // 4)}" for i, row in enumerate(rows_of("a"))]
    mixed = [f"{row},{(first if i % 2 else second).format(i // 4)}" for i, row in enumerate(rows_of("a"))]
    header = "file,label,domain,patient"
    splits = []
    for rows in (plain, mixed):
        site = folders.survey(Source(write(root, *rows, header=header), labels="labels.csv")).sites[0]
        splits.append([picture.split for picture in pictures(site)])
        assert len({(picture.group, picture.split) for picture in pictures(site)}) == 5
        os.utime(root / "labels.csv", (1, 1))
    assert splits[0] == splits[1] or first == "{}" or first == "{:03d}"  # the spelling that comes first decides


def test_a_number_in_two_spellings_is_refused(tmp_path: Path, root: Path) -> None:
    write(root, "a/x/0000.jpg,0,a", "a/x/0001.jpg,1,a", "b/x/0000.jpg,0.0,b")
    with refuses("'0'", "'0.0'"):
        folders.names(Source(root))
    other = tmp_path / "other"
    fill(other / "a", {"0": 2, "1": 2})
    fill(other / "b", {"0.0": 2, "1.0": 2})
    with refuses("classes '0' and '0.0'"):
        folders.names(Source(other))
    fill(other / "01" / "train", {"0": 2, "1": 2})
    fill(other / "1" / "train", {"0": 2, "1": 2})
    with refuses("sites '01' and '1'"):
        folders.names(Source(other), ("01", "1"))


def test_a_label_of_pandas_for_nothing_is_no_class(root: Path) -> None:
    write(root, *rows_of("a")[:-1], "a/y/0009.jpg,NaN,a")
    with refuses("line 21", "'NaN'"):
        folders.names(Source(root))
    assert folders.find("a", "train", Source(root, classes=("x", "y", "nan")))
