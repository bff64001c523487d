"""A user's own images: layouts, tables, the survey, and the same on a real node."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from image_trees import SPLITS, fill, pictures
from PIL import Image
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.io import files, table
from fedshift_datasets.listing import Arrays, Listing
from fedshift_datasets.sets import folders

CLASSES = ("benign", "malignant")
COUNTS = {"benign": 10, "malignant": 5}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data-dir: Aachen without splits, Bonn with them."""
    fill(tmp_path / "Aachen", COUNTS)
    fill(tmp_path / "Bonn" / "train", COUNTS)
    fill(tmp_path / "Bonn" / "Test", {"benign": 3, "MALIGNANT": 2}, first=50)
    (tmp_path / "notes.txt").write_text("x")
    return tmp_path


def source(root: Path, classes: tuple[str, ...] = CLASSES, **more: object) -> Source:
    return replace(Source(root, classes=classes), **more)  # type: ignore[arg-type]


def listed(find: Callable[..., object], domain: str, split: Split, where: Source) -> dict[str, int]:
    """Return the label of each image by its path below the folder of all sites."""
    images = find(domain, split, where)
    assert isinstance(images, Listing)
    return {
        item.path.name + item.path.parent.name.lower(): int(y)
        for item, y in zip(images.items, images.labels, strict=True)
    }


def split_of(root: Path, domain: str, *, own: bool = False, **more: object) -> tuple[set[str], set[str]]:
    """Return the files of both splits, by class folder and name."""
    find = folders.find_own if own else folders.find
    train, test = (set(listed(find, domain, split, source(root, **more))) for split in SPLITS)
    assert not train & test
    return train, test


def write_table(path: Path, lines: list[str], header: str = "file,label,domain") -> None:
    path.write_text("\n".join([header, *lines]) + "\n")


# --- folders ----------------------------------------------------------------------------------------


def test_domains_and_classes_are_those_of_the_folders(root: Path) -> None:
    names = folders.names(Source(root))
    assert names.domains == ("Aachen", "Bonn")
    assert names.classes == CLASSES  # MALIGNANT of Bonn's test folder is malignant
    assert folders.names(Source(root), ("Bonn",)).domains == ("Bonn",)


def test_sites_may_have_different_layouts(root: Path) -> None:
    train, test = split_of(root, "Aachen")
    assert (len(train), len(test)) == (12, 3)
    assert sum(name.endswith("malignant") for name in test) == 1
    train, test = split_of(root, "Bonn")
    assert (len(train), len(test)) == (15, 5)
    assert all(int(name[:4]) >= 50 for name in test)
    labels = listed(folders.find, "Bonn", "test", source(root))
    assert all(label == ("malignant" in name) for name, label in labels.items())


def test_the_order_of_labels_is_that_of_the_classes(root: Path) -> None:
    labels = listed(folders.find, "Aachen", "train", source(root, ("malignant", "benign")))
    assert {label for name, label in labels.items() if "malignant" in name} == {0}


@pytest.mark.parametrize(
    ("mess", "reason"),
    [
        (
            lambda r: fill(r / "Bonn" / "extra", COUNTS),
            "extra: is next to split folders and is none; allowed are train",
        ),
        (lambda r: fill(r, {"loose": 2}), "loose: it has images but no class folders"),
        (lambda r: fill(r / "train", COUNTS), "train is no site"),
        (lambda r: fill(r / "C=1", COUNTS), "site 'C=1'; allowed are letters"),
        (lambda r: fill(r / "Worst", COUNTS), "site 'Worst' is a column of every table"),
        (lambda r: fill(r / "-c", COUNTS), "site '-c'; allowed"),
    ],
)
def test_folders_that_are_no_sites(root: Path, mess: Callable[[Path], None], reason: str) -> None:
    mess(root)
    assert reason in refusal_of(DataError, folders.names, Source(root))


def test_what_is_missing_or_unknown_is_reported_in_a_line(root: Path, tmp_path: Path) -> None:
    assert "Folders there: Aachen, Bonn" in refusal_of(DataError, folders.names, Source(root), ("Cologne",))
    assert "needs the key data-dir" in refusal_of(DataError, folders.find, "Aachen", "train", Source())
    result = refusal_of(DataError, folders.find, "Aachen", "train", source(root, ("benign", "normal")))
    assert "malignant: no class of that name; allowed are benign, normal" in result
    shutil.rmtree(root / "Bonn" / "Test")
    assert "Bonn has no test images" in refusal_of(DataError, folders.find, "Bonn", "test", source(root))
    (empty := tmp_path / "empty").mkdir()
    assert "no site found; expected <site>/<class>/*" in refusal_of(DataError, folders.names, Source(empty))
    shutil.rmtree(root / "Bonn")
    shutil.rmtree(root / "Aachen" / "benign")
    assert "expected at least two classes, found 'malignant'" in refusal_of(DataError, folders.names, Source(root))


def test_npz_files_do_as_they_do_for_any_data_set(root: Path) -> None:
    images = ImageSet(np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 0, 1], np.int64))
    files.write_npz(root / "Cologne_train.npz", images)
    assert folders.names(source(root)).domains == ("Aachen", "Bonn", "Cologne")
    result = folders.find("Cologne", "train", source(root))
    assert isinstance(result, Arrays)
    assert result.read().y.tolist() == [0, 1, 0, 1]
    assert folders.find_own("Cologne", "test", source(root)) is None


# --- on a real node ---------------------------------------------------------------------------------


def test_a_folder_gives_the_same_split_everywhere(root: Path, tmp_path: Path) -> None:
    """As one of three sites, as a node's own folder with and without its name, and named by a table."""
    here = split_of(root, "Aachen", seed=5)
    (node := tmp_path / "node").mkdir()
    shutil.copytree(root / "Aachen", node / "Aachen")
    assert split_of(node, "Aachen", own=True, seed=5) == here
    assert split_of(root / "Aachen", "Aachen", own=True, seed=5) == here
    rows = [f"{p.relative_to(node / 'Aachen')},{p.parent.name}" for p in sorted((node / "Aachen").rglob("*.jpg"))]
    write_table(root / "Aachen" / "labels.csv", rows[::-1], "file,label")
    assert split_of(root / "Aachen", "Aachen", own=True, seed=5) == here
    assert split_of(root, "Aachen", seed=6) != here


def test_a_node_may_leave_out_the_level_of_the_site_with_splits_too(root: Path) -> None:
    train, test = split_of(root / "Bonn", "Bonn", own=True)
    assert (len(train), len(test)) == (15, 5)
    result = refusal_of(DataError, folders.find_own, "Cologne", "train", source(root))
    assert "Cologne not found" in result and "Folders there: Aachen, Bonn" in result


def test_a_nodes_class_that_the_run_does_not_know_is_named(root: Path) -> None:
    fill(root / "Aachen", {"cyst": 1})
    result = refusal_of(DataError, folders.find_own, "Aachen", "train", source(root))
    assert "cyst: no class of that name; allowed are benign, malignant" in result


def test_a_node_without_a_test_folder_has_no_test(root: Path) -> None:
    shutil.rmtree(root / "Bonn" / "Test")
    where = source(root / "Bonn")
    assert catalog.has_own("folders", "Bonn", "train", where)
    assert not catalog.has_own("folders", "Bonn", "test", where)
    assert catalog.has_own("folders", "Aachen", "test", source(root))


# --- tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_says_everything(root: Path, mark: str) -> None:
    header = mark.join(("Label", "age", "file", "split", "DOMAIN", "patient"))
    rows = [
        mark.join(("benign", "61", "Aachen/benign/0000.jpg", "test", "north", "p1")),
        mark.join(("malignant", "", "Bonn/train/malignant/0001.jpg", "Train", "north", "p2")),
        mark.join(("malignant", "47", "Aachen/malignant/0001.jpg", "", "south", "p3")),
        mark.join(("malignant", "47", "Aachen/malignant/0002.jpg", "", "south", "p4")),
    ]
    write_table(root / "labels.csv", rows, "\ufeff" + header)
    assert folders.names(Source(root)) == folders.Names(("north", "south"), CLASSES)
    assert listed(folders.find, "north", "test", source(root)) == {"0000.jpgbenign": 0}
    assert listed(folders.find, "north", "train", source(root)) == {"0001.jpgmalignant": 1}
    assert [len(part) for part in split_of(root, "south")] == [1, 1]


def test_quotes_around_a_cell_may_follow_a_space(root: Path) -> None:
    rows = [f'Aachen/{kind}/{i:04}.jpg, "{kind}" ,  "north"' for kind in CLASSES for i in range(3)]
    write_table(root / "labels.csv", rows, 'file, "label", domain')
    assert folders.names(Source(root)) == folders.Names(("north",), CLASSES)


@pytest.mark.parametrize(("encoding", "line"), [("cp1252", 3), ("utf-16", 1)])
def test_a_table_of_another_encoding_is_named_with_its_line(root: Path, encoding: str, line: int) -> None:
    text = "file,label,domain\na.png,benign,north\nb.png,gutartig für sich,north\n"
    (root / "labels.csv").write_text(text, encoding=encoding)
    message = refusal_of(DataError, folders.names, Source(root))
    assert message.endswith(f"labels.csv line {line}: it is not UTF-8; save the table as UTF-8"), message


def test_images_of_a_patient_stay_on_one_side(root: Path) -> None:
    rows = [f"Aachen/benign/{i:04}.jpg,benign,north,p{i // 4}" for i in range(10)]
    rows += [f"Aachen/malignant/{i:04}.jpg,malignant,north,q{i}" for i in range(5)]
    write_table(root / "own.csv", rows, "file,label,domain,group")
    site = folders.survey(source(root, labels="own.csv")).sites[0]
    assert site.layout == "table" and site.splits == SPLITS
    sides = {(picture.group, picture.split) for picture in pictures(site)}
    assert len(sides) == len({group for group, _ in sides}) == 8


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [
        ("file,domain", "a.jpg,north", "line 1: no column label; it needs file, label, domain, found file, domain"),
        ("file,label", "a.jpg,benign", "line 1: no column domain"),
        ("file,label,domain,file", "a.jpg,benign,north,", "line 1: two columns file"),
        ("file,label,domain", "a.jpg,benign", "line 2: 2 cells, the table has 3 columns"),
        ("file,label,domain", "Aachen/benign/0000.jpg,,north", "line 2: label is empty"),
        ("file,label,domain", "../a.jpg,benign,north", "line 2: file '../a.jpg'; allowed is a path below data-dir"),
        ("file,label,domain", "/etc/a.jpg,benign,north", "line 2: file '/etc/a.jpg'; allowed"),
        (
            "file,label,domain,split",
            "a.jpg,benign,north,extra",
            "line 2: split 'extra'; allowed are train, validation, test",
        ),
        ("file,label,domain,group,patient", "a.jpg,benign,north,1,2", "line 2: columns patient and group"),
        ("file,label,domain", "a.jpg,benign,north\na.jpg,benign,north", "line 3: 'a.jpg' is in line 2 too"),
        ("file,label,domain", "a.jpg,benign,north", "line 2: no image file "),
        ("file,label,domain", "notes.txt,benign,north", "notes.txt; taken are .png"),
        ("file,label,domain", "Aachen/benign/0000.jpg,cyst,north", "line 2: label 'cyst'; the classes are benign, mal"),
        ("file,label,domain", "Aachen/benign/0000.jpg,benign,south", "no row of north; its domains are south"),
        (
            "file,label,domain,split",
            "Aachen/benign/0000.jpg,benign,north,train\nAachen/benign/0001.jpg,benign,north,",
            "line 3: split is empty; other rows of north have one",
        ),
        ("file,label,domain", "", "no row below the names of its columns"),
    ],
)
def test_a_wrong_row_is_named(root: Path, header: str, row: str, reason: str) -> None:
    write_table(root / "labels.csv", [row], header)
    message = refusal_of(DataError, folders.find, "north", "train", source(root))
    assert reason in message and "labels.csv" in message and "\n" not in message, message


def test_a_table_that_is_named_must_be_there(root: Path) -> None:
    assert "there is no file" in refusal_of(DataError, folders.names, Source(root, labels="other.csv"))


def test_a_table_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(root / "labels.csv", [f"Aachen/benign/{i:04}.jpg,benign,north" for i in range(10)])
    folders.find("north", "train", source(root))
    monkeypatch.setattr(table, "_row", None)
    folders.find("north", "test", source(root))


# --- survey -----------------------------------------------------------------------------------------


def test_the_survey_tells_everything_that_is_there(root: Path) -> None:
    (root / "Aachen" / "benign" / "scan.heic").write_bytes(b"x")
    (root / "Aachen" / "benign" / "old").mkdir()
    (root / "docs").mkdir()
    survey = folders.survey(Source(root))
    assert survey.classes == CLASSES
    assert [(site.domain, site.layout) for site in survey.sites] == [("Aachen", "classes"), ("Bonn", "splits")]
    aachen, bonn = map(pictures, survey.sites)
    assert sum((picture.split, CLASSES[picture.label]) == ("test", "malignant") for picture in bonn) == 2
    assert len(aachen) == 15
    site = survey.sites[0]
    assert [path.name for path in site.not_taken] == ["scan.heic"]
    assert any("old: a folder in a class folder is ignored" in note for note in site.notes)
    assert [path.name for path in survey.others] == ["docs", "notes.txt"]


def test_what_no_split_can_do_is_reported(root: Path) -> None:
    fill(root / "Aachen", {"rare": 1})
    (note,) = folders.survey(Source(root)).sites[0].notes
    assert "Aachen: all 1 image of class rare are in train, none is in test" in note


# --- two runs in one process ------------------------------------------------------------------------


def test_runs_with_other_classes_do_not_mix(tmp_path: Path) -> None:
    for kind, grey in (("benign", 10), ("malignant", 200)):
        for number in range(4):
            path = tmp_path / "Aachen" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (grey, grey, grey)).save(path)
    one = catalog.load("folders", "Aachen", "train", source(tmp_path), 16)
    other = catalog.load("folders", "Aachen", "train", source(tmp_path, ("malignant", "benign")), 16)
    own = catalog.load_own("folders", "Aachen", "train", source(tmp_path / "Aachen"), 16)
    for images, light in ((one, 1), (other, 0), (own, 1)):
        assert (images.y[images.x[:, 0, 0, 0] > 100] == light).all() and len(images) == 6
