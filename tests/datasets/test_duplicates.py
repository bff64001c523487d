"""Images that are nearly the same: copies are found, whatever an encoder made of them, and others are not."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from own_sites import CLASSES, picture
from PIL import Image

from fedshift_datasets.quality import duplicates

Images = NDArray[np.uint8]


@pytest.fixture(scope="module")
def images() -> Images:
    """Return 90 different images of 64 pixels, 30 a class."""
    rng = np.random.default_rng(1)
    made = [picture("south", kind, rng).resize((64, 64)) for kind in CLASSES for _ in range(30)]
    return np.stack([np.asarray(image) for image in made])


def found(images: Images) -> set[tuple[int, int]]:
    result = duplicates.pairs(duplicates.sketches(images))
    assert result.complete
    return {(first, second) for first, second in result.places.tolist()}


def saved_again(images: Images, quality: int, side: int) -> Images:
    again = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR).save(file, "JPEG", quality=quality)
        again.append(np.asarray(Image.open(file).resize((64, 64), Image.Resampling.BILINEAR)))
    return np.stack(again)


@pytest.mark.parametrize(("quality", "side"), [(90, 64), (40, 64), (90, 48)])
def test_copies_are_found(images: Images, quality: int, side: int) -> None:
    pairs = found(np.concatenate([images, saved_again(images, quality, side)]))
    wanted = {(i, i + len(images)) for i in range(len(images))}
    assert pairs <= wanted
    assert len(pairs) > 0.95 * len(wanted)


def test_brighter_or_mirrored_is_not_the_same(images: Images) -> None:
    assert found(images) == found(images[:0]) == set()
    assert found(np.concatenate([images[:30], np.minimum(images[:30].astype(int) + 40, 255).astype(np.uint8)])) == set()
    assert not any(second - first == 30 for first, second in found(np.concatenate([images[:30], images[:30, :, ::-1]])))


def test_images_of_one_colour_are_the_same_and_too_many_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = np.repeat(np.array([0, 5, 200], np.uint8), 3)[:, None, None, None] * np.ones((1, 16, 16, 3), np.uint8)
    black, white = set(range(6)), {6, 7, 8}  # 0 and 5 levels are hardly different
    assert found(flat) == {(i, j) for i in range(9) for j in range(i + 1, 9) if {i, j} <= black or {i, j} <= white}
    monkeypatch.setattr(duplicates, "_MOST", 5)
    monkeypatch.setattr(duplicates, "_CHUNK", 3)
    assert not duplicates.pairs(duplicates.sketches(flat)).complete


def test_parts_of_hashes_find_what_all_with_all_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that differ in few bits, at any places; one by one is the slow and obvious way."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (12, duplicates.BITS))
    some = np.concatenate([bits ^ (rng.random(bits.shape) < share) for share in (0, 0.03, 0.09, 0.12)])
    padded = np.zeros((len(some), 128), bool)
    padded[:, : duplicates.BITS] = some
    hashes = np.packbits(padded, axis=1).view(np.uint64)
    slow = [
        [i, j]
        for i in range(len(some))
        for j in range(i + 1, len(some))
        if (some[i] != some[j]).sum() <= duplicates.MOST_BITS
    ]
    monkeypatch.setattr(duplicates, "_BLOCK", 7)
    monkeypatch.setattr(duplicates, "_CHUNK", 5)
    ways = *(duplicates._by_parts(hashes, together) for together in (1, 2)), duplicates._all_with_all(hashes)
    for way in ways:
        assert duplicates._in_order([np.stack(places, axis=1) for places in way]).tolist() == slow
    assert len(slow) > 15
    monkeypatch.delattr(np, "bitwise_count", raising=False)  # before NumPy 2
    way = duplicates._by_parts(hashes, 2)
    assert duplicates._in_order([np.stack(places, axis=1) for places in way]).tolist() == slow
