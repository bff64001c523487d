"""A site's listing that is kept on disk: taken again for the same folders, and not after any change in them."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from fedshift_datasets.base import Source
from fedshift_datasets.io import cache, looks, site
from fedshift_datasets.io.site import Site
from fedshift_datasets.listing import ImageFiles, Listing
from fedshift_datasets.sets import folders

PIXELS = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
CLASSES = ("cat", "dog")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data-dir with a site of twelve images; a folder counts as settled at once."""
    monkeypatch.setattr(looks, "SETTLED", 0)
    for kind in CLASSES:
        for number in range(6):
            picture(tmp_path / "data" / "home" / kind / f"{number}.png")
    (tmp_path / "data" / "home" / "cat" / "list.csv").write_text("x")
    return tmp_path / "data"


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIXELS.save(path)


def found(home: Path, **more: object) -> ImageFiles:
    """Return the training images as another process finds them."""
    site._known.clear()
    time.sleep(0.02)  # a folder's time of change has steps
    return folders.find("home", "train", Source(home, classes=CLASSES, **more))  # type: ignore[arg-type]


def names(listing: ImageFiles) -> list[str]:
    assert isinstance(listing, Listing)
    return [item.name for item in listing.items]


def test_another_process_takes_what_was_found(home: Path, looks: Mock) -> None:
    first = found(home)
    site = folders._there("home", Source(home, classes=CLASSES), own=False)
    again = found(home)
    assert looks.call_count == 1 and names(again) == names(first) and len(names(first)) >= 8
    assert isinstance(again, Listing) and isinstance(first, Listing) and again.items == first.items
    assert np.array_equal(again.labels, first.labels) and again.groups is first.groups is None
    assert folders._there("home", Source(home, classes=CLASSES), own=False) == site  # with notes and other files
    other = found(home, test_share=0.4)
    assert looks.call_count == 2 and names(other) != names(first) == names(found(home))


def rename(home: Path) -> None:
    (home / "home" / "cat" / "0.png").rename(home / "home" / "cat" / "7.png")


def add_and_remove(home: Path) -> None:
    """As many images as before, and the folder's old time of writing, as ``rsync -a`` sets it."""
    folder = home / "home" / "cat"
    before = folder.stat().st_mtime_ns
    (folder / "0.png").unlink()
    picture(folder / "8.png")
    os.utime(folder, ns=(before, before))


def archive(home: Path) -> None:
    shutil.rmtree(home / "home")
    x, y = np.zeros((3, 4, 4, 3), np.uint8), np.zeros(3, np.int64)
    np.savez(home / "home_train.npz", x=x, y=y, classes=CLASSES)


def table(home: Path) -> None:
    (home / "labels.csv").write_text("file,label,domain\nhome/cat/0.png,dog,home\nhome/dog/0.png,cat,home\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda home: picture(home / "home" / "cat" / "new.png"),
        lambda home: (home / "home" / "dog" / "1.png").unlink(),
        lambda home: (home / "home" / "cat" / "deeper").mkdir(),
        rename, add_and_remove, archive, table,
    ],
)  # fmt: skip
def test_every_change_is_noticed(home: Path, looks: Mock, change: Callable[[Path], None]) -> None:
    found(home)
    change(home)
    now = found(home)
    assert looks.call_count == 2
    shutil.rmtree(cache.cache_dir())
    fresh = found(home)
    if isinstance(fresh, Listing):
        assert names(now) == names(fresh)
    else:
        assert not isinstance(now, Listing) and now.files == fresh.files


@pytest.mark.parametrize("content", [b"", b"{", b"fedshft1" + b"\0" * 20, b"fedshft1" + b"\xff" * 99])
def test_what_is_damaged_is_listed_again(home: Path, looks: Mock, content: bytes) -> None:
    first = names(found(home))
    (file,) = cache.cache_dir().glob("site-*.list")
    whole = file.read_bytes()
    for number, damaged in enumerate((content, whole.replace(b"0.png", b"1.png", 1), whole[:-3]), start=2):
        file.write_bytes(damaged)
        assert names(found(home)) == first and looks.call_count == number
    assert file.stat().st_mode & 0o077 == 0


def test_an_answer_is_given_again_only_for_equal_times(tmp_path: Path) -> None:
    (folder := tmp_path / "a").mkdir()
    asked: list[int] = []

    def look() -> Site:
        asked.append(1)
        return Site("a", "classes", folders=(folder,))

    def times(number: int, act: Callable[[], object]) -> None:
        act()
        for _ in range(2):
            site.answer(str(tmp_path), (), look)
        assert len(asked) == number

    times(1, lambda: os.utime(folder, ns=(0, 0)))
    times(2, lambda: os.utime(folder, ns=(0, 1)))
    times(4, folder.rmdir)
