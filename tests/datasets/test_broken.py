"""Going on without images that cannot be read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_refusals import refuses
from image_trees import noise_sites
from PIL import Image

from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import cache, corrupt_files
from fedshift_datasets.listing import Listing
from fedshift_datasets.sets import folders


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Return a site of ten images, of which one is cut short and one is no image."""
    noise_sites(tmp_path, 5)
    (tmp_path / "site").mkdir()
    folder = (tmp_path / "a").rename(tmp_path / "site" / "train")
    (folder / "cat" / "1.png").write_bytes(b"no image")
    cut = folder / "dog" / "3.png"
    cut.write_bytes(cut.read_bytes()[:200])
    return Source(tmp_path, classes=("cat", "dog"))


def test_one_broken_image_ends_it_unless_it_is_to_be_left_out(source: Source) -> None:
    here: Any = ("folders", "site", "train")
    with refuses("1.png"):
        catalog.load(*here, source)
    assert catalog.skipped(*here, source) == ()
    without = replace(source, skip_broken=True)
    images = catalog.load(*here, without, 16)
    assert images.y.tolist() == [0] * 4 + [1] * 4
    assert np.array_equal(catalog.load_own(*here, without, 16).x, images.x)
    result = catalog.skipped(*here, without)
    assert [Path(one.name).name for one in result] == ["1.png", "3.png"]
    assert all(one.reason and str(source.data_dir) not in one.reason for one in result)
    for path in Path(result[0].name).parent.parent.rglob("*.png"):
        path.write_bytes(b"no image")
    with refuses(10):
        catalog.load(*here, without)


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
