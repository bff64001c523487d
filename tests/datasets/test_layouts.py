"""Layouts of splits in their usual spellings; what has no known layout is refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from image_trees import fill
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import OWN_SPLITS, ImageSet, Source
from fedshift_datasets.io import files, split_names, trees
from fedshift_datasets.listing import Listing
from fedshift_datasets.sets import folders

CLASSES = ("x", "y")


def source(root: Path, **more: object) -> Source:
    return replace(Source(root, classes=CLASSES), **more)  # type: ignore[arg-type]


def numbers(root: Path, domain: str = "a") -> dict[str, int]:
    """Return how many images a site has of each split that it has."""
    return {
        split: len(match) if isinstance(match, Listing) else len(match.read())
        for split in OWN_SPLITS
        if (match := folders.find_own(domain, split, source(root))) is not None
    }


@pytest.mark.parametrize(
    ("split", "spelled"),
    [
        ("train", "train Train TRAINING training_set train-set trainset trn images_train train2017 Training-Data"),
        ("validation", "val valid Validation validation_set VAL dev devset val2017 valid_images validation-split"),
        ("test", "test Testing TEST tests test_set testset test-images testdata"),
        (None, "a testis trainer valley device t 2017 set images test1 pretrain devices eval holdout extra"),
    ],
)
def test_usual_spellings(split: str | None, spelled: str) -> None:
    for name in spelled.split():
        assert split_names.split_of(name) == split, name


@pytest.mark.parametrize(
    ("stem", "named"),
    [
        ("a_train", ("a", "train")), ("art_painting_test", ("art_painting", "test")), ("a_val", ("a", "validation")),
        ("a_training_set", ("a", "train")), ("dev_data_train", ("dev_data", "train")), ("_train", None),
        ("a_b", None), ("train", None),
    ],
)  # fmt: skip
def test_names_of_npz_files(stem: str, named: object) -> None:
    assert split_names.named(stem) == named


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


def test_npz_files_in_other_spellings(tmp_path: Path) -> None:
    for name, count in (("Training", 4), ("val", 3), ("test", 2)):
        images = ImageSet(np.zeros((count, 8, 8, 3), np.uint8), np.arange(count, dtype=np.int64) % 2)
        files.write_npz(tmp_path / f"a_{name}.npz", images)
    assert numbers(tmp_path) == {"train": 4, "validation": 3, "test": 2}
    assert folders.names(source(tmp_path)).domains == ("a",)


@pytest.mark.parametrize(
    ("mess", "reason"),
    [
        (lambda r: fill(r / "Training", {"x": 2, "y": 2}), "Training is no site, but the name of a split"),
        (lambda r: fill(r / "val", {"x": 2, "y": 2}), "val is no site, but the name of a split"),
        (lambda r: fill(r / "test" / "b", {"x": 2, "y": 2}), "test is no site, but the name of a split"),
        (lambda r: fill(r / "c" / "x", {"p1": 2}), "/c: images in no known layout"),
        (lambda r: fill(r / "c" / "d" / "e", {"x": 2}), "/c: images in no known layout"),
        (lambda r: fill(r / "c" / "train" / "x", {"p1": 2}), "/c: images in no known layout"),
        (
            lambda r: fill(r / "a" / "y", {"p1": 2}) or _empty(r / "a" / "y"),
            "/a/y: 0 images right in this class folder and 2 in folders below, such as ",
        ),
        (lambda r: fill(r / "a" / "y" / "p1", {"deep": 2}), "/a/y: 5 images right in this class folder and 2 in "),
        (
            lambda r: fill(r / "c" / "train", {"x": 3, "y": 3}) or fill(r / "c" / "train" / "x", {"p": 1}),
            "/c/train/x: 3 images right in this class folder and 1 in folders below, such as ",
        ),
        (lambda r: fill(r / "c", {"x": 2, "train": 1}) or fill(r / "c" / "train", {"x": 1}), "next to split folders"),
        (lambda r: fill(r / "c" / "train", {"x": 1}) or fill(r / "c" / "Training", {"x": 1}), "both name the split"),
    ],
)
def test_what_has_no_known_layout_is_refused(tmp_path: Path, mess: Callable[[Path], object], reason: str) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5})
    mess(tmp_path)
    message = refusal_of(DataError, folders.survey, Source(tmp_path))
    assert reason in message and "\n" not in message, message


def test_splits_without_class_folders_are_no_classes(tmp_path: Path) -> None:
    for site in ("a", "b"):
        fill(tmp_path / "splits" / site, {"train": 3, "Testing": 3})
        fill(tmp_path / "mixed" / site, {"x": 3, "y": 3})
        fill(tmp_path / "vehicles" / site, {"car": 3, "train": 3})
    fill(tmp_path / "mixed" / "c", {"train": 3, "val": 3})
    fill(tmp_path / "apart" / "a", {"train": 3})
    fill(tmp_path / "apart" / "b", {"test": 3})
    for name, where in (
        ("splits", "splits: a: images right in Testing and train,"),
        ("mixed", "mixed: c: images right in "),
        ("apart", "apart: images right in train and test,"),
    ):
        message = refusal_of(DataError, folders.survey, Source(tmp_path / name))
        assert where in message and "names of splits, and no class folders; expected <site>/<class>/*" in message, (
            message
        )
        assert "state dataset.classes" in message
    stated = folders.survey(Source(tmp_path / "splits", classes=("train", "testing")))
    assert stated.classes == ("train", "testing")
    assert folders.survey(Source(tmp_path / "vehicles")).classes == ("car", "train")


def _empty(folder: Path) -> None:
    for path in folder.glob("*.jpg"):
        path.unlink()


@pytest.mark.parametrize("domains", [("Training", "Testing"), ("nested",)])
def test_stating_the_sites_changes_nothing(tmp_path: Path, domains: tuple[str, ...]) -> None:
    fill(tmp_path / "Training", {"x": 5, "y": 5})
    fill(tmp_path / "Testing", {"x": 5, "y": 5})
    fill(tmp_path / "nested" / "x", {"p1": 5, "p2": 5})
    result = refusal_of(DataError, folders.names, source(tmp_path), domains)
    assert "Training is no site" in result or "/nested: images in no known layout" in result


def test_a_folder_without_images_is_no_site(tmp_path: Path) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5})
    (tmp_path / "notes" / "old").mkdir(parents=True)
    (tmp_path / "notes" / "old" / "protocol.pdf").write_text("")
    (tmp_path / "test").mkdir()
    survey = folders.survey(Source(tmp_path))
    assert [site.domain for site in survey.sites] == ["a"]
    assert {path.name for path in survey.others} == {"notes", "test"}


def test_images_next_to_class_folders_are_noted(tmp_path: Path) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5})
    for number in range(3):
        (tmp_path / "a" / f"{number}.png").write_bytes(b"x")
    (site,) = folders.survey(Source(tmp_path)).sites
    assert site.notes == (f"{tmp_path}/a/0.png: lies next to class folders; ignored: 3 such images",)


@pytest.mark.parametrize(("train", "val", "test"), [("Train", "val", "TEST"), ("training", "valid", "testing")])
def test_splits_of_a_table(tmp_path: Path, train: str, val: str, test: str) -> None:
    fill(tmp_path, {"x": 6, "y": 6})
    rows = [
        f"{path.relative_to(tmp_path)},{path.parent.name},a,{(train, train, val, test)[number % 4]}"
        for number, path in enumerate(sorted(tmp_path.rglob("*.jpg")))
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,domain,split", *rows]))
    assert numbers(tmp_path) == {"train": 6, "validation": 3, "test": 3}


def test_a_table_of_validation_alone_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"x": 3, "y": 3})
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name},a,val" for path in sorted(tmp_path.rglob("*.jpg"))]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,domain,split", *rows]))
    result = refusal_of(DataError, folders.survey, Source(tmp_path))
    assert "a has no train images, only validation ones" in result


@pytest.mark.parametrize("counts", [{"x": 1}, {"x": 1, "y": 1}])
def test_a_site_that_cannot_be_divided_is_refused_everywhere(tmp_path: Path, counts: dict[str, int]) -> None:
    fill(tmp_path / "a", {"x": 5, "y": 5})
    fill(tmp_path / "b", counts)
    result = refusal_of(DataError, folders.survey, Source(tmp_path))
    assert result == refusal_of(DataError, folders.find, "b", "test", source(tmp_path))
    assert "b has no test images" in result and "no class has two images" in result
    assert numbers(tmp_path, "b") == {"train": sum(counts.values())}  # a real node may have no test
