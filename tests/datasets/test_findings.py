"""What is kept with the images of a part: headers of files and findings about pixels, for these images alone."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedshift_datasets.io import cache, trees
from fedshift_datasets.listing import Listing
from fedshift_datasets.quality import checkup, duplicates, exact_copies, findings, pixel_statistics
from fedshift_datasets.quality.exact_copies import Role

CLASSES = ("cat", "dog")
PART = cache.Part("pets", "photo", "train", 32)


@pytest.fixture
def photos(tmp_path: Path) -> Listing:
    """Return files of several formats, sizes, modes and orientations."""
    rng = np.random.default_rng(0)
    for number in range(70):
        path = tmp_path / "photos" / CLASSES[number % 2] / f"{number:02}.{('png', 'jpg', 'webp', 'tif')[number % 4]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(rng.integers(0, 256, (20 + number % 3, 32, 3), np.uint8))
        exif = Image.Exif()
        if number % 5 == 0:
            exif[274] = 6
        image.convert("L" if number % 4 == 1 and number % 3 else "RGB").save(path, exif=exif)
    return trees.list_folders(tmp_path / "photos", CLASSES)


def test_findings_are_kept_and_are_the_same(photos: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    images = cache.load(PART, photos)
    headers = cache.headers(images)
    assert headers is not None and sorted(headers.elements()) == sorted(checkup.headers(photos.items))
    assert cache.headers(images.select(np.arange(3))) is None  # of other images
    sets = [Role("a", False, images), Role("a", True, images.select(np.arange(3)))]
    (pixels, sketches), copies = findings.of(images), exact_copies.find(sets)
    assert [pair for pair, _ in copies.trained] == [(1, 0), (1, 1), (1, 2)]
    for module, name in ((pixel_statistics, "of"), (duplicates, "_hashes")):
        monkeypatch.setattr(module, name, None)
    again, same = findings.of(images)
    assert exact_copies.find(sets) == copies
    whole = [Role(name, name == "b", images) for name in "ab"]
    apart = exact_copies.find([Role(role.domain, role.is_test, role.images.but()) for role in whole])
    monkeypatch.setattr(exact_copies, "_key", None)  # no image is read
    assert exact_copies.find(whole) == apart and len(apart.trained) == len(photos)
    assert all(np.array_equal(getattr(again, name), value) for name, value in vars(pixels).items())
    places = np.arange(0, 70, 3)
    assert np.array_equal(same.hashes, sketches.hashes) and np.array_equal(same.greys(places), sketches.greys(places))
