"""The cache of decoded images: decoded once, shared, and never trusted when it is not what it should be."""

import hashlib
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from data_refusals import refuses
from kept_photos import COUNT, PART, SIZE, draw, listed, load, originals, part_of
from support import ROOT, SmallDisk

from fedshift_core import private_files
from fedshift_datasets.io import cache, kept, looks


def parts(cache_home: Path) -> list[Path]:
    return sorted(cache_home.glob("[!.]*"))


def test_images_are_decoded_once_and_are_the_files_pixels(photos: Path) -> None:
    first, decoded = load(photos)
    assert decoded == 10
    assert np.array_equal(first.x, originals(photos))
    assert first.y.tolist() == [0] * 5 + [1] * 5
    again, decoded = load(photos)
    assert decoded == 0
    assert isinstance(again.x, np.memmap) and np.array_equal(again.x, first.x)
    with pytest.raises(ValueError, match="read-only"):
        again.x[:] = 0


@pytest.mark.parametrize(
    "change",
    [
        lambda file: os.utime(file, (1, 1)),
        lambda file: (draw(file, 99), os.utime(file, (2, 2))),
        lambda file: shutil.copy(file, file.with_name("x.bmp")),
        Path.unlink,
    ],
)
def test_a_changed_source_is_decoded_anew_and_the_old_part_is_removed(
    photos: Path, cache_home: Path, change: Callable[[Path], object]
) -> None:
    load(photos)
    change(photos / "cat" / "0.bmp")
    images, decoded = load(photos)
    assert decoded == len(images) > 0
    assert np.array_equal(images.x, originals(photos))
    part_of(cache_home)  # one part, not two


@pytest.mark.parametrize("damage", ["half", "empty", "head", "pixels", "labels", "fingerprint", "foreign", "more"])
def test_a_damaged_or_foreign_part_is_noticed_and_decoded_again(
    photos: Path, cache_home: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(photos)
    part = part_of(cache_home)
    raw, (pixels, facts, *_) = bytearray(part.read_bytes()), kept.read(part).chunks
    places = {"head": 0, "pixels": pixels.start + 100, "labels": pixels.end - 1, "fingerprint": facts.start - 90}
    if damage in places:
        raw[places[damage]] ^= 255
    changed = {"half": raw[: len(raw) // 2], "empty": b"", "foreign": b"x" * len(raw), "more": raw + b"x"}
    before = part.stat()
    part.write_bytes(changed.get(damage, raw))
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    images, decoded = load(photos)
    assert decoded == (0 if damage == "more" else 10)  # what was to be added and is cut off is in nobody's way
    assert np.array_equal(images.x, originals(photos))
    assert (str(part) in caplog.text) == (damage not in ("more", "empty"))
    assert load(photos)[1] == 0


def test_what_an_earlier_version_kept_is_decoded_once_more_with_a_line(
    photos: Path, cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = [cache_home / f"{PART.stem}-{'ab' * 8}", cache_home / f".{PART.stem}-{'ab' * 6}"]
    other = cache_home / f"{PART.stem}-thesis"
    for path in (*earlier, other):
        path.mkdir(parents=True)
        (path / "x.npy").write_bytes(b"x")
    assert load(photos)[1] == 10 and load(photos)[1] == 0
    assert not any(path.exists() for path in earlier) and other.exists()
    (line,) = caplog.messages
    assert str(cache_home) in line


def test_what_cannot_be_kept_is_named_and_leaves_nothing(
    photos: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    with patch.object(os, "posix_fallocate", side_effect=full), refuses(cache_home, "No space left", "FEDSHIFT_CACHE"):
        load(photos)
    with monkeypatch.context() as there, refuses("below", "FEDSHIFT_CACHE"):
        there.setenv(cache.CACHE_DIR, str(photos / "cat" / "0.bmp" / "below"))
        load(photos)
    (photos / "cat" / "2.bmp").write_bytes(b"no image")
    with refuses("cat/2.bmp"):
        load(photos)
    assert [path.name for path in cache_home.iterdir() if path.suffix != ".lock"] == []


def test_a_disk_that_is_full_kills_no_process(photos: Path, small_disk: SmallDisk) -> None:
    """A memory-mapped page without room for it would: SIGBUS."""
    small_disk.size("1m")  # ten images of 196 kB
    code = (
        "import sys; from pathlib import Path; from fedshift_datasets.io import cache, trees; "
        "cache.load(cache.Part('pets', 'photo', 'train', 256), trees.list_folders(Path(sys.argv[1]), ('cat', 'dog')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(photos)], capture_output=True, text=True, check=False,
        env=os.environ | {cache.CACHE_DIR: str(small_disk.path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "DataError" in ended.stderr.splitlines()[-1]
    assert [path.name for path in small_disk.path.iterdir() if not path.name.endswith(".lock")] == []


def decoded(photos: Path) -> int:
    return load(photos)[1]


def test_of_several_processes_one_decodes_and_the_others_wait(photos: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert sorted(pool.map(decoded, [photos] * 3)) == [0, 0, 10]


def rights(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_reads_decoded_images_whatever_the_umask(cache_home: Path, photos: Path, umask: int) -> None:
    seen: list[int] = []
    before = os.umask(umask)
    try:
        cache.load(PART, listed(photos), progress=lambda _: seen.extend(map(rights, cache_home.iterdir())))
        cache.content(PART, listed(photos))  # of the kept copy
    finally:
        os.umask(before)
    assert seen == [0o600] * 2  # what is built, and its lock
    assert rights(cache_home) == 0o700
    assert sorted(map(rights, cache_home.rglob("*"))) == [0o600] * 2  # the part, and its lock
    cache_home.chmod(0o755)
    (photos / "cat" / "0.bmp").unlink()
    load(photos)
    modes = rights(cache_home), rights(part_of(cache_home))
    assert modes == (0o755, 0o600)  # a folder that is there keeps its rights


def test_the_fingerprint_of_plain_images_says_nothing_of_forms(photos: Path) -> None:
    """What decides where a part lies, written down: another format means that all parts are decoded once more."""
    lines = listed(photos)
    assert PART.stem == "pets-photo-train-64px"
    digest = hashlib.sha256(f"5 {SIZE} {len(lines)}\n".encode())
    digest.update("\0".join(item.name for item in lines.items).encode())
    stats = [Path(item.path).stat() for item in lines.items]
    digest.update(np.array([(stat.st_size, stat.st_mtime_ns) for stat in stats], np.int64).tobytes())
    digest.update(lines.labels.tobytes())
    assert cache.fingerprint(lines, SIZE) == digest.hexdigest()


def test_a_part_that_a_process_works_on_is_not_deleted(photos: Path, cache_home: Path) -> None:
    load(photos)
    with private_files.locked(kept.lock_of(part_of(cache_home))):
        shutil.copy(photos / "cat" / "0.bmp", photos / "cat" / "x.bmp")
        load(photos)
    assert len(parts(cache_home)) == 2


# --- stale caches -------------------------------------------------------------------------------------------


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
