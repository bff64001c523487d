"""PACS, Office-Caltech-10 and VLCS: their layouts on small trees, the published sizes, refusals, the real tars."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from hypothesis import given
from hypothesis import strategies as st
from image_trees import check_split, fill, write_tar

from fedshift_datasets.base import Source
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.sets import office, pacs, vlcs

CALTECH = (
    "backpack touring-bike calculator headphone computer-keyboard laptop-101 computer-monitor computer-mouse "
    "coffee-mug video-projector"
)
CALTECH_256 = (
    "003.backpack 224.touring-bike 027.calculator 101.head-phones 045.computer-keyboard 127.laptop-101 "
    "046.computer-monitor 047.computer-mouse 041.coffee-mug 238.video-projector"
)
SHORT = "backpack bike calculator headphones keyboard laptop monitor mouse mug projector"
PACS, OFFICE, VLCS = (" ".join(of.CLASSES) for of in (pacs, office, vlcs))
NUMBERS = "0 1 2 3 4"


@pytest.mark.parametrize(
    ("of", "domain", "folder", "classes"),
    [
        *((pacs, domain, domain, PACS) for domain in pacs.DOMAINS),
        *((pacs, "photo", f"{base}/photo", PACS) for base in ("PACS", "pacs", "kfold", "PACS/kfold")),
        *((office, domain, domain, OFFICE) for domain in office.DOMAINS),
        (office, "amazon", "office_caltech_10/Amazon/images", OFFICE),
        (office, "dslr", "Office-Caltech10/dslr", OFFICE),
        *((office, "caltech", "caltech", names) for names in (CALTECH, CALTECH_256, SHORT, SHORT.upper())),
        *((vlcs, "caltech", name, VLCS) for name in ("CALTECH", "VLCS/Caltech101")),
        *((vlcs, "labelme", name, VLCS) for name in ("LABELME", "vlcs/LabelMe")),
        *((vlcs, "pascal", name, NUMBERS) for name in ("PASCAL/full", "VLCS/VOC2007/full")),
        *((vlcs, "sun", name, NUMBERS) for name in ("SUN/full", "SUN09/full")),
    ],
)
def test_folders(tmp_path: Path, of: Any, domain: str, folder: str, classes: str) -> None:
    each, train, test = {pacs: (3, 17, 4), office: (2, 16, 4), vlcs: (4, 14, 6)}[of]
    fill(tmp_path / folder, dict.fromkeys(classes.split(), each))
    listed = check_split(of.TREE.find, tmp_path, domain, train=train, test=test)["train"]
    wanted = [tmp_path / folder / classes.split()[label] for label in listed.labels]
    assert [Path(item.path).parent for item in listed.items] == wanted


def test_official_split_folders(tmp_path: Path) -> None:
    folder = tmp_path / "VLCS" / "SUN"
    for split, each in (("train", 4), ("test", 2), ("full", 9)):
        fill(folder / split, dict.fromkeys("01234", each))
    assert len(vlcs.TREE.find("sun", "train", Source(tmp_path))) == 20
    fill(folder / "crossval", {"0": 1, "4": 2}, first=4)
    train, test = check_split(vlcs.TREE.find, tmp_path, "sun", train=23, test=10).values()
    assert np.bincount(test.labels).tolist() == [2] * 5
    assert np.bincount(train.labels).tolist() == [5, 4, 4, 4, 6]
    assert Path(train.items[4].path) == folder / "crossval" / "0" / "0004.jpg"


# --- published sizes


def listing(count: int) -> Listing:
    return Listing(tuple(Item(str(i), str(i)) for i in range(count)), np.arange(count))


def test_published_counts_give_the_published_splits(tmp_path: Path) -> None:
    assert pacs.COUNTS == {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
    assert office.COUNTS == {"caltech": 1123, "amazon": 958, "webcam": 295, "dslr": 157}
    assert vlcs.COUNTS == {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282}
    for domain, test in zip(vlcs.DOMAINS, (424, 797, 1013, 985), strict=True):
        assert len(vlcs.split_70_30(listing(vlcs.COUNTS[domain]), "test")) == test
    fill(tmp_path / "dslr", dict(zip(office.CLASSES, office.CLASS_COUNTS["dslr"], strict=True)))
    check_split(office.TREE.find, tmp_path, "dslr", train=127, test=30)


@given(count=st.integers(0, 300))
def test_split_70_30_is_even_and_complete(count: int) -> None:
    train, test = (vlcs.split_70_30(listing(count), split).labels for split in ("train", "test"))
    assert sorted([*train, *test]) == list(range(count)) and abs(len(test) - 0.3 * count) <= 0.5
    if len(test) > 1:
        assert set(np.diff(test)) <= {3, 4, 5}  # 5: only below ten images


# --- refusals


def test_folders_and_tars_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    fill(tmp_path / "webcam", dict.fromkeys((*office.CLASSES, "coffee-mug"), 1))
    with refuses("coffee-mug", "mug"):
        office.TREE.find("webcam", "train", Source(tmp_path))
    fill(tmp_path / "SUN09" / "train", {"0": 1})
    with refuses(tmp_path / "SUN09", "test", "train"):
        vlcs.TREE.find("sun", "test", Source(tmp_path))
    for suffix, mode in ((".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar.xz", "w:xz")):
        write_tar(tmp_path / suffix / f"photo{suffix}", ["photo/dog/1.jpg"], mode=mode)
        with refuses(f"photo{suffix}", "compressed"):
            pacs.TREE.find("photo", "train", Source(tmp_path / suffix))
