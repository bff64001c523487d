"""A user's own images: layouts, tables, the survey, and the same on a real node."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import SPLITS, fill

from fedshift_datasets import catalog
from fedshift_datasets.base import Source, Split
from fedshift_datasets.listing import Listing
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


source = partial(Source, classes=CLASSES)


def listed(find: Callable[..., object], domain: str, split: Split, where: Source) -> dict[str, int]:
    """Return the label of each image by its path below the folder of all sites."""
    images = find(domain, split, where)
    assert isinstance(images, Listing)
    return {
        Path(item.path).name + Path(item.path).parent.name.lower(): int(y)
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


@pytest.mark.parametrize("name", ["Bonn/extra", "train", "C=1", "Worst", "-c", "loose"])
def test_folders_that_are_no_sites(root: Path, name: str) -> None:
    fill(root / name, {"": 2} if name == "loose" else COUNTS)
    with refuses(Path(name).name):
        folders.names(Source(root))


def test_what_is_missing_or_unknown_is_reported_in_a_line(root: Path, tmp_path: Path) -> None:
    with refuses("Cologne", "Aachen, Bonn"):
        folders.names(Source(root), ("Cologne",))
    with refuses("data-dir"):
        folders.find("Aachen", "train", Source())
    with refuses("other.csv"):
        folders.names(Source(root, labels="other.csv"))
    for find in (folders.find, folders.find_own):
        with refuses("malignant", "benign, normal"):
            find("Aachen", "train", Source(root, classes=("benign", "normal")))
    for gone, named in (("Bonn/Test", ("Bonn", "test")), ("Aachen/benign", ("two classes", "malignant"))):
        shutil.rmtree(root / gone)
        with refuses(*named):
            folders.find("Bonn", "test", source(root)) if "Bonn" in gone else folders.names(Source(root), ("Aachen",))
    (empty := tmp_path / "empty").mkdir()
    with refuses("<site>/<class>/"):
        folders.names(Source(empty))


# --- on a real node ---------------------------------------------------------------------------------


def test_a_node_may_leave_out_the_level_of_the_site_with_splits_too(root: Path) -> None:
    own = source(root / "Bonn")
    assert [len(part) for part in split_of(root / "Bonn", "Bonn", own=True)] == [15, 5]
    with refuses("Cologne", "Aachen, Bonn"):
        folders.find_own("Cologne", "train", source(root))
    shutil.rmtree(root / "Bonn" / "Test")
    assert [catalog.has_own("folders", "Bonn", split, own) for split in SPLITS] == [True, False]


# --- tables -----------------------------------------------------------------------------------------


TABLE = """\ufeffLabel,age,file,split,DOMAIN,patient
benign,61,Aachen/benign/0000.jpg,test,north,p1
malignant,,Bonn/train/malignant/0001.jpg,Train,north,p2
malignant,47,Aachen/malignant/0001.jpg,,south,p3
malignant,47,Aachen/malignant/0002.jpg,,south,p4
"""


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_says_everything(root: Path, mark: str) -> None:
    (root / "labels.csv").write_text(TABLE.replace(",", mark))
    assert folders.names(Source(root)) == folders.Names(("north", "south"), CLASSES)
    assert listed(folders.find, "north", "test", source(root)) == {"0000.jpgbenign": 0}
    assert listed(folders.find, "north", "train", source(root)) == {"0001.jpgmalignant": 1}
    assert [len(part) for part in split_of(root, "south")] == [1, 1]


@pytest.mark.parametrize(("encoding", "line"), [("cp1252", 3), ("utf-16", 1)])
def test_a_table_of_another_encoding_is_named_with_its_line(root: Path, encoding: str, line: int) -> None:
    text = "file,label,domain\na.png,benign,north\nb.png,gutartig für sich,north\n"
    (root / "labels.csv").write_text(text, encoding=encoding)
    with refuses(f"labels.csv line {line}", "UTF-8"):
        folders.names(Source(root))


@pytest.mark.parametrize(
    ("header", "row", "named"),
    [
        ("file,domain", "a.jpg,north", "line 1: label"),
        ("file,label", "a.jpg,benign", "line 1: domain"),
        ("file,label,domain,file", "a.jpg,benign,north,", "line 1: file"),
        ("file,label,domain", "a.jpg,benign", "line 2: 3 columns"),
        ("file,label,domain", "Aachen/benign/0000.jpg,,north", "line 2: label"),
        ("file,label,domain", "../a.jpg,benign,north", "line 2: '../a.jpg'"),
        ("file,label,domain", "/etc/a.jpg,benign,north", "line 2: '/etc/a.jpg'"),
        ("file,label,domain,split", "a.jpg,benign,north,extra", "line 2: 'extra' train, validation, test"),
        ("file,label,domain,group,patient", "a.jpg,benign,north,1,2", "line 2: patient group"),
        ("file,label,domain", "a.jpg,benign,north\na.jpg,benign,north", "line 3: 'a.jpg' line 2"),
        ("file,label,domain", "a.jpg,benign,north", "line 2: no image file"),
        ("file,label,domain", "notes.txt,benign,north", "notes.txt .png"),
        ("file,label,domain", "Aachen/benign/0000.jpg,cyst,north", "line 2: 'cyst' benign, malignant"),
        ("file,label,domain", "Aachen/benign/0000.jpg,benign,south", "north south"),
        (
            "file,label,domain,split",
            "Aachen/benign/0000.jpg,benign,north,train\nAachen/benign/0001.jpg,benign,north,",
            "line 3: split",
        ),
        ("file,label,domain", "", "no row"),
    ],
)
def test_a_wrong_row_is_named(root: Path, header: str, row: str, named: str) -> None:
    write_table(root / "labels.csv", [row], header)
    with refuses("labels.csv", *named.split()):
        folders.find("north", "train", source(root))


# --- survey -----------------------------------------------------------------------------------------


# --- two runs in one process ------------------------------------------------------------------------
