"""A user's own images: layouts, tables, the survey, and the same on a real node."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import SPLITS, fill

from fedshift_datasets import catalog
from fedshift_datasets.base import OWN_SPLITS, Source, Split
from fedshift_datasets.io import layout, trees
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


# --- layouts of splits --------------------------------------------------------------------------------------


XY = ("x", "y")
of_xy = partial(Source, classes=XY)


def numbers(root: Path, domain: str = "a") -> dict[str, int]:
    """Return how many images a site has of each split that it has."""
    return {
        split: len(match) if isinstance(match, Listing) else len(match.read())
        for split in OWN_SPLITS
        if (match := folders.find_own(domain, split, of_xy(root))) is not None
    }


@pytest.mark.parametrize(
    ("stem", "named"),
    [
        ("a_train", "a train"),
        ("art_painting_test", "art_painting test"),
        ("a_val", "a validation"),
        ("a_training_set", "a train"),
        ("dev_data_train", "dev_data train"),
        ("_train", ""),
        ("a_b", ""),
        ("train", ""),
    ],
)
def test_names_of_npz_files(stem: str, named: str) -> None:
    assert layout.parts_of(stem) == (tuple(named.split()) or None)


@pytest.mark.parametrize("spelled", ["train val test", "Training Validation Testing", "train_set dev test_set"])
def test_a_site_in_split_folders(tmp_path: Path, spelled: str) -> None:
    for name, count in zip(spelled.split(), (5, 3, 2), strict=True):
        fill(tmp_path / "a" / name, {"x": count, "y": count})
    assert folders.names(Source(tmp_path)).domains == ("a",)
    assert numbers(tmp_path) == numbers(tmp_path / "a") == {"train": 10, "validation": 6, "test": 4}
    assert folders.names(Source(tmp_path)).classes == XY
    for split, count in (("train", 10), ("validation", 6), ("test", 4)):  # a node of any other data set
        images = trees.find_plain(tmp_path, "a", split, XY)  # type: ignore[arg-type]
        assert isinstance(images, Listing) and len(images) == count
    assert catalog.gives("pacs", "a", "validation", of_xy(tmp_path), own=True)
    assert not catalog.gives("pacs", "a", "validation", of_xy(tmp_path), own=False)


@pytest.mark.parametrize(
    ("mess", "named"),
    [
        ("Training/x=2 Training/y=2", "Training"),
        ("val/x=2 val/y=2", "val"),
        ("test/b/x=2 test/b/y=2", "test"),
        ("c/x/p1=2", "/c"),
        ("c/d/e/x=2", "/c"),
        ("c/train/x/p1=2", "/c"),
        ("a/y/p1/deep=2", "/a/y 5 2"),
        ("c/train/x=3 c/train/y=3 c/train/x/p=1", "/c/train/x 3 1"),
        ("c/x=2 c/train/x=1", "/c/x split"),
        ("c/train/x=1 c/Training/x=1", "train Training"),
    ],
)
def test_what_has_no_known_layout_is_refused(tmp_path: Path, mess: str, named: str) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5})
    for folder, _, number in (each.partition("=") for each in mess.split()):
        fill(tmp_path / folder, {"": int(number)})
    with refuses(*named.split()):
        folders.survey(Source(tmp_path))
    if named in ("Training", "/c"):  # stating the sites changes nothing
        with refuses(*named.split()):
            folders.names(of_xy(tmp_path), (mess.split("/")[0],))


def test_splits_without_class_folders_are_no_classes(tmp_path: Path) -> None:
    for site in ("a", "b"):
        fill(tmp_path / "splits" / site, {"train": 3, "Testing": 3})
        fill(tmp_path / "mixed" / site, {"x": 3, "y": 3})
        fill(tmp_path / "vehicles" / site, {"car": 3, "train": 3})
    fill(tmp_path / "mixed" / "c", {"train": 3, "val": 3})
    fill(tmp_path / "apart" / "a", {"train": 3})
    fill(tmp_path / "apart" / "b", {"test": 3})
    for name, named in (("splits", "a: Testing train"), ("mixed", "c: train val"), ("apart", "train test")):
        with refuses(*named.split(), "<site>/<class>/", "dataset.classes"):
            folders.survey(Source(tmp_path / name))
    stated = folders.survey(Source(tmp_path / "splits", classes=("train", "testing")))
    assert stated.classes == ("train", "testing")
    assert folders.survey(Source(tmp_path / "vehicles")).classes == ("car", "train")


def test_a_folder_without_images_is_no_site(tmp_path: Path) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5, "": 3})
    (tmp_path / "notes" / "old").mkdir(parents=True)
    (tmp_path / "notes" / "old" / "protocol.pdf").write_text("")
    (tmp_path / "test").mkdir()
    survey = folders.survey(Source(tmp_path))
    (site,) = survey.sites
    assert site.domain == "a" and "3 such images" in site.notes[0]  # which lie next to class folders
    assert {path.name for path in survey.others} == {"notes", "test"}


def test_a_table_of_validation_alone_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"x": 3, "y": 3})
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name},a,val" for path in sorted(tmp_path.rglob("*.jpg"))]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,domain,split", *rows]))
    with refuses("a has no train images"):
        folders.survey(Source(tmp_path))


@pytest.mark.parametrize("counts", [{"x": 1}, {"x": 1, "y": 1}])
def test_a_site_that_cannot_be_divided_is_refused_everywhere(tmp_path: Path, counts: dict[str, int]) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5})
    fill(tmp_path / "b", counts)
    with refuses("b has no test images"):
        folders.survey(Source(tmp_path))
    with refuses("b has no test images"):
        folders.find("b", "test", of_xy(tmp_path))
    assert numbers(tmp_path, "b") == {"train": sum(counts.values())}  # a real node may have no test
