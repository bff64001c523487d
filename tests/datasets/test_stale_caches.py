"""Caches that are stale, damaged or cut off: noticed whatever files' times say, mended, and said."""

import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from kept_photos import COUNT, PART, SIZE, draw, listed, load, originals, part_of

from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import cache, kept, looks, table
from fedshift_datasets.listing import Arrays


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


def test_arrays_are_looked_at_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.npy"
    images = Arrays((file,), lambda: ImageSet(np.load(file), np.zeros(3, np.int64)))
    for value in (7, 8):
        np.save(file, np.full((3, 48, 64, 3), value, np.uint8))
        os.utime(file, (1, 1))
        assert (cache.load(PART, images).x == np.full((3, SIZE, SIZE, 3), value)).all()
    assert len(warnings(caplog)) == 1


def test_a_table_that_is_replaced_with_its_old_time_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    for label in "xy":
        path.write_text(f"file,label,domain\na.png,{label},s\n")
        os.utime(path, (1, 1))
        assert table.read(path, ("file", "label", "domain"), table.labelled)[0].label == label
        time.sleep(kept._UNSETTLED + 0.01)  # a further change leaves another time of change


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


def _build_slowly(photos: Path) -> None:
    cache.load(PART, listed(photos), progress=lambda _: time.sleep(1))


def building_in_a_process(photos: Path) -> tuple[multiprocessing.process.BaseProcess, Path]:
    process = multiprocessing.get_context("fork").Process(target=_build_slowly, args=(photos,))
    process.start()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if builds := kept.builds():
            return process, builds[0]
        time.sleep(0.01)
    raise AssertionError("nothing was built")


def test_the_next_build_removes_what_a_killed_one_left(photos: Path, cache_home: Path) -> None:
    process, left = building_in_a_process(photos)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert left.is_file()
    cache.load(cache.Part("pets", "photo", "test", 16), listed(photos))
    assert kept.builds() == [] and not list(cache_home.glob(f"{PART.stem}-*"))


def test_only_what_is_built_is_removed(cache_home: Path) -> None:
    mark, others = "ab" * 8, {".config", ".mine/.x-1.part", "a.part", ".b.part", "c/.a-8px-0123456789abcdef.part"}
    for name in (*others, f".a-8px-{mark}.part", f"features/.net-{mark}.part", f".site-{mark * 2}.list.part"):
        (cache_home / name).parent.mkdir(parents=True, exist_ok=True)
        (cache_home / name).write_text("x")
    (cache_home / f".link-{mark}.part").symlink_to(cache_home / "a.part")
    kept.remove_abandoned()
    files = [path for path in cache_home.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert {str(path.relative_to(cache_home)) for path in files} == {*others, f".link-{mark}.part"}
