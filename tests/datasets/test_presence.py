"""What is there by name and cannot be read is named: dangling links, missing rights, pipes, pointers."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from image_trees import fill
from PIL import Image
from support import refusal_of

from fedshift.export import images as predicted
from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import PLAIN, Source
from fedshift_datasets.io import corrupt_files, decode, files, presence, table, trees
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.sets import folders

CLASSES = ("x", "y")
ANNEX = "../../.git/annex/objects/Xk/9q/MD5E-s12--abc.png/MD5E-s12--abc.png"
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data-dir of two sites with ten readable images of each class."""
    for site in ("a", "b"):
        for kind in CLASSES:
            (tmp_path / site / kind).mkdir(parents=True)
            for number in range(10):
                Image.new("RGB", (16, 16), (number, 9, 9)).save(tmp_path / site / kind / f"{number}.png")
    return tmp_path


def source(root: Path, **more: object) -> Source:
    return replace(Source(root, classes=CLASSES), **more)  # type: ignore[arg-type]


def to_link(path: Path, target: str = ANNEX) -> None:
    """Put a link that leads nowhere in the place of a file."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@contextmanager
def as_nobody(root: Path) -> Iterator[None]:
    """Go on without a superuser's rights, which pass over those of files."""
    if os.geteuid():
        yield
        return
    closed = [folder for folder in root.parents if not folder.stat().st_mode & 1]
    if not all(folder.name.startswith(("pytest-", "test_")) for folder in closed):
        pytest.skip("another user cannot come to this folder")
    for folder in (root, *closed):
        folder.chmod(0o711 if folder in closed else 0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder in closed:
            folder.chmod(0o700)


@pytest.mark.parametrize(
    ("away", "reason"),
    [
        (to_link, "a link to ../../.git/annex/objects"),
        (lambda path: to_link(path, "gone.png"), "a link to gone.png, which is not there: bring its content"),
        (lambda path: to_link(path, path.name), "which is not there"),
        (to_pipe, "a named pipe, not a file"),
        (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x\n"), "git lfs pull"),
        (lambda path: path.write_bytes(b"/annex/objects/MD5E-s12--abc.png\n"), "git annex get"),
        (lambda path: path.write_bytes(ANNEX.encode()), "git annex get"),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_an_image_that_is_away_is_named(root: Path, away: Callable[[Path], None], reason: str, *, own: bool) -> None:
    path = root / "a" / "x" / "3.png"
    away(path)
    load = catalog.load_own if own else catalog.load
    split = next(s for s in ("train", "test") if _holds(root, s, path))
    result = refusal_of(DataError, load, "folders", "a", split, source(root), 16)
    assert result.startswith(str(path)) and reason in result, result
    without = source(root, skip_broken=True)
    both = [load("folders", "a", s, without, 16) for s in ("train", "test")]
    assert sum(map(len, both)) == 19
    if not own:
        (bad,) = catalog.skipped("folders", "a", split, without)
        assert bad.name == str(path) and reason in bad.reason


def _holds(root: Path, split: object, path: Path) -> bool:
    images = folders.find("a", split, source(root))  # type: ignore[arg-type]
    assert isinstance(images, Listing)
    return path in {item.path for item in images.items}


def test_the_split_does_not_change_with_what_is_away(root: Path) -> None:
    before = {path for path in (root / "a").rglob("*.png") if _holds(root, "test", path)}
    for path in (root / "a" / "y").iterdir():
        to_link(path)
    assert {path for path in (root / "a").rglob("*.png") if _holds(root, "test", path)} == before


def test_content_that_comes_back_is_taken_at_once(root: Path) -> None:
    path = root / "a" / "x" / "3.png"
    kept = path.read_bytes()
    to_link(path)
    listing = Listing((Item(path, str(path)), Item(root / "a" / "x" / "4.png", "4")), np.zeros(2, np.int64))
    assert [one.place for one in corrupt_files.of(listing)] == [0]
    path.unlink()
    path.write_bytes(kept)
    assert corrupt_files.of(listing) == ()


def rights(path: Path) -> None:
    path.chmod(0)


@pytest.mark.parametrize(
    ("place", "mess"),
    [
        ("a/x", to_link), ("a", to_link), ("a/x", rights), ("a", rights), ("a/x", to_pipe),
        ("labels.csv", to_link), ("a_train.npz", to_link),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [False, True])
def test_a_folder_or_table_that_is_away_is_named(
    root: Path, place: str, mess: Callable[[Path], None], *, own: bool
) -> None:
    path = root / place
    if mess is not rights and path.is_dir():
        path.rename(root.parent / f"{root.name}-moved")
        path.touch()
    mess(path)
    site = place[0] if place[0] in "ab" and "/" in place else "a"
    load = catalog.load_own if own else catalog.load

    def everything() -> None:
        for split in ("train", "test"):
            load("folders", site, split, source(root), 16)  # type: ignore[arg-type]

    with as_nobody(root):
        result = refusal_of(DataError, everything)
    path.chmod(0o700) if mess is rights else None
    assert str(path) in result and "cannot be read (" in result, result
    assert "\n" not in result


def test_an_image_without_rights_is_named(root: Path) -> None:
    path = root / "a" / "x" / "3.png"
    rights(path)
    with as_nobody(root), pytest.raises(DataError) as caught, files.reading(path):
        decode.encoded(Item(path, str(path)))  # here: a decoding process of before has the rights of its start
    assert str(caught.value) == f"{path}: cannot be read (this user may not read the file: change its rights)"


@pytest.mark.parametrize("place", ["a/x", "a"])
def test_init_does_not_pass_over_a_link_that_leads_nowhere(root: Path, place: str) -> None:
    (root / place).rename(root.parent / f"{root.name}-moved")
    to_link(root / place, "/mnt/other")
    result = refusal_of(DataError, folders.survey, Source(root))
    assert result.startswith(f"{root / place}: cannot be read (a link to /mnt/other, which is not there")


def test_a_test_folder_that_is_away_is_no_missing_split(tmp_path: Path) -> None:
    fill(tmp_path / "a" / "train", {"x": 3, "y": 3})
    to_link(tmp_path / "a" / "test", "/mnt/other")
    result = refusal_of(DataError, catalog.has_own, "folders", "a", "test", source(tmp_path))
    assert f"{tmp_path / 'a' / 'test'}: cannot be read" in result
    result = refusal_of(DataError, trees.find_plain, tmp_path, "a", "test", CLASSES)
    assert "cannot be read" in result


def test_a_row_whose_file_is_away_is_named(root: Path) -> None:
    rows = [f"{path.relative_to(root)},{path.parent.name},{path.parts[-3]}" for path in sorted(root.rglob("*.png"))]
    (root / "labels.csv").write_text("\n".join(["file,label,domain", *rows]))
    to_link(root / "a" / "x" / "3.png")
    without = source(root, skip_broken=True)
    assert sum(len(catalog.load("folders", "a", s, without, 16, PLAIN)) for s in ("train", "test")) == 19
    (root / "b" / "x").rename(root.parent / f"{root.name}-moved")
    to_link(root / "b" / "x", "/mnt/other")
    result = refusal_of(DataError, folders.find, "b", "train", source(root))
    assert f"{root / 'b' / 'x'} is a link to /mnt/other" in result


def test_other_data_sets_name_it_too(tmp_path: Path) -> None:
    fill(tmp_path, {"x": 3, "y": 3})
    to_link(tmp_path / "x" / "link.jpg")
    assert len(trees.list_folders(tmp_path, CLASSES)) == 7
    to_link(tmp_path / "README")  # means nothing
    assert len(trees.list_folders(tmp_path, CLASSES)) == 7
    to_link(tmp_path / "z", "/mnt/other")
    assert "z: cannot be read" in refusal_of(DataError, trees.list_folders, tmp_path, CLASSES)


def test_a_data_dir_that_is_away_is_named(tmp_path: Path) -> None:
    to_link(tmp_path / "data", "/mnt/other")
    result = refusal_of(DataError, folders.names, source(tmp_path / "data"))
    assert "a link to /mnt/other, which is not there" in result


def test_predict_names_what_is_away(root: Path) -> None:
    to_link(root / "a" / "x" / "3.png")
    (root / "shelf").mkdir()
    (root / "b" / "x").rename(root / "shelf" / "x")
    (root / "b" / "x").symlink_to(root / "shelf" / "x")  # a link to a folder is followed
    result, _ = predicted.find([root / "a", root / "b"], CLASSES)
    assert len(result) == 40
    bad: list[str] = []
    assert sum(len(batch) for batch in predicted.batches(result, 16, PLAIN, 8, 1, bad)) == 39
    assert len(bad) == 1 and "git annex get" in bad[0]
    to_link(root / "b" / "y" / "more", "/mnt/other")
    assert "b/y/more: cannot be read" in refusal_of(DataError, predicted.find, [root / "b"], CLASSES)


def test_a_reason_is_empty_where_nothing_is_wrong(root: Path) -> None:
    assert presence.reason(root) == presence.reason(root / "a" / "x" / "3.png") == ""
    assert presence.reason(root / "nothing" / "here") == ""


def test_a_domain_of_another_data_set_that_is_away_is_named(tmp_path: Path) -> None:
    to_link(tmp_path / "photo", "/mnt/other")
    result = refusal_of(DataError, catalog.load, "pacs", "photo", "train", Source(tmp_path))
    assert f"{tmp_path / 'photo'}: cannot be read (a link to /mnt/other" in result


def test_a_file_that_a_published_table_names_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "there.png")
    to_link(tmp_path / "away.png")
    rows = [table.Row(2 + place, name, "x", "a", "train") for place, name in enumerate(("there.png", "away.png"))]
    listing = table.listing(tmp_path / "t.csv", rows, "a", "train", tmp_path, CLASSES)
    (bad,) = corrupt_files.of(listing)
    assert bad.name.endswith("away.png") and "git annex get" in bad.reason
    absent = [table.Row(2, "none.png", "x", "a", "train")]
    assert "line 2: no file" in refusal_of(
        DataError, table.listing, tmp_path / "t.csv", absent, "a", "train", tmp_path, CLASSES
    )


def test_predict_names_a_link_that_is_given(tmp_path: Path) -> None:
    to_link(tmp_path / "a.png")
    assert "git annex get" in refusal_of(DataError, predicted.find, [tmp_path / "a.png"], CLASSES)
