"""Integer labels: each is a place in a list of classes that somebody stated, in the configuration or in the file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from digit_files import noise
from image_trees import fill, pictures

from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.sets import folders

CLASSES = ("benign", "cyst", "malignant")
NUMBERS = tuple(map(str, range(11)))
ALPHABET = tuple(sorted(NUMBERS))  # 0, 1, 10, 2, ...


def save(root: Path, site: str = "s2", number: int = 3, **more: Any) -> Path:
    """Write both npz files of a site, one image of each class."""
    y = np.arange(number)
    for split in ("train", "test"):
        arrays = {"x": noise(len(y), 8, 8, 3), "y": y} | more
        np.savez(root / f"{site}_{split}.npz", **arrays)
    return root


def labels(root: Path, classes: tuple[str, ...], site: str = "s2", **more: Any) -> list[int]:
    return catalog.load("folders", site, "train", replace(Source(root, classes=classes), **more), 16).y.tolist()


# --- nobody stated the classes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        lambda root: fill(root / "s1", dict.fromkeys(NUMBERS, 2)),  # by alphabet, label 2 would be class 10
        lambda root: fill(root / "s1" / "train", {"benign": 2, "malignant": 2}),
        lambda root: save(root, "s1"),
        lambda root: save(root, "s1", classes=np.array(CLASSES)),
    ],
    ids=["numbers", "split folders", "npz alone", "npz with classes"],
)
def test_integers_need_stated_classes_in_every_mixture(tmp_path: Path, other: Callable[[Path], object]) -> None:
    other(tmp_path)
    save(tmp_path)
    for call in (folders.names, folders.survey):
        with refuses("_train.npz", "dataset.classes=["):
            call(Source(tmp_path))


def test_a_nodes_copy_of_the_public_set_is_read_by_the_same_rule(tmp_path: Path) -> None:
    save(tmp_path, catalog.PUBLIC)
    source = Source(tmp_path, classes=CLASSES, classes_stated=False)
    with refuses("public_train.npz", "integers"):
        catalog.load_public("folders", source, 16)
    assert catalog.load_public("folders", replace(source, classes_stated=True), 16).y.tolist() == [0, 1, 2]


# --- they are stated -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "place", "name"),
    [
        (ALPHABET, 2, "'10'"),
        (NUMBERS[::-1], 0, "'10'"),
        (("1", "2", "3"), 0, "'1'"),  # one site lacks the last class: each label would be one class off
        (("none", "2", "1"), 1, "'2'"),
    ],
)
def test_classes_called_by_numbers_must_stand_at_their_places(
    tmp_path: Path, classes: tuple[str, ...], place: int, name: str
) -> None:
    save(tmp_path, number=2)
    assert labels(tmp_path, NUMBERS) == [0, 1]
    for call, given in ((folders.find, ("s2", "train")), (folders.survey, ())):
        with refuses(place, name, "classes=[NAME_OF_0"):
            call(*given, Source(tmp_path, classes=classes))


@pytest.mark.parametrize(
    ("key", "values", "named"),
    [
        ("y", [0.0, 1.0, 2.0], "y float64"),
        ("y", [True, False, True], "y bool"),
        ("y", ["benign", "cyst", "cyst"], "y <U6"),
        ("y", [0, 1, 3], "0 3 2"),
        ("y", [-1, 1, 2], "-1 2 0"),
        ("classes", ["benign", "cyst"], "0 2 classes 1"),
        ("classes", ["benign", "cyst", "Cyst "], "'cyst' 'Cyst"),
        ("classes", ["benign", "cyst", "tumour"], "'tumour' benign, cyst, malignant"),
        ("classes", [0, 1, 2], "classes int64 (3,)"),
        ("classes", "benign", "classes <U6 ()"),
        ("classes", [None, "a", "b"], "classes"),
        ("patient", ["a", "b"], "patient (2,) (3,)"),
        ("patient", [0.0] * 3, "patient float64"),
    ],
)
def test_other_labels_classes_and_groups_are_refused(tmp_path: Path, key: str, values: Any, named: str) -> None:
    save(tmp_path, **{key: np.array(values)})
    with refuses("s2_train.npz", *named.split()):
        labels(tmp_path, CLASSES)
    if key == "y":
        with refuses("s2_train.npz", *named.split()):  # `fedshift init`
            folders.survey(Source(tmp_path, classes=CLASSES))


# --- the file states them --------------------------------------------------------------------------------


# --- tables ----------------------------------------------------------------------------------------------


def test_numbers_in_a_table_need_stated_classes(tmp_path: Path) -> None:
    fill(tmp_path / "a", dict.fromkeys(NUMBERS, 2))
    rows = [f"a/{number}/000{k}.jpg,{number},a" for number in NUMBERS for k in range(2)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,domain", *rows]) + "\n")
    with refuses("labels.csv line 2", "'0'", "dataset.classes=[0,1,2,3,4,5,6,7,8,9,10]"):
        folders.names(Source(tmp_path))
    for classes in (NUMBERS, ALPHABET):  # a number of a table names its class, whatever the order
        (site,) = folders.survey(Source(tmp_path, classes=classes)).sites
        assert all(classes[picture.label] == picture.path.parent.name for picture in pictures(site))


# --- groups ------------------------------------------------------------------------------------------
