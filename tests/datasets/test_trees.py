"""Class folders and tars as listings, and the report of what is missing."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from hypothesis import given
from hypothesis import strategies as st
from image_trees import fill, write_tar
from numpy.typing import NDArray
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.base import ImageSet, checked
from fedshift_datasets.io import trees
from fedshift_datasets.listing import Files, Item, Listing

CLASSES = ("dog", "cat", "owl")
NAMES = [f"art/{name}/{number}.jpg" for name in ("owl", "dog", "cat") for number in (2, 10, 1)]


# --- folders


def test_folders_are_listed_by_class_and_file_name(here: Path) -> None:
    fill(here, {"Owl": 1, "dog": 2, "kitty": 1, ".thumbnails": 1, "Cow": 1})
    for name in ("dog/.hidden.jpg", "dog/notes.txt", "readme.jpg"):
        (here / name).write_bytes(b"x")
    result = trees.list_folders(Path(), CLASSES, aliases={"kitty": "cat"}, others=("cow",))
    assert result.labels.tolist() == [0, 0, 1, 2] and result.labels.dtype == np.int64
    names = ("dog/0000.jpg", "dog/0001.jpg", "kitty/0000.jpg", "Owl/0000.jpg")
    assert [item.path for item in result.items] == [str(here / name) for name in names]
    assert all(item == Item(item.path, item.path) for item in result.items)


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({"dog": 2, "cat": 0}, "1 3 cat, owl"),
        ({"dog": 1, "cat": 1, "owl": 1, "Cow": 1}, "/Cow dog, cat, owl"),
        ({"dog": 1, "cat": 1, "owl": 1, "kitty": 1}, "cat kitty"),
        ({"dog": 1, "cat": 1, "owl": 1, "DOG": 1}, "dog DOG"),
        ({}, "<class>/"),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path: Path, counts: dict[str, int], named: str) -> None:
    fill(tmp_path, counts)
    with refuses(*named.split()):
        trees.list_folders(tmp_path, CLASSES, aliases={"kitty": "cat"})
    if counts == {"dog": 2, "cat": 0}:
        assert len(trees.list_folders(tmp_path, CLASSES, complete=False)) == 2


# --- tars


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_is_listed_by_class_and_file_name(tmp_path: Path, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarfile.TarFile, "format", kind)
    path, long = tmp_path / "art.tar", f"./deep/{'x' * 90}/Art/DOG/3.jpg"  # longer than the name field of a header
    write_tar(path, [*NAMES, long, "art/dog/._1.jpg", "art/list.txt", NAMES[0]])  # the last of a name counts
    members = trees.list_tar(path, ("art",), CLASSES)
    wanted = [f"art/{name}/{number}.jpg" for name in CLASSES for number in (1, 10, 2)]
    wanted.insert(3, long)
    assert [item.name for item in members.items] == wanted
    assert members.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert max(members.items, key=lambda item: item.offset).name == NAMES[0]
    content = path.read_bytes()
    for item in members.items:
        assert item.path == str(path) and content[item.offset : item.offset + item.length].decode() == item.name


@given(keep=st.integers(0, 9 * 1024 + 511))
def test_tar_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, keep: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "art.tar"
    write_tar(path, NAMES)
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal_of(DataError, trees.list_tar, path, ("art",), CLASSES).startswith(f"{path}: ")


@pytest.mark.parametrize("size", [-1536, -512])  # back to the first header, and to its own
def test_tar_whose_member_ends_before_it_begins_is_refused(tmp_path: Path, size: int) -> None:
    """By itself, tarfile of Python up to 3.11.13 lists such a tar round and round."""
    path = tmp_path / "art.tar"
    write_tar(path, NAMES)
    content = bytearray(path.read_bytes())
    header = content[1024:1536]
    header[124:136] = b"\xff" + (size % 256**11).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[1024:1536] = header
    path.write_bytes(content)
    assert refusal_of(DataError, trees.list_tar, path, ("art",), CLASSES).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("names", "mode", "named"),
    [
        *((NAMES, f"w:{kind}", "compressed") for kind in ("gz", "bz2", "xz")),
        *(
            ([*NAMES, name], "w", f"{name} <domain>/<class>/<file>")
            for name in ("photo/dog/1.jpg", "dog/1.jpg", "art/dog/more/1.jpg", "1.jpg")
        ),
        ([*NAMES, "art/cow/1.jpg"], "w", "art/cow/1.jpg dog, cat, owl"),
        (NAMES[:6], "w", "2 3 cat"),
    ],
)
def test_tar_of_other_content_is_refused(tmp_path: Path, names: list[str], mode: str, named: str) -> None:
    write_tar(tmp_path / "art.tar", names, mode=mode)
    with refuses(tmp_path / "art.tar", *named.split()):
        trees.list_tar(tmp_path / "art.tar", ("art",), CLASSES)


def test_counts_that_differ_are_reported_by_name() -> None:
    assert trees.compared("dog", 2, 2) is None
    lines = trees.compared("dog", 180, 189), trees.compared("cat", 201, 199)
    assert lines == ("dog: 180 of 189 images, 9 missing", "cat: 201 of 199 images, 2 too many")


# --- listings -----------------------------------------------------------------------------------------------


THREE = ("/a/x/0.png", "/a/x/1.png", "/a/y/2.png")
ITEMS = tuple(Item(name, name) for name in THREE)


def test_files_are_items_that_are_made_when_they_are_asked_for() -> None:
    files = Files(THREE)
    assert len(files) == 3 and tuple(files) == ITEMS and files[-1] == ITEMS[-1]
    assert isinstance(files[1:], Files) and files[1:] == ITEMS[1:] and files[::-1] == ITEMS[::-1]
    assert files == Files(THREE) and files == ITEMS and files != Files(THREE[:2]) and files != ITEMS[:2] and files != 3
    assert ITEMS[1] in files and repr(files) == "Files(3 images)"
    with pytest.raises(IndexError):
        files[3]


def test_pieces_of_one_file_have_it_once() -> None:
    pieces = Listing([Item("/a.tar", f"{place}.png", 512 * place, 100) for place in range(3)], np.zeros(3, int))
    assert pieces.sources == ("/a.tar",)
    assert pieces.names == ("0.png", "1.png", "2.png")


X = np.zeros((4, 8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "found"),
    [
        (X, np.zeros(4, np.float32), r"labels of shape \(4,\) and type float32, expected \(4,\) and int64"),
        (X, np.zeros((4, 1), np.int64), r"labels of shape \(4, 1\) and type int64"),
        (X, np.zeros(4, np.int32), "type int32, expected"),
        (X[0], np.zeros(8, np.int64), r"images of shape \(8, 8, 3\), expected \(8, height, width, 3\)"),
    ],
)
def test_labels_and_images_of_another_type_or_shape_are_refused(x: NDArray[Any], y: NDArray[Any], found: str) -> None:
    with pytest.raises(DataError, match=found):
        checked(ImageSet(x, y), classes=2, size=8, where="there")
