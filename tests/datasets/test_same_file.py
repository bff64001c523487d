"""One image file under two paths, in tables and in folders, and spellings of names in both."""

import os
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from image_trees import fill, pictures
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import layout, same_file
from fedshift_datasets.sets import folders

CLASSES = ("x", "y")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for site in ("a", "b"):
        fill(tmp_path / site, {"x": 10, "y": 10})
    return tmp_path


def write(root: Path, *rows: str, header: str = "file,label,domain") -> Path:
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return root


def rows_of(*sites: str) -> list[str]:
    return [f"{site}/{kind}/{i:04}.jpg,{kind},{site}" for site in sites for kind in CLASSES for i in range(10)]


def link(path: Path, to: Path) -> None:
    path.symlink_to(to)


# --- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["a//x/0000.jpg", "./a/x/0000.jpg", "a/./x/0000.jpg", "a/x//0000.jpg"])
@pytest.mark.parametrize("rest", ["x,a", "y,a", "x,b"])
def test_another_spelling_of_a_path_is_the_same_file(root: Path, file: str, rest: str) -> None:
    write(root, *rows_of("a", "b"), f"{file},{rest}")
    message = refusal_of(DataError, folders.names, Source(root))
    assert f"labels.csv line 42: '{file}' is the same file as 'a/x/0000.jpg' in line 2" in message


@pytest.mark.parametrize("file", ["a/x/../x/0000.jpg", "a/x/../../b/x/0000.jpg"])
def test_a_path_that_goes_back_is_refused(root: Path, file: str) -> None:
    write(root, *rows_of("a", "b"), f"{file},x,a")
    assert f"line 42: file '{file}'; allowed is a path below" in refusal_of(DataError, folders.names, Source(root))


@pytest.mark.parametrize("make", [link, lambda path, to: os.link(to, path)], ids=["symbolic link", "hard link"])
@pytest.mark.parametrize("name", ["a/x/other.jpg", "a/x/0000.JPG"])  # the latter as on a disk blind to letter case
def test_a_link_is_the_same_file(root: Path, make: Callable[[Path, Path], None], name: str) -> None:
    make(root / name, root / "a/x/0000.jpg")
    write(root, *rows_of("a", "b"), f"{name},x,b")
    message = refusal_of(DataError, folders.find, "b", "train", Source(root, classes=CLASSES))
    assert f"line 42: '{name}' is the same file as 'a/x/0000.jpg' in line 2; keep one of them" in message


def test_a_link_to_a_folder_leads_to_the_same_files(root: Path) -> None:
    link(root / "c", root / "a")
    write(root, *rows_of("a"), "c/x/0003.jpg,y,a")
    assert "'c/x/0003.jpg' is the same file as 'a/x/0003.jpg' in line 5" in refusal_of(
        DataError, folders.find_own, "a", "train", Source(root, classes=CLASSES)
    )


def test_backslashes_are_no_second_spelling(root: Path) -> None:
    write(root, *rows_of("a"), "a\\x\\0000.jpg,x,a")
    message = refusal_of(DataError, folders.survey, Source(root))
    assert "line 22: no image file" in message and "folders in a path are divided by /" in message


# --- folders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [link, lambda path, to: os.link(to, path)], ids=["symbolic link", "hard link"])
@pytest.mark.parametrize("place", ["a/x/again.jpg", "a/y/again.jpg", "b/x/again.jpg"])
def test_a_file_lies_in_one_folder(root: Path, make: Callable[[Path, Path], None], place: str) -> None:
    make(root / place, root / "a/x/0000.jpg")
    message = refusal_of(DataError, folders.survey, Source(root))  # `fedshift init` and `prepare`
    assert "a/x/0000.jpg and " in message and f"{place} are one file; keep one of them" in message
    parts = [(domain, split) for domain in ("a", "b") for split in ("train", "test")]
    run = refusal_of(DataError, catalog.check_files, "folders", parts, Source(root, classes=CLASSES))
    assert f"{place} are one file" in run or "a/x/0000.jpg are one file" in run


def test_a_file_in_train_and_test_is_refused_on_a_node_too(tmp_path: Path) -> None:
    for split in ("train", "test"):
        fill(tmp_path / split, {"x": 3, "y": 3}, first=0 if split == "train" else 10)
    link(tmp_path / "test" / "x" / "again.jpg", tmp_path / "train" / "x" / "0000.jpg")
    message = refusal_of(DataError, folders.find_own, "a", "train", Source(tmp_path, classes=CLASSES))
    assert "again.jpg are one file" in message


def test_a_site_that_is_a_link_is_a_site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("links")
    for site in ("a", "b"):
        link(other / site, root / site)
    assert [len(site.pictures) for site in folders.survey(Source(other)).sites] == [20, 20]
    link(other / "c", root / "a")
    assert "are one file" in refusal_of(DataError, folders.survey, Source(other))


def test_files_that_are_not_there_are_no_copies(tmp_path: Path) -> None:
    assert same_file.twice_in([(str(tmp_path / "a"),) * 2]) is None
    (tmp_path / "b").write_bytes(b"x")
    assert same_file.twice_in([(str(tmp_path / "a"), str(tmp_path / "b"))]) is None


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
    fill(tmp_path / "Linux", {second: 5}, first=5)
    assert "both name the class" in refusal_of(DataError, folders.survey, Source(tmp_path))


def test_the_order_of_classes_does_not_depend_on_the_form_of_accents(tmp_path: Path) -> None:
    for name, kind in (("nfc", COMPOSED), ("nfd", DECOMPOSED)):
        fill(tmp_path / name / "site", {kind: 2, "Lunge": 2})
    names = [folders.names(Source(tmp_path / name)).classes for name in ("nfc", "nfd")]
    assert names[0] == names[1] == ("Lunge", COMPOSED)


def test_two_folders_of_one_site_are_refused(root: Path) -> None:
    fill(root / "A", {"x": 2, "y": 2})
    message = refusal_of(DataError, folders.names, Source(root))
    assert "'A' and 'a' are one site in two spellings" in message


def test_a_stated_site_finds_its_folder_in_another_spelling(root: Path) -> None:
    survey = folders.survey(Source(root, classes=CLASSES), ("A", "B"))
    assert [len(site.pictures) for site in survey.sites] == [20, 20]


def test_sites_of_a_table_are_one_name(root: Path) -> None:
    rows = [row[:-1] + "A" if i % 3 else row for i, row in enumerate(rows_of("a"))]
    write(root, *rows, *rows_of("b"))
    survey = folders.survey(Source(root))
    assert [(site.domain, len(site.pictures)) for site in survey.sites] == [("A", 20), ("b", 20)]


def test_files_of_a_table_are_found_in_another_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in CLASSES:
        fill(tmp_path / DECOMPOSED / kind, {"": 10})
        for image in (tmp_path / DECOMPOSED / kind).iterdir():
            image.rename(image.with_name(f"{DECOMPOSED} {image.stem}.JPG"))
    rows = [f"{COMPOSED}/{kind}/{COMPOSED} {i:04}.jpg,{kind},{COMPOSED}" for kind in CLASSES for i in range(10)]
    write(tmp_path, *rows)
    visible, listed = layout.visible, Counter[Path]()

    def counted(folder: Path) -> list[Path]:
        listed[folder] += 1
        return visible(folder)

    monkeypatch.setattr(layout, "visible", counted)
    (site,) = folders.survey(Source(tmp_path)).sites
    assert len(site.pictures) == 20 and all(picture.path.is_file() for picture in pictures(site))
    assert listed[tmp_path / DECOMPOSED / "x"] == 1, "not once for each of its files"
    write(tmp_path, *rows, f"{DECOMPOSED}/y/{COMPOSED} 0003.JPG,y,{COMPOSED}")
    assert "are one file; keep one of them" in refusal_of(DataError, folders.survey, Source(tmp_path))
    fill(tmp_path / COMPOSED.lower() / "x", {"": 1})
    write(tmp_path, *rows)
    assert "are one name; keep one of them" in refusal_of(DataError, folders.survey, Source(tmp_path))


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
    message = refusal_of(DataError, folders.names, Source(root))
    assert "labels '0" in message and "are one number in two spellings" in message
    (root / "labels.csv").unlink()
    other = tmp_path / "other"
    fill(other / "a", {"0": 2, "1": 2})
    fill(other / "b", {"0.0": 2, "1.0": 2})
    assert "classes '0' and '0.0' are one number" in refusal_of(DataError, folders.names, Source(other))
    fill(other / "01" / "train", {"0": 2, "1": 2})
    fill(other / "1" / "train", {"0": 2, "1": 2})
    assert "sites '01' and '1' are one number" in refusal_of(DataError, folders.names, Source(other), ("01", "1"))


def test_a_label_of_pandas_for_nothing_is_no_class(root: Path) -> None:
    write(root, *rows_of("a")[:-1], "a/y/0009.jpg,NaN,a")
    assert "line 21: label 'NaN' stands for a missing one" in refusal_of(DataError, folders.names, Source(root))
    assert folders.find("a", "train", Source(root, classes=("x", "y", "nan")))


def test_files_are_found_in_another_spelling(tmp_path: Path) -> None:
    (tmp_path / "Scan_train.npz").write_bytes(b"")
    fill(tmp_path / "Photo" / "train", {"x": 1})
    assert layout.find_domain(tmp_path, "scan", "train") == tmp_path / "Scan_train.npz"
    assert layout.find_domain(tmp_path, "photo", "train") == tmp_path / "Photo" / "train"
    fill(tmp_path / "PHOTO" / "train", {"x": 1})
    assert "PHOTO and Photo are one name" in refusal_of(DataError, layout.find_domain, tmp_path, "photo", "train")
