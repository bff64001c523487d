"""The embedded digits: who gets which source image, and what each domain draws of it."""

from pathlib import Path

import numpy as np
import pytest
from data_refusals import refuses
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from fedshift_core.seeding import generator
from fedshift_datasets import catalog
from fedshift_datasets.base import SPLITS, Source, checked
from fedshift_datasets.io import npz
from fedshift_datasets.listing import Arrays
from fedshift_datasets.sets.handwritten import DOMAINS, OF_MASKS, draw, find, source_indices
from fedshift_datasets.sets.handwritten_styles import RENDERERS, SIZE, upsample

PARTS = [(domain, split) for domain in DOMAINS for split in SPLITS]


def ink_of(domain: str, count: int) -> NDArray[np.float32]:
    index = source_indices(0)[domain, "train"][:count]
    return upsample((load_digits().images[index] / 16).astype(np.float32))


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_every_source_digit_is_used_exactly_once(seed: int) -> None:
    dealt = source_indices(seed)
    assert set(dealt) == set(PARTS)
    assert np.array_equal(np.sort(np.concatenate(list(dealt.values()))), np.arange(1797))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_renderers_leave_their_ink_alone(domain: str, count: int) -> None:
    ink = ink_of(domain, count)
    before = ink.copy()
    first = RENDERERS[domain](ink, generator(0, "test"))
    assert (first.pixels.shape, first.pixels.dtype) == ((count, SIZE, SIZE, 3), np.uint8)
    assert np.array_equal(ink, before)
    assert all(map(np.array_equal, first, RENDERERS[domain](ink, generator(0, "test"))))


@pytest.mark.parametrize("domain", DOMAINS)
def test_masks_lie_on_the_digits_of_the_same_pictures(domain: str) -> None:
    images, plain = draw(domain, "test", 0, masks=True), draw(domain, "test", 0)
    assert np.array_equal(images.x, plain.x) and images.y.all()
    assert checked(images, classes=2, size=SIZE, where=domain) is images
    assert images.masks is not None and (images.masks.mean(axis=(1, 2)) < 0.6).all()
    again = draw(domain, "test", 0, masks=True).masks
    assert again is not None and np.array_equal(images.masks, again)
    digit, grey = images.masks.astype(bool), images.x.mean(axis=-1)
    inside, outside = (np.where(where, grey, np.nan) for where in (digit, ~digit))
    if domain == "scan":  # light ink on black
        assert np.nanmin(inside) > 80 > 20 > np.nanmean(outside)
    elif domain == "street":  # each house number is darker than its wall, and so are its neighbours
        assert (np.nanmean(inside, (1, 2)) + 15 < np.nanmean(outside, (1, 2))).all()
    elif domain == "sketch":  # the pencil runs along the border, and paper is on both sides of it
        rim, near = (grow(digit, axes=(1, 2)) for grow in (ndimage.binary_erosion, ndimage.binary_dilation))
        assert grey[digit & ~rim].mean() < 130 and min(grey[rim].mean(), grey[~near].mean()) > 200


def test_folder_is_read_instead_of_drawing(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)
    np.savez(tmp_path / "street_test.npz", x=x, y=np.array([7, 0, 2], np.int64))
    result = find("street", "test", Source(data_dir=tmp_path))
    assert isinstance(result, Arrays) and np.array_equal(result.read().x, x)
    with refuses("scan"):
        find("scan", "test", Source(data_dir=tmp_path))
    with refuses("photo", *DOMAINS):
        draw("photo", "train", 0)


def test_a_folder_of_masks_is_read_instead_of_drawing_them(tmp_path: Path, cache_home: Path) -> None:
    drawn = draw("scan", "test", 0, masks=True)
    npz.write(tmp_path / "scan_test.npz", drawn, OF_MASKS)
    for read in (catalog.load, catalog.load_own):
        images = read("handwritten-masks", "scan", "test", Source(data_dir=tmp_path))
        assert np.array_equal(images.x, drawn.x)
        assert images.masks is not None and drawn.masks is not None and np.array_equal(images.masks, drawn.masks)
    np.savez(tmp_path / "sketch_test.npz", x=drawn.x, y=drawn.y)
    with refuses("sketch_test.npz", "no key masks"):
        catalog.load("handwritten-masks", "sketch", "test", Source(data_dir=tmp_path))
