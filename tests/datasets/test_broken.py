"""Going on without images that cannot be read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import cache, corrupt_files, kept, pool
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.sets import folders


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Return a site of ten images, of which one is cut short and one is no image."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for kind in ("a", "b"):
        (tmp_path / "site" / "train" / kind).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 256, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "site" / "train" / kind / f"{number}.png")
    (tmp_path / "site" / "train" / "a" / "1.png").write_bytes(b"no image")
    cut = tmp_path / "site" / "train" / "b" / "3.png"
    cut.write_bytes(cut.read_bytes()[:200])
    return Source(tmp_path, classes=("a", "b"))


def test_one_broken_image_ends_it_unless_it_is_to_be_left_out(source: Source, refuses: Any) -> None:
    with refuses("1.png"):
        catalog.load("folders", "site", "train", source)
    assert catalog.skipped("folders", "site", "train", source) == ()
    without = replace(source, skip_broken=True)
    images = catalog.load("folders", "site", "train", without, 16)
    assert images.y.tolist() == [0] * 4 + [1] * 4
    assert np.array_equal(catalog.load_own("folders", "site", "train", without, 16).x, images.x)
    result = catalog.skipped("folders", "site", "train", without)
    assert [Path(one.name).name for one in result] == ["1.png", "3.png"]
    assert all(one.reason and str(source.data_dir) not in one.reason for one in result)


def test_the_verdict_is_kept_until_a_file_changes(source: Source, given: list[str]) -> None:
    listing = folders.find("site", "train", source)
    assert isinstance(listing, Listing)
    first = corrupt_files.of(listing)
    given.clear()
    assert corrupt_files.of(listing) == first
    assert given == ["1.png", "3.png"]  # the broken ones alone
    file = next(cache.cache_dir().glob("broken-*.list"))
    file.write_text('{"images": 10, "broken": [[99, "x"]]}')  # of no version
    assert corrupt_files.of(listing) == first
    Image.new("RGB", (20, 20)).save(listing.items[1].path)
    assert [one.place for one in corrupt_files.of(listing)] == [8]


def test_an_image_that_could_not_be_read_is_tried_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause may have been this machine: a package that is installed since, its memory, its disk."""
    listing = folders.find("site", "train", source)
    assert isinstance(listing, Listing)
    tried = pool.tried

    def without(work: Any, items: list[Item], workers: int) -> Iterator[Any]:
        for item, made in zip(items, tried(work, items, workers), strict=True):
            yield DataError("needs pydicom") if "4.png" in str(item) else made

    with monkeypatch.context() as patch:
        patch.setattr(pool, "tried", without)
        for _ in range(2):
            assert [one.place for one in corrupt_files.of(listing)] == [1, 4, 8, 9]
    assert [one.place for one in corrupt_files.of(listing)] == [1, 8]
    (file,) = cache.cache_dir().glob("broken-*.list")
    assert kept.read(file).about["broken"] == [1, 8]


def test_a_site_of_broken_images_alone_is_refused(source: Source, refuses: Any) -> None:
    assert source.data_dir is not None
    for path in source.data_dir.rglob("*.png"):
        path.write_bytes(b"no image")
    with refuses(10):
        catalog.load("folders", "site", "train", replace(source, skip_broken=True))
