"""Layouts of splits in their usual spellings; what has no known layout is refused by name."""

from functools import partial
from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import fill

from fedshift_datasets import catalog
from fedshift_datasets.base import OWN_SPLITS, Source
from fedshift_datasets.io import layout, trees
from fedshift_datasets.listing import Listing
from fedshift_datasets.sets import folders

CLASSES = ("x", "y")


source = partial(Source, classes=CLASSES)


def numbers(root: Path, domain: str = "a") -> dict[str, int]:
    """Return how many images a site has of each split that it has."""
    return {
        split: len(match) if isinstance(match, Listing) else len(match.read())
        for split in OWN_SPLITS
        if (match := folders.find_own(domain, split, source(root))) is not None
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
    assert folders.names(Source(tmp_path)).classes == CLASSES
    for split, count in (("train", 10), ("validation", 6), ("test", 4)):  # a node of any other data set
        images = trees.find_plain(tmp_path, "a", split, CLASSES)  # type: ignore[arg-type]
        assert isinstance(images, Listing) and len(images) == count
    assert catalog.gives("pacs", "a", "validation", source(tmp_path), own=True)
    assert not catalog.gives("pacs", "a", "validation", source(tmp_path), own=False)


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
            folders.names(source(tmp_path), (mess.split("/")[0],))


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
        folders.find("b", "test", source(tmp_path))
    assert numbers(tmp_path, "b") == {"train": sum(counts.values())}  # a real node may have no test
