"""Caches that are stale, damaged or cut off: noticed whatever files' times say, mended, and said."""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import building, cache, corrupt_files, integrity, looks, table, trees
from fedshift_datasets.listing import Arrays, Listing

CLASSES = ("cat", "dog")
PART = cache.Part("pets", "photo", "train", 64)
COUNT = 200  # images of 64 x 64: three blocks of 85, 85 and 30


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setattr(integrity, "_checked", {})
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of BMP files: of one size in bytes, whatever their pixels are."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        draw(tmp_path / "photos" / CLASSES[number % 2] / f"{number:03d}.bmp", rng)
    return tmp_path / "photos"


def draw(path: Path, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(path)


def listed(photos: Path) -> Listing:
    return trees.list_folders(photos, CLASSES)


def originals(photos: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(item.path).convert("RGB")) for item in listed(photos).items])


def load(photos: Path) -> tuple[ImageSet, int]:
    """Return the images, and how many were decoded for it."""
    finished: list[int] = []
    images = cache.load(PART, listed(photos), workers=2, progress=finished.append)
    return images, sum(finished)


def folder_of(kept: Path) -> Path:
    (folder,) = kept.glob(f"{PART.stem}-*/")
    return folder


def settle() -> None:
    """Wait until a further change of a file would leave another time."""
    time.sleep(integrity._UNSETTLED + 0.05)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- sources


def in_place(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def renamed(path: Path, other: bytes) -> None:
    other_file = path.with_suffix(".new")
    other_file.write_bytes(other)
    os.utime(other_file, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other_file.replace(path)


def switched_link(path: Path, other: bytes) -> None:
    target = path.parent.parent.parent / "elsewhere" / path.name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(other)
    os.utime(target, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.unlink()
    path.symlink_to(target)


REPLACED = [in_place, renamed, switched_link]


@pytest.mark.parametrize("replace", REPLACED)
def test_a_file_that_is_replaced_with_its_old_time_is_decoded_again(
    photos: Path, kept: Path, tmp_path: Path, replace: Callable[[Path, bytes], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = photos / "cat" / "000.bmp"
    draw(tmp_path / "other.bmp", np.random.default_rng(1))
    load(photos)
    mark, before = cache.content(PART, listed(photos)), file.stat()
    replace(file, (tmp_path / "other.bmp").read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert cache.fingerprint(listed(photos), 64) in (folder_of(kept) / cache.META_FILE).read_text()
    images, decoded = load(photos)
    assert decoded == COUNT
    assert np.array_equal(images.x, originals(photos))
    assert warnings(caplog) == [
        f"{photos}: files were replaced by others of the same sizes and times of writing; they are decoded again"
    ]
    assert cache.content(PART, listed(photos)) == cache.content_of(images) != mark
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
    (line,) = warnings(caplog)
    assert line.startswith(f"{photos}: files have other inodes or times of change") and "the same content" in line
    assert load(photos)[1] == 0 and len(warnings(caplog)) == 1  # the new inodes are known now


@pytest.mark.parametrize("one_look", [False, True])
def test_a_file_that_changes_while_it_is_decoded_is_decoded_again_the_next_time(photos: Path, one_look: bool) -> None:
    changed: list[int] = []

    def change(_: int) -> None:
        if not changed:
            changed.append(1)
            (photos / "dog" / "199.bmp").chmod(0o600)

    with looks.handed_on() if one_look else nullcontext():
        cache.load(PART, listed(photos), progress=change)
        assert load(photos)[1] == COUNT
        assert load(photos)[1] == 0
    assert load(photos)[1] == 0


def test_file_systems_whose_inodes_are_others_each_time_cost_a_look_and_a_line(
    photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load(photos)
    stamp, looks = integrity.stamp, iter(range(1000))
    monkeypatch.setattr(
        integrity, "stamp", lambda seen, inodes=True: f"{stamp(seen, inodes=inodes)}{next(looks) * inodes}"
    )
    for _ in range(2):
        images, decoded = load(photos)
        assert decoded == 0 and np.array_equal(images.x, originals(photos))
    assert len(warnings(caplog)) == 2


def test_arrays_are_looked_at_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.npy"

    def read() -> ImageSet:
        return ImageSet(np.load(file), np.zeros(3, np.int64))

    np.save(file, np.full((3, 64, 64, 3), 7, np.uint8))
    assert (cache.load(PART, Arrays((file,), read)).x == 7).all()
    before = file.stat()
    np.save(file, np.full((3, 64, 64, 3), 8, np.uint8))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (cache.load(PART, Arrays((file,), read)).x == 8).all()
    assert len(warnings(caplog)) == 1


def test_a_verdict_of_broken_images_goes_with_the_file_not_with_its_time(photos: Path) -> None:
    file, sound = photos / "cat" / "000.bmp", (photos / "cat" / "000.bmp").read_bytes()
    before = file.stat()
    file.write_bytes(bytes(len(sound)))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [verdict.place for verdict in corrupt_files.of(listed(photos))] == [0]
    file.write_bytes(sound)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert corrupt_files.of(listed(photos)) == ()


def test_a_verdict_of_broken_images_is_kept_and_not_when_it_is_damaged(
    photos: Path, kept: Path, given: list[str]
) -> None:
    file = photos / "cat" / "000.bmp"
    file.write_bytes(b"no image")
    verdict = corrupt_files.of(listed(photos))
    (note,) = kept.glob("broken-*.json")
    note.write_text(note.read_text().replace("[0]", "[1]"))  # another image
    assert corrupt_files.of(listed(photos)) == verdict
    given.clear()
    assert corrupt_files.of(listed(photos)) == verdict
    assert given == ["000.bmp"]  # no other


def test_a_table_that_is_replaced_with_its_old_time_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file,label,domain\na.png,x,s\n")
    before = path.stat()
    columns = ("file", "label", "domain")
    assert table.read(path, columns, table.labelled)[0].label == "x"
    settle()
    path.write_text("file,label,domain\na.png,y,s\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert table.read(path, columns, table.labelled)[0].label == "y"


# --- pixels


def damage(kept: Path, first: int, stop: int) -> None:
    """Set images to zero where they lie, and the file's time of writing to what it was."""
    settle()
    path = folder_of(kept) / cache.X_FILE
    before = path.stat()
    np.load(path, mmap_mode="r+")[first:stop] = 0
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("first", "stop", "blocks", "images"), [(0, 184, 3, 200), (100, 101, 1, 85), (199, 200, 1, 30)]
)
def test_damaged_blocks_are_decoded_again_alone(
    photos: Path, kept: Path, first: int, stop: int, blocks: int, images: int, caplog: pytest.LogCaptureFixture
) -> None:
    mark = cache.content(PART, listed(photos))
    mapped, _ = load(photos)
    inode = (folder_of(kept) / cache.X_FILE).stat().st_ino
    damage(kept, first, stop)
    again, decoded = load(photos)
    assert decoded == images and np.array_equal(again.x, originals(photos))
    assert warnings(caplog) == [
        f"{folder_of(kept)}: {blocks} of 3 blocks of the cached images are damaged; their {images} images are decoded "
        "again"
    ]
    assert (folder_of(kept) / cache.X_FILE).stat().st_ino == inode
    assert np.array_equal(mapped.x, originals(photos))  # who had it mapped has the right pixels again
    assert load(photos)[1] == 0 and cache.content(PART, listed(photos)) == mark


def test_blocks_that_cannot_be_what_they_were_mean_a_new_part(photos: Path, kept: Path) -> None:
    load(photos)
    meta = folder_of(kept) / cache.META_FILE
    content = json.loads(meta.read_text())
    content["blocks"][1] ^= 1
    meta.write_text(json.dumps(content))
    (folder_of(kept) / integrity.NOTE_FILE).unlink(missing_ok=True)
    integrity._checked.clear()
    images, decoded = load(photos)
    assert decoded == 85 + COUNT and np.array_equal(images.x, originals(photos))
    assert load(photos)[1] == 0


@pytest.mark.parametrize("blocks", [[1, 2], ["a", None, {}], "x", [[]] * 10_000])
def test_meta_that_is_damaged_is_no_error(photos: Path, kept: Path, blocks: object) -> None:
    load(photos)
    meta = folder_of(kept) / cache.META_FILE
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"blocks": blocks}))
    (folder_of(kept) / integrity.NOTE_FILE).unlink(missing_ok=True)
    integrity._checked.clear()
    assert np.array_equal(load(photos)[0].x, originals(photos))


def test_arrays_are_mended_from_their_file(tmp_path: Path, kept: Path) -> None:
    file, x = (
        tmp_path / "a.npz",
        np.arange(COUNT, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 64, 64, 3), np.uint8),
    )
    file.write_bytes(b"1")
    result = Arrays((file,), lambda: ImageSet(x, np.zeros(COUNT, np.int64)))
    cache.load(PART, result)
    damage(kept, 90, 120)
    finished: list[int] = []
    assert np.array_equal(cache.load(PART, result, progress=finished.append).x, x)
    assert finished == [85]


# --- what a check costs


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of files whose blocks are summed from now on."""
    seen: list[Path] = []
    sums = integrity.block_sums

    def counted(path: Path, start: int, length: int) -> list[int]:
        seen.append(path)
        return sums(path, start, length)

    monkeypatch.setattr(integrity, "block_sums", counted)
    return seen


def test_a_process_checks_once_and_others_believe_it_for_a_while(
    photos: Path, kept: Path, checks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(photos)
    settle()
    checks.clear()
    for _ in range(20):
        load(photos)
    assert len(checks) <= 1
    integrity._checked.clear()  # another process
    load(photos)
    assert len(checks) <= 1
    integrity._checked.clear()
    monkeypatch.setattr(integrity, "NOTE_SECONDS", 0.0)  # a later one
    load(photos)
    assert len(checks) <= 2 and checks


@pytest.mark.parametrize("note", ["{", "[]", '{"identity": [1, 2, 3, 4, 5], "at": 9e99}', '{"at": "x"}'])
def test_a_damaged_note_means_a_check(photos: Path, kept: Path, checks: list[Path], note: str) -> None:
    load(photos)
    settle()
    load(photos)
    integrity._checked.clear()
    checks.clear()
    (folder_of(kept) / integrity.NOTE_FILE).write_text(note)
    load(photos)
    assert len(checks) == 1


def test_who_may_not_write_there_takes_a_sound_cache(
    photos: Path, kept: Path, checks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(photos)
    (photos / "cat" / "000.bmp").chmod(0o600)  # another time of change
    integrity._checked.clear()
    (folder_of(kept) / integrity.NOTE_FILE).unlink(missing_ok=True)
    checks.clear()
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK)
    monkeypatch.setattr(cache, "_lock", lambda folder: pytest.fail("written"))
    images, decoded = load(photos)
    assert decoded == 0 and len(checks) == 1 and np.array_equal(images.x, originals(photos))


# --- builds that were killed


def _build_slowly(photos: str, kept: str) -> None:
    os.environ[cache.CACHE_DIR] = kept
    cache.load(PART, listed(Path(photos)), progress=lambda _: time.sleep(0.2))


def building_in_a_process(photos: Path, kept: Path) -> tuple[multiprocessing.process.BaseProcess, Path]:
    process = multiprocessing.get_context("fork").Process(target=_build_slowly, args=(str(photos), str(kept)))
    process.start()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        folders = list(kept.glob(f".{PART.stem}-*/"))
        if folders and (folders[0] / cache.X_FILE).exists():
            return process, folders[0]
        time.sleep(0.01)
    raise AssertionError("nothing was built")


def test_the_next_build_removes_what_a_killed_one_left(
    photos: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process, left = building_in_a_process(photos, kept)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert left.is_dir()
    assert np.array_equal(load(photos)[0].x, originals(photos))
    assert not left.exists() and list(kept.glob(".*/")) == []
    assert list(kept.glob(f"{left.name}*")) == []
    assert warnings(caplog) == [f"{left}: removed, as an interrupted build of images left it"]


def test_a_build_leaves_that_of_a_live_process_alone(photos: Path, kept: Path) -> None:
    process, live = building_in_a_process(photos, kept)
    try:
        cache.load(cache.Part("pets", "photo", "train", 16), listed(photos))
        cache.load(cache.Part("pets", "photo", "test", 64), listed(photos).select(np.arange(9)))
        assert (live / cache.X_FILE).is_file() and process.is_alive()
    finally:
        process.kill()
        process.join()


def test_only_folders_of_builds_are_removed(kept: Path) -> None:
    known = frozenset({cache.X_FILE})
    for name in (".config", ".npx-", ".a-8px-1.2", "a-8px-1", ".mine-8px-1", ".b-8px-0"):
        (kept / name).mkdir(parents=True)
    (kept / ".mine-8px-1" / "thesis.tex").write_text("x")
    (kept / ".link-8px-1").symlink_to(kept / "a-8px-1")
    building.remove_abandoned(kept, known)
    assert sorted(path.name for path in kept.iterdir()) == [
        ".a-8px-1.2", ".config", ".link-8px-1", ".mine-8px-1", ".npx-", "a-8px-1",
    ]  # fmt: skip
