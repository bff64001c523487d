"""The cache of decoded images: decoded once, shared, and never trusted when it is not what it should be."""

import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import ROOT, SmallDisk

from fedshift_core import private_files
from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import Form, ImageSet, Source
from fedshift_datasets.io import cache, kept, trees
from fedshift_datasets.listing import Arrays, Listing

CLASSES = ("cat", "dog")
PART = cache.Part("pets", "photo", "train", 8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(10):
        folder = tmp_path / "photos" / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


def listed(photos: Path) -> Listing:
    return trees.list_folders(photos, CLASSES)


def originals(photos: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(item.path).convert("RGB")) for item in listed(photos).items])


class Counter:
    """Counts decoded images."""

    def __init__(self) -> None:
        self.decoded = 0

    def __call__(self, finished: int) -> None:
        self.decoded += finished


def load(photos: Path) -> tuple[ImageSet, int]:
    counter = Counter()
    return cache.load(PART, listed(photos), workers=2, progress=counter), counter.decoded


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*"))


def part_of(folder: Path) -> Path:
    (part,) = parts(folder)
    return part


def digest_of(images: ImageSet) -> str:
    return kept.digest(images.x.shape, [images.x.tobytes(), images.y.tobytes()])


def test_images_are_decoded_once_and_are_the_files_pixels(photos: Path) -> None:
    first, decoded = load(photos)
    assert decoded == 10
    assert np.array_equal(first.x, originals(photos))
    assert first.y.tolist() == [0] * 5 + [1] * 5
    again, decoded = load(photos)
    assert decoded == 0
    assert np.array_equal(again.x, first.x)


def test_pages_are_mapped_and_only_read(photos: Path) -> None:
    load(photos)
    mapped, _ = load(photos)
    assert isinstance(mapped.x, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        mapped.x[:] = 0
    assert np.array_equal(load(photos)[0].x, originals(photos))


@pytest.mark.parametrize("change", ["time", "content", "added", "removed"])
def test_a_changed_source_is_decoded_anew_and_the_old_part_is_removed(photos: Path, folder: Path, change: str) -> None:
    load(photos)
    file = photos / "cat" / "0.png"
    if change == "time":
        os.utime(file, (1, 1))
    elif change == "content":
        Image.new("RGB", (8, 8), "red").save(file)
        os.utime(file, (2, 2))
    elif change == "added":
        shutil.copy(file, photos / "dog" / "x.png")
    else:
        file.unlink()
    images, decoded = load(photos)
    assert decoded == len(images) > 0
    assert np.array_equal(images.x, originals(photos))
    part_of(folder)  # one part, not two


def decoded_of(images: Listing) -> int:
    """Return how many images are decoded as some are loaded."""
    counter = Counter()
    cache.load(PART, images, progress=counter)
    return counter.decoded


def test_parts_of_other_splits_stay_until_a_source_changes(photos: Path, folder: Path) -> None:
    """Runs with another ``dataset.seed``, test share, order of classes or broken images left out."""
    every = np.arange(10)
    splits = [every, every[1:], every[:-1], every[::2]]
    for _ in range(2):
        decoded = [decoded_of(listed(photos).select(split)) for split in splits]
        decoded.append(decoded_of(Listing(listed(photos).items, 1 - listed(photos).labels)))
    assert decoded == [0] * 5
    assert len(parts(folder)) == 5
    shutil.copy(photos / "cat" / "0.png", photos / "cat" / "x.png")
    assert decoded_of(listed(photos)) == 11
    assert len(parts(folder)) == 1


def test_room_for_parts_of_other_splits_is_bounded(photos: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_PARTS", 2)
    for first in range(4):
        images = cache.load(PART, listed(photos).select(np.arange(first, 10)))
        assert images.kept_in is not None
        os.utime(kept.lock_of(images.kept_in.path), (first, first))
    assert sorted(kept.read(path).number for path in parts(folder)) == [7, 8]


def test_a_part_that_a_process_works_on_is_not_deleted(photos: Path, folder: Path) -> None:
    decoded_of(listed(photos))
    with private_files.locked(kept.lock_of(part_of(folder))):
        shutil.copy(photos / "cat" / "0.png", photos / "cat" / "x.png")
        decoded_of(listed(photos))
    assert len(parts(folder)) == 2


DAMAGE = ["half", "empty", "head", "pixels", "labels", "fingerprint", "foreign", "more"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_part_is_noticed_and_decoded_again(
    photos: Path, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(photos)
    part = part_of(folder)
    raw, (pixels, facts, *_) = bytearray(part.read_bytes()), kept.read(part).chunks
    places = {"head": 0, "pixels": pixels.start + 100, "labels": pixels.end - 1, "fingerprint": facts.start - 90}
    if damage in places:
        raw[places[damage]] ^= 255
    changed = {"half": raw[: len(raw) // 2], "empty": b"", "foreign": b"x" * len(raw), "more": raw + b"x"}
    part.write_bytes(changed.get(damage, raw))
    images, decoded = load(photos)
    assert decoded == (0 if damage == "more" else 10)  # what was to be added and is cut off is in nobody's way
    assert np.array_equal(images.x, originals(photos))
    assert ("the cached images are damaged or cut off; they are decoded again" in caplog.text) == (
        damage not in ("more", "empty")
    )
    assert load(photos)[1] == 0


def test_a_part_of_another_fingerprint_is_not_used(photos: Path, folder: Path) -> None:
    load(photos)
    part = part_of(folder)
    part.write_bytes(part.read_bytes().replace(b'"fingerprint": "', b'"fingerprint": "x'))
    assert load(photos)[1] == 10


def test_what_an_earlier_version_kept_is_decoded_once_more_with_a_line(
    photos: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = [folder / f"{PART.stem}-{'ab' * 8}", folder / f".{PART.stem}-{'ab' * 6}"]
    other = folder / f"{PART.stem}-thesis"
    for path in (*earlier, other):
        path.mkdir(parents=True)
        (path / "x.npy").write_bytes(b"x")
    assert load(photos)[1] == 10 and load(photos)[1] == 0
    assert not any(path.exists() for path in earlier) and other.exists()
    assert caplog.messages == [f"{folder}: what an earlier version of FedShift kept there is made once more"]


def test_size_and_source_are_part_of_the_fingerprint(photos: Path) -> None:
    lines = listed(photos)
    assert cache.fingerprint(lines, 8) != cache.fingerprint(lines, 16)
    assert cache.fingerprint(lines, 8) != cache.fingerprint(lines.select(np.arange(9)), 8)
    big = cache.load(cache.Part("pets", "photo", "train", 16), lines)
    assert big.x.shape == (10, 16, 16, 3)


def test_an_unreadable_image_is_named_and_nothing_is_kept(photos: Path, folder: Path) -> None:
    (photos / "cat" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/2\.png: cannot be read"):
        load(photos)
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []


def test_a_cache_that_cannot_be_written_says_where_and_what_to_do(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(cache.CACHE_DIR, str(blocked / "below"))
    with pytest.raises(DataError, match=r"cannot write the image cache to .*below.*; set FEDSHIFT_CACHE"):
        load(photos)


def test_a_full_disk_says_so(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device"):
        load(photos)


def test_the_hash_of_a_part_is_of_its_images_and_labels(photos: Path) -> None:
    mark = cache.content(PART, listed(photos))
    assert mark == digest_of(load(photos)[0]) == cache.content(PART, listed(photos))
    for item in listed(photos).items:
        os.utime(item.path, (1, 1))  # decoded again, to the same images
    assert cache.content(PART, listed(photos)) == mark
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(photos / "cat" / "2.png")
    assert cache.content(PART, listed(photos)) == digest_of(load(photos)[0]) != mark


def test_the_hash_is_of_shape_pixels_and_labels() -> None:
    """What a run says of its images: another number would mean that their images had changed."""
    x, y = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3), np.arange(2)
    assert digest_of(ImageSet(x, y)) == hashlib.sha256(b"(2, 2, 2, 3)" + x.tobytes() + y.tobytes()).hexdigest()


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
    assert ended.stderr.splitlines()[-1].endswith(
        f"DataError: cannot write the image cache to {small_disk.path} (No space left on device); "
        "set FEDSHIFT_CACHE to a folder with room"
    )
    assert [path.name for path in small_disk.path.iterdir() if not path.name.endswith(".lock")] == []


def _decode_in_a_process(photos: str, folder: str) -> int:
    os.environ[cache.CACHE_DIR] = folder
    counter = Counter()
    slow = Listing(listed(Path(photos)).items, listed(Path(photos)).labels)

    def progress(finished: int) -> None:
        time.sleep(0.02)
        counter(finished)

    cache.load(PART, slow, progress=progress)
    return counter.decoded


@pytest.mark.long
def test_of_several_processes_one_decodes_and_the_others_wait(photos: Path, folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        decoded = pool.starmap(_decode_in_a_process, [(str(photos), str(folder))] * 3)
    assert sorted(decoded) == [0, 0, 10]


def test_arrays_are_resized_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(b"1")
    grey = ImageSet(np.full((3, 4, 4, 3), 7, np.uint8), np.array([0, 1, 1]))
    images = cache.load(PART, Arrays((file,), lambda: grey))
    assert images.x.shape == (3, 8, 8, 3)
    assert (images.x == 7).all()


def test_the_catalog_reads_through_the_cache(photos: Path, folder: Path) -> None:
    root = photos.parent / "data"
    for split in ("train", "test"):
        for digit in range(10):
            (root / "mnist" / split / str(digit)).mkdir(parents=True)
            Image.new("RGB", (8, 8), (digit, 0, 0)).save(root / "mnist" / split / str(digit) / "0.png")
    images = catalog.load("digits", "mnist", "test", Source(root))
    assert images.x.shape == (10, 32, 32, 3)
    assert images.y.tolist() == list(range(10))
    assert part_of(folder).name.startswith("digits-mnist-test-32px-")


def rights(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_reads_decoded_images_whatever_the_umask(folder: Path, photos: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache.content(PART, listed(photos))
        cache.content(PART, listed(photos))  # of the kept copy
    finally:
        os.umask(before)
    assert rights(folder) == 0o700
    files = {path.name: rights(path) for path in folder.rglob("*")}
    assert len(files) == 2 and set(files.values()) == {0o600}  # the part, and its lock


def test_while_images_are_decoded_nobody_else_reads_them_either(folder: Path, photos: Path) -> None:
    seen: list[int] = []

    def look(finished: int) -> None:
        seen.extend(map(rights, folder.iterdir()))

    before = os.umask(0)
    try:
        cache.load(PART, listed(photos), progress=look)
    finally:
        os.umask(before)
    assert seen == [0o600] * 20  # what is built, and its lock


def test_a_cache_folder_that_is_there_keeps_its_rights(folder: Path, photos: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    load(photos)
    assert (rights(folder), rights(part_of(folder))) == (0o755, 0o600)


def test_each_form_has_a_part_of_its_own_and_leaves_the_others(folder: Path, photos: Path) -> None:
    Image.fromarray(np.full((12, 30, 3), 200, np.uint8)).save(photos / "cat" / "a.png")
    forms = [Form(), Form("crop"), Form("pad"), Form(window=(-160, 240)), Form("crop", (-160, 240))]
    parts = [cache.Part("pets", "photo", "train", 8, form) for form in forms]
    images = [cache.load(part, listed(photos)).x for part in parts]
    assert len(list(folder.glob("pets-*"))) == 5
    assert not np.array_equal(images[1], images[2])
    for part, x in zip(parts, images, strict=True):
        counter = Counter()
        assert np.array_equal(cache.load(part, listed(photos), progress=counter).x, x) and counter.decoded == 0


def test_the_fingerprint_of_plain_images_says_nothing_of_forms(photos: Path) -> None:
    """What decides where a part lies, written down: another format means that all parts are decoded once more."""
    lines = listed(photos)
    assert cache.Part("pets", "photo", "train", 8).stem == "pets-photo-train-8px"
    digest = hashlib.sha256(f"5 8 {len(lines)}\n".encode())
    digest.update("\0".join(item.name for item in lines.items).encode())
    stats = [item.path.stat() for item in lines.items]
    digest.update(np.array([(stat.st_size, stat.st_mtime_ns) for stat in stats], np.int64).tobytes())
    digest.update(lines.labels.tobytes())
    assert cache.fingerprint(lines, 8) == digest.hexdigest()
