"""What is there by name and cannot be read is named: dangling links, missing rights, pipes, pointers."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import noise_sites

from fedshift.export import images as predicted
from fedshift_datasets import catalog
from fedshift_datasets.base import PLAIN, Source
from fedshift_datasets.io import decode, presence
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.sets import folders

CLASSES = ("x", "y")
ANNEX = "../../.git/annex/objects/Xk/9q/MD5E-s12--abc.png/MD5E-s12--abc.png"
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data-dir of two sites with ten readable images of each class."""
    noise_sites(tmp_path, 10)
    for site in ("a", "b"):
        for old, new in zip(("cat", "dog"), CLASSES, strict=True):
            (tmp_path / site / old).rename(tmp_path / site / new)
    return tmp_path


source = partial(Source, classes=CLASSES)


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
    ("away", "named"),
    [
        (to_link, "../../.git/annex/objects"),
        (lambda path: to_link(path, "gone.png"), "gone.png"),
        (lambda path: to_link(path, path.name), "not there"),
        (to_pipe, "pipe"),
        (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x\n"), "git lfs pull"),
        (lambda path: path.write_bytes(b"/annex/objects/MD5E-s12--abc.png\n"), "git annex get"),
        (lambda path: path.write_bytes(ANNEX.encode()), "git annex get"),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_an_image_that_is_away_is_named(root: Path, away: Callable[[Path], None], named: str, *, own: bool) -> None:
    path = root / "a" / "x" / "3.png"
    away(path)
    load = catalog.load_own if own else catalog.load
    split = next(s for s in ("train", "test") if _holds(root, s, path))
    with refuses(path, named):
        load("folders", "a", split, source(root), 16)
    without = source(root, skip_broken=True)
    assert sum(len(load("folders", "a", s, without, 16)) for s in ("train", "test")) == 19
    if not own:
        (bad,) = catalog.skipped("folders", "a", split, without)
        assert bad.name == str(path) and named in bad.reason


def _holds(root: Path, split: object, path: Path) -> bool:
    images = folders.find("a", split, source(root))  # type: ignore[arg-type]
    assert isinstance(images, Listing)
    return str(path) in {item.path for item in images.items}


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
    load = catalog.load_own if own else catalog.load
    with as_nobody(root), refuses(path, "cannot be read (", worded=False):
        for split in ("train", "test"):
            load("folders", "a", split, source(root), 16)  # type: ignore[arg-type]
    if mess is rights:
        path.chmod(0o700)
    elif place.startswith("a"):
        with refuses(path, worded=False):  # `fedshift init`
            folders.survey(Source(root))


def test_an_image_without_rights_is_named(root: Path) -> None:
    path = root / "a" / "x" / "3.png"
    rights(path)
    with as_nobody(root), refuses(path, "change its rights", worded=False), presence.reading(path):
        decode.encoded(Item(str(path), str(path)))  # here: a decoding process of before has the rights of its start


def test_predict_names_what_is_away(root: Path) -> None:
    to_link(root / "a" / "x" / "3.png")
    (root / "shelf").mkdir()
    (root / "b" / "x").rename(root / "shelf" / "x")
    (root / "b" / "x").symlink_to(root / "shelf" / "x")  # a link to a folder is followed
    result, _ = predicted.find([root / "a", root / "b"], CLASSES)
    bad: list[str] = []
    assert sum(len(batch) for batch in predicted.batches(result, 16, PLAIN, 8, 1, bad)) == len(result) - 1 == 39
    assert len(bad) == 1 and "git annex get" in bad[0]
    to_link(root / "b" / "y" / "more", "/mnt/other")
    with refuses("b/y/more"):
        predicted.find([root / "b"], CLASSES)
    with refuses("git annex get"):
        predicted.find([root / "a" / "x" / "3.png"], CLASSES)
