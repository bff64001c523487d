"""Integer labels: each is a place in a list of classes that somebody stated, in the configuration or in the file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digit_files import noise
from image_trees import fill, pictures
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source
from fedshift_datasets.io import npz, trees
from fedshift_datasets.listing import Arrays
from fedshift_datasets.sets import digits, folders

CLASSES = ("benign", "cyst", "malignant")
NUMBERS = tuple(map(str, range(11)))
ALPHABET = tuple(sorted(NUMBERS))  # 0, 1, 10, 2, ...


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


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


def test_integers_next_to_class_folders_that_are_numbers_are_refused(tmp_path: Path) -> None:
    """Read by alphabet, label 2 would be class 10."""
    fill(tmp_path / "s1", dict.fromkeys(NUMBERS, 2))
    save(tmp_path, number=11)
    for call in (folders.names, folders.survey):
        message = refusal_of(DataError, call, Source(tmp_path))
        first, remedy = message.split("\n")
        assert "s2_train.npz: y holds integers, and nobody stated which classes they are" in first
        assert first.endswith("class folders here: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10")
        assert "dataset.classes=[" in remedy and "numpy.savez(FILE, x=x, y=y, classes=[" in remedy


@pytest.mark.parametrize(
    "other",
    [
        lambda root: fill(root / "s1", {"benign": 2, "malignant": 2}),
        lambda root: fill(root / "s1" / "train", {"benign": 2, "malignant": 2}),
        lambda root: save(root, "s1"),
        lambda root: save(root, "s1", classes=np.array(CLASSES)),
    ],
    ids=["class folders", "split folders", "npz alone", "npz with classes"],
)
def test_integers_need_stated_classes_in_every_mixture(tmp_path: Path, other: Callable[[Path], object]) -> None:
    other(tmp_path)
    save(tmp_path)
    assert "_train.npz: y holds integers" in refusal_of(DataError, folders.names, Source(tmp_path))
    assert "s2_train.npz: y holds integers" in refusal_of(DataError, folders.names, Source(tmp_path), ("s2",))


def test_a_run_without_the_site_of_integers_needs_no_stated_classes(tmp_path: Path) -> None:
    fill(tmp_path / "s1", {"benign": 2, "malignant": 2})
    save(tmp_path)
    assert folders.names(Source(tmp_path), ("s1",)).classes == ("benign", "malignant")


@pytest.mark.parametrize("find", [folders.find, folders.find_own])
def test_classes_that_were_read_from_folders_state_nothing(tmp_path: Path, find: Callable[..., object]) -> None:
    """Of a run whose server read them, a node's own integers mean nothing."""
    save(tmp_path)
    source = Source(tmp_path, classes=CLASSES, classes_stated=False)
    message = refusal_of(DataError, find, "s2", "train", source)
    assert "s2_train.npz: y holds integers, and nobody stated which classes they are" in message


def test_a_nodes_copy_of_the_public_set_is_read_by_the_same_rule(tmp_path: Path) -> None:
    save(tmp_path, catalog.PUBLIC)
    source = Source(tmp_path, classes=CLASSES, classes_stated=False)
    assert "public_train.npz: y holds integers" in refusal_of(DataError, catalog.load_public, "folders", source, 16)
    assert catalog.load_public("folders", replace(source, classes_stated=True), 16).y.tolist() == [0, 1, 2]


# --- they are stated -----------------------------------------------------------------------------------


def test_integers_are_places_in_stated_classes(tmp_path: Path) -> None:
    save(tmp_path)
    assert labels(tmp_path, CLASSES) == [0, 1, 2]
    assert labels(tmp_path, CLASSES[::-1]) == [0, 1, 2]
    assert folders.survey(Source(tmp_path, classes=CLASSES)).sites[0].layout == "npz"


def test_classes_called_by_numbers_must_stand_at_their_places(tmp_path: Path) -> None:
    save(tmp_path, number=11)
    assert labels(tmp_path, NUMBERS) == list(range(11))
    for classes, result in (
        (ALPHABET, "2 is the place of class '10'"),
        (NUMBERS[::-1], "0 is the place of class '10'"),
        (tuple(str(number) for number in range(1, 12)), "0 is the place of class '1'"),
        (("none", "2", "1"), "1 is the place of class '2'"),
    ):
        message = refusal_of(DataError, folders.find, "s2", "train", Source(tmp_path, classes=classes))
        assert result in message and "classes=[NAME_OF_0" in message.split("\n")[1]
        assert result in refusal_of(DataError, folders.survey, Source(tmp_path, classes=classes))


def test_labels_from_one_of_classes_from_one_are_refused(tmp_path: Path) -> None:
    """One site lacks the last class, so that no label is out of range; each would be one class off."""
    save(tmp_path, y=np.array([1, 2]), x=noise(2, 8, 8, 3))
    message = refusal_of(DataError, labels, tmp_path, ("1", "2", "3"))
    assert "0 is the place of class '1'" in message


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        (np.array([0.0, 1.0, 2.0]), "y has type float64"),
        (np.array([True, False, True]), "y has type bool"),
        (np.array(["benign", "cyst", "cyst"]), "y has type <U6"),
        (np.array([0, 1, 3]), "labels from 0 to 3, allowed are 0 to 2"),
        (np.array([-1, 1, 2]), "labels from -1 to 2, allowed are 0 to 2"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, y: Any, reason: str) -> None:
    save(tmp_path, y=y)
    assert reason in refusal_of(DataError, labels, tmp_path, CLASSES)
    assert reason in refusal_of(DataError, folders.survey, Source(tmp_path, classes=CLASSES))  # `fedshift init`


# --- the file states them --------------------------------------------------------------------------------


def test_a_file_with_classes_of_its_own_is_read_by_their_names(tmp_path: Path) -> None:
    save(tmp_path, classes=np.array(["Malignant ", "benign", "cyst"]))
    fill(tmp_path / "s1", {"benign": 2, "malignant": 2})
    assert folders.names(Source(tmp_path)).classes == CLASSES
    assert labels(tmp_path, CLASSES) == [2, 0, 1]
    assert labels(tmp_path, CLASSES, classes_stated=False) == [2, 0, 1]
    assert labels(tmp_path, CLASSES[::-1]) == [0, 2, 1]  # in one process, and with one cache


def test_numbers_in_a_files_classes_are_names(tmp_path: Path) -> None:
    fill(tmp_path / "s1", dict.fromkeys(NUMBERS, 2))
    save(tmp_path, number=11, classes=np.array(NUMBERS))
    names = folders.names(Source(tmp_path))
    assert names.classes == ALPHABET
    assert [names.classes[label] for label in labels(tmp_path, ALPHABET, classes_stated=False)] == list(NUMBERS)


def test_a_class_without_an_image_may_be_unknown_to_the_run(tmp_path: Path) -> None:
    save(tmp_path, classes=np.array([*CLASSES, "rare"]))
    assert labels(tmp_path, CLASSES) == [0, 1, 2]


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (np.array(["benign", "cyst"]), "labels from 0 to 2; its key classes has 0 to 1"),
        (np.array(["benign", "cyst", "Cyst "]), "classes has 'cyst' and 'Cyst ', which are one name"),
        (np.array(["benign", "cyst", "tumour"]), "its class 'tumour' is none of the run's: benign, cyst, malignant"),
        (np.array([0, 1, 2]), "classes has type int64 and shape (3,); allowed are text and (C,)"),
        (np.array("benign"), "classes has type <U6 and shape ()"),
        (np.array([None, "a", "b"]), "key classes: cannot be read"),
    ],
)
def test_classes_of_a_file_that_cannot_be_used_are_refused(tmp_path: Path, own: Any, reason: str) -> None:
    save(tmp_path, classes=own)
    message = refusal_of(DataError, folders.find, "s2", "train", Source(tmp_path, classes=CLASSES))
    assert reason in message and "s2_train.npz" in message and "\n" not in message


def test_a_files_classes_hold_for_any_data_set(tmp_path: Path) -> None:
    save(tmp_path, "mnist", number=10, classes=np.array([str(9 - number) for number in range(10)]))
    images = digits.find("mnist", "train", Source(tmp_path))
    assert isinstance(images, Arrays) and images.read().y.tolist() == list(range(9, -1, -1))
    images = trees.find_plain(tmp_path, "mnist", "train", digits.CLASSES)
    assert isinstance(images, Arrays) and images.read().y.tolist() == list(range(9, -1, -1))


def test_kept_images_of_plain_integers_stay_where_they_were(tmp_path: Path) -> None:
    """The fingerprint of such a file is what it was before there was a key ``classes``."""
    plain = trees.npz_arrays(save(tmp_path) / "s2_train.npz", CLASSES)
    assert plain.mark == ""
    named = trees.npz_arrays(save(tmp_path, classes=np.array(CLASSES)) / "s2_train.npz", CLASSES)
    other = trees.npz_arrays(tmp_path / "s2_train.npz", CLASSES[::-1])
    assert named.mark and named.mark != other.mark


def test_exported_files_say_what_their_labels_are(tmp_path: Path) -> None:
    from fedshift_datasets.io import files

    path = tmp_path / "s2_train.npz"
    files.write_npz(path, ImageSet(noise(2, 8, 8, 3), np.array([1, 0])), CLASSES)
    y, own = npz.labels(path)
    assert y.tolist() == [1, 0] and own is not None and tuple(own.tolist()) == CLASSES


# --- tables ----------------------------------------------------------------------------------------------


def test_numbers_in_a_table_need_stated_classes(tmp_path: Path) -> None:
    fill(tmp_path / "a", dict.fromkeys(NUMBERS, 2))
    rows = [f"a/{number}/000{k}.jpg,{number},a" for number in NUMBERS for k in range(2)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,domain", *rows]) + "\n")
    first, remedy = refusal_of(DataError, folders.names, Source(tmp_path)).split("\n")
    assert first.endswith("labels.csv line 2: label '0' is a number, and nobody stated the classes")
    assert "dataset.classes=[0,1,2,3,4,5,6,7,8,9,10]" in remedy
    for classes in (NUMBERS, ALPHABET):  # a number of a table names its class, whatever the order
        (site,) = folders.survey(Source(tmp_path, classes=classes)).sites
        assert all(classes[picture.label] == picture.path.parent.name for picture in pictures(site))


# --- groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "names"),
    [(["P1", "P1", ""], ["P1", "P1", ""]), ([7, 7, 8], ["7", "7", "8"]), (["p1 ", "P1", "nan"], ["P1", "P1", ""])],
)
def test_groups_of_images_are_read(tmp_path: Path, groups: list[Any], names: list[str]) -> None:
    """Patients, by which intervals and splits go; numbers are names too."""
    save(tmp_path, patient=np.array(groups))
    images = catalog.load("folders", "s2", "train", Source(tmp_path, classes=CLASSES), 16)
    assert images.groups is not None
    assert images.groups.tolist() == names
    again = catalog.load("folders", "s2", "train", Source(tmp_path, classes=CLASSES), 16)  # from the cache
    assert again.groups is not None


def test_groups_that_are_no_list_of_the_images_are_refused(tmp_path: Path) -> None:
    for wrong, found in ((np.array(["a", "b"]), r"shape (2,)"), (np.zeros(3), "type float64")):
        save(tmp_path, patient=wrong)
        message = refusal_of(DataError, trees.npz_arrays, tmp_path / "s2_train.npz", CLASSES)
        assert found in message
        assert "allowed are text, integers and (3,)" in message
