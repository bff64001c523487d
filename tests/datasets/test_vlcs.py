"""VLCS: every layout on small trees, the published sizes, and every refusal."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_trees import check_split, check_usual_refusals, fill, refusal

from fedshift_datasets.base import Source
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.sets import vlcs

SMALL = dict.fromkeys(vlcs.CLASSES, 4)  # 20 images
NUMBERS = dict.fromkeys("01234", 4)
FOLDERS = [("caltech", "CALTECH"), ("caltech", "Caltech101"), ("labelme", "LABELME"), ("labelme", "LabelMe")]
FOLDERS += [("pascal", "PASCAL"), ("pascal", "VOC2007"), ("sun", "SUN"), ("sun", "SUN09")]


def listing(count: int) -> Listing:
    return Listing(tuple(Item(Path(str(i)), str(i)) for i in range(count)), np.arange(count))


def test_constants_are_the_published_ones() -> None:
    assert vlcs.COUNTS == {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282}


@pytest.mark.parametrize(("domain", "test"), list(zip(vlcs.DOMAINS, (424, 797, 1013, 985), strict=True)))
def test_split_70_30_has_the_published_sizes(domain: str, test: int) -> None:
    whole = listing(vlcs.COUNTS[domain])
    assert len(vlcs.split_70_30(whole, "test")) == test
    assert len(vlcs.split_70_30(whole, "train")) == len(whole) - test


@given(count=st.integers(0, 300))
def test_split_70_30_is_even_and_complete(count: int) -> None:
    train, test = (vlcs.split_70_30(listing(count), split).labels for split in ("train", "test"))
    assert sorted([*train, *test]) == list(range(count)) and abs(len(test) - 0.3 * count) <= 0.5
    if len(test) > 1:
        assert set(np.diff(test)) <= {3, 4, 5}  # 5: only below ten images


@pytest.mark.parametrize("base", ["", "VLCS", "vlcs"])
@pytest.mark.parametrize(("domain", "folder"), FOLDERS)
@pytest.mark.parametrize("inside", ["", "full"])
def test_domain_class_folders(tmp_path: Path, base: str, domain: str, folder: str, inside: str) -> None:
    fill(tmp_path / base / folder / inside, NUMBERS if inside else SMALL)
    problem = check_split(vlcs.TREE.find, tmp_path, domain, train=14, test=6)
    assert set(problem["test"].labels.tolist()) == {0, 1, 2, 3, 4}


def test_official_split_folders(tmp_path: Path) -> None:
    folder = tmp_path / "VLCS" / "SUN"
    fill(folder / "train", NUMBERS)
    fill(folder / "crossval", {"0": 1, "4": 2}, first=4)
    fill(folder / "test", dict.fromkeys("01234", 2))
    fill(folder / "full", dict.fromkeys("01234", 9))
    problem = check_split(vlcs.TREE.find, tmp_path, "sun", train=23, test=10)
    assert problem["test"].labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert problem["train"].labels.tolist() == [0] * 5 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 6
    assert problem["train"].items[4].path == folder / "crossval" / "0" / "0004.jpg"


def test_official_split_without_crossval(tmp_path: Path) -> None:
    for split in ("train", "test"):
        fill(tmp_path / "SUN" / split, SMALL)
    assert len(vlcs.TREE.find("sun", "train", Source(tmp_path))) == 20


def test_refusals(tmp_path: Path) -> None:
    check_usual_refusals(vlcs.TREE.find, tmp_path, vlcs.DOMAINS)
    fill(tmp_path / "VOC2007", SMALL | {"chair": 0})
    assert refusal(vlcs.TREE.find, tmp_path, "sun").endswith("\nDomains of vlcs there: pascal")
    assert "images of 4 classes, expected 5; none of chair" in refusal(vlcs.TREE.find, tmp_path, "pascal")
    fill(tmp_path / "SUN09" / "train", {"5": 1})
    assert f"{tmp_path}/SUN09: no folder test, only train" in refusal(vlcs.TREE.find, tmp_path, "sun", "test")
    assert "/train/5: no class of that name" in refusal(vlcs.TREE.find, tmp_path, "sun")
