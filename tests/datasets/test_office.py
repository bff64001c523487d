"""Office-Caltech-10: every layout and spelling on small trees, and every refusal."""

from pathlib import Path

import pytest
from image_trees import check_split, check_usual_refusals, fill, refusal

from fedshift_datasets.sets import office

SMALL = dict.fromkeys(office.CLASSES, 2)  # 20 images
CALTECH = (
    "backpack touring-bike calculator headphone computer-keyboard laptop-101 computer-monitor computer-mouse "
    "coffee-mug video-projector"
)
CALTECH_256 = (
    "003.backpack 224.touring-bike 027.calculator 101.head-phones 045.computer-keyboard 127.laptop-101 "
    "046.computer-monitor 047.computer-mouse 041.coffee-mug 238.video-projector"
)
SHORT = "backpack bike calculator headphones keyboard laptop monitor mouse mug projector"


def test_constants_are_the_published_ones() -> None:
    assert office.COUNTS == {"caltech": 1123, "amazon": 958, "webcam": 295, "dslr": 157}
    assert len(office.CLASSES) == 10 and len(office.OTHERS) == 21
    assert set(office.ALIASES.values()) <= set(office.CLASSES)


@pytest.mark.parametrize("base", ["", "office_caltech_10", "Office-Caltech10"])
@pytest.mark.parametrize("inside", ["", "images"])
@pytest.mark.parametrize("domain", [*office.DOMAINS, "Amazon"])
def test_folders(tmp_path: Path, base: str, inside: str, domain: str) -> None:
    fill(tmp_path / base / domain / inside, SMALL)
    problem = check_split(office.TREE.find, tmp_path, domain.lower(), train=16, test=4)
    assert problem["test"].labels.tolist() == [4, 4, 9, 9]


@pytest.mark.parametrize("spelling", [CALTECH, CALTECH_256, SHORT, SHORT.upper()])
def test_every_spelling_gives_the_same_labels(tmp_path: Path, spelling: str) -> None:
    fill(tmp_path / "caltech", dict.fromkeys(spelling.split(), 2))
    problem = check_split(office.TREE.find, tmp_path, "caltech", train=16, test=4)
    assert problem["train"].labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 5, 5, 6, 6, 7, 7, 8, 8]
    assert problem["train"].items[2].path.parent.name == spelling.split()[1]


def test_published_counts_give_the_published_split(tmp_path: Path) -> None:
    fill(tmp_path / "dslr", office.CLASS_COUNTS["dslr"])
    fill(tmp_path / "webcam", office.CLASS_COUNTS["webcam"])
    check_split(office.TREE.find, tmp_path, "dslr", train=127, test=30)
    check_split(office.TREE.find, tmp_path, "webcam", train=237, test=58)


def test_classes_of_office_31_alone_are_passed_over(tmp_path: Path) -> None:
    fill(tmp_path / "amazon" / "images", SMALL | dict.fromkeys(office.OTHERS, 1))
    check_split(office.TREE.find, tmp_path, "amazon", train=16, test=4)


def test_refusals(tmp_path: Path) -> None:
    check_usual_refusals(office.TREE.find, tmp_path, office.DOMAINS)
    fill(tmp_path / "webcam", SMALL | {"mug": 0})
    assert refusal(office.TREE.find, tmp_path, "dslr").endswith("\nDomains of office-caltech10 there: webcam")
    assert "images of 9 classes, expected 10; none of mug" in refusal(office.TREE.find, tmp_path, "webcam")
    fill(tmp_path / "webcam", {"mug": 1, "coffee-mug": 1})
    assert "folders coffee-mug and mug both name the class mug" in refusal(office.TREE.find, tmp_path, "webcam")
    fill(tmp_path / "dslr", SMALL | {"unicycle": 1})
    assert "/dslr/unicycle: no class of that name" in refusal(office.TREE.find, tmp_path, "dslr")
