"""Caches that are stale, damaged or cut off: noticed whatever files' times say, mended, and said."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from kept_photos import COUNT, PART, draw, listed, load, originals, part_of

from fedshift_datasets.io import cache, kept, looks


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_checked", {})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- sources


def renamed(path: Path, other: bytes) -> None:
    path.with_suffix(".new").write_bytes(other)
    path.with_suffix(".new").replace(path)


def switched_link(path: Path, other: bytes) -> None:
    target = path.parent.parent.parent / "elsewhere.bmp"
    target.write_bytes(other)
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("replace", [Path.write_bytes, renamed, switched_link])
def test_a_file_that_is_replaced_with_its_old_time_is_decoded_again(
    photos: Path,
    cache_home: Path,
    tmp_path: Path,
    replace: Callable[[Path, bytes], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = photos / "cat" / "0.bmp"
    draw(tmp_path / "other.bmp", 99)
    load(photos)
    mark, before = cache.content(PART, listed(photos)), file.stat()
    replace(file, (tmp_path / "other.bmp").read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.fingerprint(listed(photos), 64) == kept.read(part_of(cache_home)).about["fingerprint"]
    images, decoded = load(photos)
    assert decoded == COUNT
    assert np.array_equal(images.x, originals(photos))
    (line,) = warnings(caplog)
    assert str(photos) in line
    assert cache.content(PART, listed(photos)) == kept.digest(images.x.shape, [images.x, images.y]) != mark
    assert load(photos)[1] == 0


def test_copies_with_their_times_are_taken_after_a_look_at_their_content(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(photos)
    shutil.copytree(photos, photos.with_name("copy"))  # as cp -a: inodes and times of change are others
    shutil.rmtree(photos)
    photos.with_name("copy").rename(photos)
    images, decoded = load(photos)
    assert decoded == 0 and np.array_equal(images.x, originals(photos))
    assert load(photos)[1] == 0 and len(warnings(caplog)) == 1  # the new inodes are known now


@pytest.mark.parametrize("one_look", [False, True])
def test_a_file_that_changes_while_it_is_decoded_is_decoded_again_the_next_time(photos: Path, one_look: bool) -> None:
    changed: list[int] = []

    def change(_: int) -> None:
        if not changed:
            changed.append(1)
            (photos / "dog" / "9.bmp").chmod(0o600)

    with looks.handed_on() if one_look else nullcontext():
        cache.load(PART, listed(photos), progress=change)
        assert load(photos)[1] == COUNT
        assert load(photos)[1] == 0
    assert load(photos)[1] == 0


# --- what a check costs


@pytest.fixture
def checks() -> Iterator[list[tuple[int, ...]]]:
    """Return the list of shapes of arrays whose digests are compared from now on."""
    seen: list[tuple[int, ...]] = []
    digest = kept.digest
    with patch.object(kept, "digest", lambda shape, pieces: (seen.append(tuple(shape)), digest(shape, pieces))[1]):
        yield seen


@pytest.mark.parametrize("note", ["{", "[1, 2, 3, 4, 5]", '{"at": "x"}', ""])
def test_a_damaged_note_means_a_check(photos: Path, cache_home: Path, checks: list[tuple[int, ...]], note: str) -> None:
    load(photos)
    kept._checked.clear()
    checks.clear()
    kept.lock_of(part_of(cache_home)).write_text(note)
    load(photos)
    assert checks.count((COUNT, 64, 64, 3)) == 1


def test_who_may_not_write_there_takes_a_sound_cache(
    photos: Path, cache_home: Path, checks: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(photos)
    (photos / "cat" / "0.bmp").chmod(0o600)  # another time of change
    kept._checked.clear()
    kept.lock_of(part_of(cache_home)).unlink()
    checks.clear()
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK)
    monkeypatch.setattr(cache, "writing", lambda path: pytest.fail("written"))
    images, decoded = load(photos)
    assert decoded == 0 and checks.count((COUNT, 64, 64, 3)) == 1 and np.array_equal(images.x, originals(photos))


# --- builds that were killed


def test_only_what_is_built_is_removed(cache_home: Path) -> None:
    mark, others = "ab" * 8, {".config", ".mine/.x-1.part", "a.part", ".b.part", "c/.a-8px-0123456789abcdef.part"}
    for name in (*others, f".a-8px-{mark}.part", f"features/.net-{mark}.part", f".site-{mark * 2}.list.part"):
        (cache_home / name).parent.mkdir(parents=True, exist_ok=True)
        (cache_home / name).write_text("x")
    (cache_home / f".link-{mark}.part").symlink_to(cache_home / "a.part")
    kept.remove_abandoned()
    files = [path for path in cache_home.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert {str(path.relative_to(cache_home)) for path in files} == {*others, f".link-{mark}.part"}
