"""The store of numbers that are computed once for each image."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedshift_core.errors import DataError
from fedshift_datasets.io import cache, feature_store
from fedshift_datasets.io.feature_store import INDEX_FILE, RECORD, ROWS_FILE, FeatureStore, Kind
from fedshift_datasets.listing import MARK, ImageSet, joined

KIND = Kind("net-encoder", {"weights": "abc", "size": 4}, (3,), "float32")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "images"))
    return tmp_path / "images"


def _images(number: int, seed: int = 0) -> ImageSet:
    rng = np.random.default_rng(seed)
    return ImageSet(rng.integers(0, 256, (number, 4, 4, 3), np.uint8), np.zeros(number, np.int64))


def _means(images: ImageSet, calls: list[int] | None = None) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
    def compute(index: NDArray[np.int64]) -> NDArray[Any]:
        if calls is not None:
            calls.append(len(index))
        return images.x[index].mean(axis=(1, 2)).astype(np.float32)

    return compute


def test_each_image_is_computed_once_and_found_again_in_any_order() -> None:
    images, calls = _images(700), list[int]()
    store = FeatureStore(KIND)
    places = store.places(images.marks, _means(images, calls))
    assert sum(calls) == 700
    np.testing.assert_array_equal(store.rows[places], images.x.mean(axis=(1, 2)).astype(np.float32))
    order = np.random.default_rng(1).permutation(700)
    part = images.select(order[:50])
    again = FeatureStore(KIND)
    found = again.places(part.marks, _means(part, calls))
    assert sum(calls) == 700
    np.testing.assert_array_equal(again.rows[found], part.x.mean(axis=(1, 2)).astype(np.float32))


def test_equal_images_have_one_row() -> None:
    images = _images(5)
    both = joined([images, images.select(np.array([3, 3]))])
    store = FeatureStore(KIND)
    places = store.places(both.marks, _means(both))
    assert len(store) == 5
    assert places[5] == places[6] == places[3]


def test_marks_of_parts_are_those_of_their_pixels() -> None:
    images = _images(9)
    part = images.select(np.array([4, 2])).select(slice(1, 2))
    np.testing.assert_array_equal(part.marks, ImageSet(images.x[[2]], images.y[[2]]).marks)
    np.testing.assert_array_equal(part.labelled(np.ones(1, np.int64)).marks, part.marks)
    assert images.marks.shape == (9, MARK)


def test_other_contents_are_other_stores() -> None:
    images = _images(3)
    FeatureStore(KIND).places(images.marks, _means(images))
    for other in (
        Kind("net-encoder", {"weights": "abd", "size": 4}, (3,), "float32"),
        Kind("net-encoder", KIND.about, (3,), "float16"),
    ):
        assert FeatureStore(other).missing(images.marks) == 3


def test_only_the_owner_reads_a_store(own_cache: Path) -> None:
    before = os.umask(0)
    try:
        images = _images(3)
        store = FeatureStore(KIND)
        store.places(images.marks, _means(images))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in store.folder.iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (own_cache, store.folder, store.folder.parent)} == {0o700}


def test_an_interrupted_computation_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "FLUSHED", 10)
    images, calls = _images(45), list[int]()
    compute = _means(images, calls)

    def stopped(index: NDArray[np.int64]) -> NDArray[Any]:
        if sum(calls) >= 20:
            raise KeyboardInterrupt
        return compute(index)

    with pytest.raises(KeyboardInterrupt):
        FeatureStore(KIND).places(images.marks, stopped)
    store = FeatureStore(KIND)
    assert store.missing(images.marks) == 25
    done = list[tuple[int, int]]()
    places = store.places(images.marks, compute, lambda n, of: done.append((n, of)))
    assert sum(calls) == 45
    assert done == [(10, 25), (20, 25), (25, 25)]
    np.testing.assert_array_equal(store.rows[places], images.x.mean(axis=(1, 2)).astype(np.float32))


@pytest.mark.parametrize("cut", [(ROWS_FILE, 5), (INDEX_FILE, 7), (INDEX_FILE, 2 * RECORD)])
def test_what_a_killed_process_left_half_written_is_computed_again(cut: tuple[str, int]) -> None:
    images = _images(6)
    folder = FeatureStore(KIND).folder
    FeatureStore(KIND).places(images.marks, _means(images))
    name, number = cut
    os.truncate(folder / name, (folder / name).stat().st_size - number)
    store = FeatureStore(KIND)
    places = store.places(images.marks, _means(images))
    np.testing.assert_array_equal(store.rows[places], images.x.mean(axis=(1, 2)).astype(np.float32))


def test_a_damaged_row_is_computed_again(caplog: pytest.LogCaptureFixture) -> None:
    images, calls = _images(6), list[int]()
    store = FeatureStore(KIND)
    store.places(images.marks, _means(images))
    with (store.folder / ROWS_FILE).open("r+b") as file:
        file.seek(2 * KIND.row_bytes + 1)
        file.write(b"\xff\xff")
    entry = feature_store.kept()[0]
    assert (entry.rows, feature_store.verify(entry)) == (6, 1)
    again = FeatureStore(KIND)
    places = again.places(images.marks, _means(images, calls))
    assert calls == [1]
    assert "1 row is damaged" in caplog.text
    np.testing.assert_array_equal(again.rows[places], images.x.mean(axis=(1, 2)).astype(np.float32))
    assert feature_store.verify(feature_store.kept()[0]) == 0


def test_a_store_that_somebody_deletes_is_made_again() -> None:
    images, more = _images(6), _images(4, seed=1)
    store = FeatureStore(KIND)
    store.places(images.marks, _means(images))
    for path in store.folder.iterdir():
        path.unlink()
    both = joined([images, more])
    places = store.places(both.marks, _means(both))
    np.testing.assert_array_equal(store.rows[places], both.x.mean(axis=(1, 2)).astype(np.float32))


def _fill(seed: int) -> int:
    images = joined([_images(40), _images(40, seed)])
    store = FeatureStore(KIND)
    places = store.places(images.marks, _means(images))
    return int((store.rows[places] != images.x.mean(axis=(1, 2)).astype(np.float32)).sum())


def test_processes_that_fill_a_store_at_a_time_agree() -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_fill, range(1, 9)) == [0] * 8
    entry = feature_store.kept()[0]
    assert (entry.rows, feature_store.verify(entry)) == (40 + 8 * 40, 0)


def test_a_store_does_not_grow_above_its_bound() -> None:
    images = _images(100)
    with pytest.raises(DataError, match=r"100 images need 0.0 MB, .*may hold 0.0 MB \(model.precompute_gb\)"):
        FeatureStore(KIND, 1000).places(images.marks, _means(images))
    FeatureStore(KIND, 100 * (KIND.row_bytes + RECORD) + 1000).places(images.marks, _means(images))


def test_a_disk_without_room_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "KEPT_FREE", 1 << 60)
    images, calls = _images(4), list[int]()
    with pytest.raises(DataError, match=r"has room for 0.0 MB; delete some with `fedshift cache delete`"):
        FeatureStore(KIND).places(images.marks, _means(images, calls))
    assert calls == []
