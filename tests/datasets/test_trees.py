"""Class folders and tars as listings, and the report of what is missing."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_trees import fill, write_tar

from fedshift_core.errors import DataError
from fedshift_datasets.io import trees
from fedshift_datasets.listing import Item, Listing

CLASSES = ("dog", "cat", "owl")
NAMES = [f"art/{name}/{number}.jpg" for name in ("owl", "dog", "cat") for number in (2, 10, 1)]


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        trees.list_tar(path, ("art",), CLASSES)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    return str(caught.value)


# --- folders


def test_folders_are_listed_by_class_and_file_name(tmp_path: Path) -> None:
    fill(tmp_path, {"Owl": 1, "dog": 2, "kitty": 1})
    (tmp_path / "dog" / ".hidden.jpg").write_bytes(b"x")
    (tmp_path / "dog" / "notes.txt").write_bytes(b"x")
    (tmp_path / "readme.jpg").write_bytes(b"x")
    result = trees.list_folders(tmp_path, CLASSES, aliases={"kitty": "cat"})
    assert result.labels.tolist() == [0, 0, 1, 2] and result.labels.dtype == np.int64
    assert [item.path.relative_to(tmp_path).as_posix() for item in result.items] == [
        "dog/0000.jpg",
        "dog/0001.jpg",
        "kitty/0000.jpg",
        "Owl/0000.jpg",
    ]
    assert all(item == Item(item.path, str(item.path)) for item in result.items)


def test_folders_of_a_relative_path_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, dict.fromkeys(CLASSES, 1))
    monkeypatch.chdir(tmp_path)
    assert all(item.path.is_absolute() for item in trees.list_folders(Path(), CLASSES).items)


def test_empty_class_is_refused_unless_allowed(tmp_path: Path) -> None:
    fill(tmp_path, {"dog": 2, "cat": 0})
    with pytest.raises(DataError, match=r"images of 1 class, expected 3; none of cat, owl in <class>/$"):
        trees.list_folders(tmp_path, CLASSES)
    assert len(trees.list_folders(tmp_path, CLASSES, complete=False)) == 2


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    for complete in (True, False):
        with pytest.raises(DataError, match="no images found; expected <class>/"):
            trees.list_folders(tmp_path, CLASSES, complete=complete)


def test_unknown_class_is_refused_unless_it_is_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys((*CLASSES, "Cow"), 1))
    with pytest.raises(DataError, match="/Cow: no class of that name; allowed are dog, cat, owl"):
        trees.list_folders(tmp_path, CLASSES)
    assert len(trees.list_folders(tmp_path, CLASSES, others=("cow",))) == 3


def test_two_folders_of_one_class_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys((*CLASSES, "kitty"), 1))
    with pytest.raises(DataError, match="folders cat and kitty both name the class cat"):
        trees.list_folders(tmp_path, CLASSES, aliases={"kitty": "cat"})


# --- tars


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_is_listed_by_class_and_file_name(tmp_path: Path, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarfile.TarFile, "format", kind)
    path = tmp_path / "art.tar"
    long = f"./deep/{'x' * 90}/Art/DOG/3.jpg"  # longer than the name field of a header
    write_tar(path, [*NAMES, long, "art/dog/._1.jpg", "art/list.txt"])
    members = trees.list_tar(path, ("art",), CLASSES)
    wanted = [f"art/{name}/{number}.jpg" for name in CLASSES for number in (1, 10, 2)]
    wanted.insert(3, long)
    content = path.read_bytes()
    assert [item.name for item in members.items] == wanted
    assert members.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    for item in members.items:
        assert item.path == path and content[item.offset : item.offset + item.length].decode() == item.name


def test_later_member_of_the_same_name_counts(tmp_path: Path) -> None:
    write_tar(tmp_path / "art.tar", [*NAMES, NAMES[0]])
    members = trees.list_tar(tmp_path / "art.tar", ("art",), CLASSES)
    assert len(members) == len(NAMES)
    last = max(members.items, key=lambda item: item.offset)
    assert last.name == NAMES[0]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_tar_is_refused(tmp_path: Path, kind: str) -> None:
    write_tar(tmp_path / "art.tar", NAMES, mode=f"w:{kind}")
    assert "compressed with " in refused(tmp_path / "art.tar")


@given(keep=st.integers(0, 9 * 1024 + 511))
def test_tar_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, keep: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "art.tar"
    write_tar(path, NAMES)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path)


def test_tar_damaged_inside_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "art.tar"
    write_tar(path, NAMES)
    content = bytearray(path.read_bytes())
    content[4 * 1024 + 20] ^= 255  # the header of the fifth member
    path.write_bytes(content)
    assert refused(path).endswith("cut short or damaged after 4 members")


def test_tar_whose_member_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    """By itself, tarfile of Python up to 3.11.13 lists such a tar round and round."""
    path = tmp_path / "art.tar"
    write_tar(path, NAMES)
    content = bytearray(path.read_bytes())
    for size in (-1536, -512):  # back to the first header, and to its own
        header = content[1024:1536]
        header[124:136] = b"\xff" + (size % 256**11).to_bytes(11, "big")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        content[1024:1536] = header
        path.write_bytes(content)
        message = refused(path)
        assert message.endswith("damaged after 1 member") or "cannot be read" in message


@pytest.mark.parametrize("content", [b"", b"not a tar", bytes(10240), bytes(range(256)) * 40])
def test_other_files_called_tar_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "art.tar").write_bytes(content)
    refused(tmp_path / "art.tar")


@pytest.mark.parametrize("name", ["photo/dog/1.jpg", "dog/1.jpg", "art/dog/more/1.jpg", "1.jpg"])
def test_member_out_of_place_is_refused(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "art.tar", [*NAMES, name])
    assert f"member {name}; allowed are <domain>/<class>/<file>" in refused(tmp_path / "art.tar")


def test_member_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "art.tar", [*NAMES, "art/cow/1.jpg"])
    assert "member art/cow/1.jpg is of no class; allowed are dog, cat, owl" in refused(tmp_path / "art.tar")


def test_tar_with_an_empty_class_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "art.tar", NAMES[:6])
    assert "images of 2 classes, expected 3; none of cat" in refused(tmp_path / "art.tar")


# --- counts and splits


def test_counts_that_agree_need_no_report() -> None:
    assert trees.compare_counts({"dog": 2, "cat": 1}, {"dog": 2, "cat": 1}) is None
    assert trees.compare_counts({"dog": 2, "cow": 9}, {"dog": 2}) is None


def test_counts_that_differ_are_reported_by_name() -> None:
    report = trees.compare_counts({"dog": 180, "cat": 201, "owl": 5}, {"dog": 189, "cat": 199, "owl": 5, "cow": 3})
    assert (
        report == "dog: 180 of 189 images, 9 missing; cat: 201 of 199 images, 2 too many; cow: 0 of 3 images, 3 missing"
    )


def test_class_counts_name_every_class() -> None:
    assert trees.class_counts(np.array([0, 2, 2]), CLASSES) == {"dog": 1, "cat": 0, "owl": 2}


@given(count=st.integers(0, 200))
def test_split_by_tens_takes_the_last_two_of_every_ten(count: int) -> None:
    whole = Listing(tuple(Item(Path(str(i)), str(i)) for i in range(count)), np.arange(count))
    parts = {split: trees.split_by_tens(whole, split).labels.tolist() for split in ("train", "test")}
    assert parts["test"] == [i for i in range(count) if i % 10 in (8, 9)]
    assert sorted(parts["train"] + parts["test"]) == list(range(count))


def test_places_are_found_along_optional_folders_of_any_case(tmp_path: Path) -> None:
    for name in ("pacs/KFOLD", "kfold", "other/kfold"):
        (tmp_path / name).mkdir(parents=True)
    result = trees.places(tmp_path, ("pacs",), ("kfold",))
    assert [path.relative_to(tmp_path).as_posix() for path in result] == [".", "pacs", "kfold", "pacs/KFOLD"]
