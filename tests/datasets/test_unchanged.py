"""What a folder held is remembered as long as no folder in it has changed, and not longer."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedshift_datasets.base import Source, Split
from fedshift_datasets.io import kept_sites
from fedshift_datasets.io import looks as seen
from fedshift_datasets.io.site import Site
from fedshift_datasets.sets import folders

PIXELS = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
SOURCE_CLASSES = ("cat", "dog")


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIXELS.save(path)


def settle(root: Path) -> None:
    """Let all folders have been changed a while ago."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, ns=(0, time.time_ns() - 10 * seen.SETTLED))


@pytest.mark.parametrize("splits", [False, True])
def test_a_site_is_listed_once_until_one_of_its_folders_changes(tmp_path: Path, looks: list[str], splits: bool) -> None:
    places = [tmp_path / "home" / split for split in ("train", "test")] if splits else [tmp_path / "home"]
    for place in places:
        for number, kind in enumerate(SOURCE_CLASSES * 3):
            picture(place / kind / f"{number}.png")
    source = Source(tmp_path, classes=SOURCE_CLASSES)

    def number() -> int:
        halves: tuple[Split, Split] = ("train", "test")
        return sum(len(folders.find("home", split, source).labels) for split in halves)

    settle(tmp_path)
    assert number() == number() == 6 * len(places) and len(looks) == 1
    for own in (False, True):  # with a folder of its name, its own node sees the same
        found = folders.find_own("home", "train", source) if own else folders.find("home", "train", source)
        assert found is not None and len(looks) == 1
    changes = (
        lambda: picture(places[0] / "cat" / "new.png"),
        lambda: (places[-1] / "dog" / "1.png").unlink(),
        lambda: (places[0] / "cat" / "new.png").rename(places[0] / "dog" / "new.png"),
    )
    for change, expected in zip(changes, (1, 0, 0), strict=True):
        before = len(looks)
        change()
        assert number() == 6 * len(places) + expected and len(looks) > before
        settle(tmp_path)  # which changes times, too
        assert number() == 6 * len(places) + expected
        before = len(looks)
        assert number() and len(looks) == before


def test_a_folder_that_has_just_changed_is_looked_at_again(tmp_path: Path, looks: list[str]) -> None:
    for kind in SOURCE_CLASSES:
        for number in range(2):
            picture(tmp_path / "home" / kind / f"{number}.png")
    source = Source(tmp_path, classes=SOURCE_CLASSES)
    folders.find("home", "train", source)
    folders.find("home", "train", source)
    assert len(looks) == 2


@given(st.lists(st.sampled_from(["ask", "touch", "remove"]), max_size=8))
def test_an_answer_is_given_again_only_for_equal_times(acts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder, asked, now = Path(name) / "a", 0, 0
        folder.mkdir()
        os.utime(folder, ns=(0, 0))
        key, stale = name, True

        def look() -> Site:
            nonlocal asked
            asked += 1
            return Site("a", "classes", folders=(folder,))

        for act in acts:
            if act == "ask":
                before = asked
                kept_sites.answer(key, (), look)
                assert (asked > before) == stale
                stale = not folder.exists()
            elif act == "touch" and folder.exists():
                now += 1
                os.utime(folder, ns=(0, now))
                stale = True
            elif act == "remove" and folder.exists():
                folder.rmdir()
                stale = True


def test_no_more_answers_are_kept_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sites, "MOST", 2)
    monkeypatch.setattr(kept_sites, "_known", {})
    os.utime(tmp_path, ns=(0, 0))
    for key in (0, 1, 2, 1, 4):
        kept_sites.answer(key, (), lambda: Site("a", "classes", folders=(tmp_path,)))
    assert [name[:5] for name in kept_sites._known] == [f"({kept_sites.FORMAT}, {key}" for key in (1, 4)]
