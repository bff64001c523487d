"""The store of numbers that are computed once for each image."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from numpy.typing import NDArray

from fedshift_core.errors import DataError
from fedshift_datasets.io import feature_store, kept
from fedshift_datasets.io.feature_store import FeatureStore, Kind
from fedshift_datasets.listing import MARK, ImageSet, joined

KIND = Kind("net-encoder", {"weights": "abc", "size": 4}, (3,), "float32")


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
    part = joined([images.select(order[:50]), images.select(order[:2])])  # equal images have one row
    again = FeatureStore(KIND)
    found = again.places(part.marks, _means(part, calls))
    assert sum(calls) == len(again) == 700 and found[50:].tolist() == found[:2].tolist()
    np.testing.assert_array_equal(again.rows[found], part.x.mean(axis=(1, 2)).astype(np.float32))


def test_other_contents_are_other_stores() -> None:
    images = _images(3)
    FeatureStore(KIND).places(images.marks, _means(images))
    for other in (
        Kind("net-encoder", {"weights": "abd", "size": 4}, (3,), "float32"),
        Kind("net-encoder", KIND.about, (3,), "float16"),
    ):
        assert FeatureStore(other).missing(images.marks) == 3


def test_only_the_owner_reads_a_store(cache_home: Path) -> None:
    before = os.umask(0)
    try:
        images = _images(3)
        store = FeatureStore(KIND)
        store.places(images.marks, _means(images))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in store.path.parent.iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (cache_home, store.path.parent)} == {0o700}


@pytest.mark.parametrize("left", [-5, -100, 0, 10])
def test_what_a_killed_process_left_half_written_is_computed_again(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "FLUSHED", 4)
    images, done = _images(6), list[tuple[int, int]]()
    old = FeatureStore(KIND)
    old.places(images.marks, _means(images))
    os.truncate(old.path, left if left >= 0 else old.path.stat().st_size + left)
    store = FeatureStore(KIND)
    places = store.places(images.marks, _means(images), lambda n, of: done.append((n, of)))
    assert done == ([(2, 2)] if left < 0 else [(4, 6), (6, 6)])
    np.testing.assert_array_equal(store.rows[places], images.x.mean(axis=(1, 2)).astype(np.float32))
    assert _damage() == [0]


def _damage() -> list[int]:
    """Return how many bytes of each store are damaged."""
    return [file.size - file.end for file in (kept.read(path, check=True) for path in feature_store.stores())]


def test_a_store_does_not_grow_above_its_bound_nor_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    images, calls = _images(100), list[int]()
    with refuses(100, "model.precompute_gb"):
        FeatureStore(KIND, 1000).places(images.marks, _means(images, calls))
    with monkeypatch.context() as patch:
        patch.setattr(feature_store, "RESERVE", 1 << 60)
        with pytest.raises(DataError, match="`fedshift cache delete`"):
            FeatureStore(KIND).places(images.marks, _means(images, calls))
    assert calls == []
    FeatureStore(KIND, 100 * (KIND.row_bytes + MARK) + 1000).places(images.marks, _means(images))
