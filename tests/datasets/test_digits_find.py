"""The digits before they are read: arrays at their own size, or a listing of an image folder."""

from pathlib import Path

import numpy as np
import pytest
from digit_files import LABELS, NATIVE, load, noise, write_folder, write_usps
from image_trees import SPLITS

from fedshift_core.errors import DataError
from fedshift_datasets.base import Source, Split
from fedshift_datasets.io import files
from fedshift_datasets.listing import Arrays, Listing
from fedshift_datasets.sets.digits import COUNTS, find


def found_arrays(root: Path, domain: str, split: Split) -> Arrays:
    images = find(domain, split, Source(root))
    assert isinstance(images, Arrays)
    return images


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("domain", NATIVE)
def test_native_files_are_found_as_arrays(tmp_path: Path, domain: str, split: Split) -> None:
    path = NATIVE[domain](tmp_path, split)
    result = found_arrays(tmp_path, domain, split)
    labels = [path.with_name(path.name.replace("images-idx3", "labels-idx1"))] if domain == "mnist" else []
    assert result.files == (path, *labels)
    own, loaded = result.read(), load(tmp_path, domain, split)
    side = {"mnist": 28, "usps": 16, "svhn": 32}[domain]
    assert own.x.shape == (12, side, side, 3) and own.x.dtype == np.uint8
    assert np.array_equal(files.resize(own.x, 32), loaded.x) and own.y.tolist() == loaded.y.tolist()


@pytest.mark.parametrize("shape", [(12, 20, 14), (12, 20, 14, 1), (12, 20, 14, 3), (12, 32, 32, 3)])
def test_npz_is_found_as_arrays_of_its_own_size(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x, path = noise(*shape), tmp_path / "syn_train.npz"
    np.savez(path, x=x, y=LABELS)
    result = found_arrays(tmp_path, "syn", "train")
    images = result.read()
    assert result.files == (path,) and images.y.tolist() == LABELS.tolist()
    assert np.array_equal(images.x, np.broadcast_to(x.reshape(*shape[:3], -1), (*shape[:3], 3)))
    assert np.array_equal(files.resize(images.x, 32), load(tmp_path, "syn").x)


@pytest.mark.parametrize("folder", ["mnist/train", "mnist/test"])
def test_image_folder_is_found_as_a_listing(tmp_path: Path, folder: str) -> None:
    split: Split = "train" if folder.endswith("train") else "test"
    write_folder(tmp_path / folder)
    (tmp_path / folder / "7" / "a.png").unlink()
    images = find("mnist", split, Source(tmp_path))
    assert isinstance(images, Listing)
    assert images.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9] == load(tmp_path, "mnist", split).y.tolist()
    assert images.items[0].path == tmp_path / folder / "0" / "a.png"


def test_what_is_not_there_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="usps train not found in"):
        find("usps", "train", Source(tmp_path))
    path = write_usps(tmp_path, "train")
    path.write_bytes(b"broken")
    result = found_arrays(tmp_path, "usps", "train")
    with pytest.raises(DataError, match=f"{path}: cannot be read"):
        result.read()
    assert COUNTS == {"mnist": 70000, "usps": 9298, "mnistm": 68002, "svhn": 99289}
