"""Both plain layouts: what is read, what is refused and with which words."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digit_files import noise
from digit_files import read as read_found
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import files, layout, trees

CLASSES = ("dog", "cat", "owl")


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def read(root: Path, domain: str = "art", size: int = 8) -> ImageSet:
    return read_found(trees.find_plain(root, domain, "train", CLASSES), size)


def refusal(root: Path, domain: str = "art") -> str:
    """Return the message with which a read is refused: two lines at most."""
    message = refusal_of(DataError, read, root, domain)
    assert "Traceback" not in message
    return message


def savez(root: Path, **arrays: Any) -> Path:
    path = root / "art_train.npz"
    np.savez(path, **arrays)
    return path


# --- resize


def test_resize_leaves_right_images_alone() -> None:
    x = noise(3, 8, 8, 3)
    assert files.resize(x, 8) is x


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 8, 8, 1)])
def test_resize_spreads_grey_over_three_channels(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    assert np.array_equal(files.resize(x, 8), np.repeat(x.reshape(3, 8, 8, 1), 3, axis=3))


@pytest.mark.parametrize(("height", "width"), [(5, 9), (8, 20), (31, 17)])
def test_resize_of_grey_equals_resize_of_its_rgb_copy(height: int, width: int) -> None:
    x = noise(4, height, width)
    assert np.array_equal(files.resize(x, 8), files.resize(np.repeat(x[..., None], 3, axis=3), 8))


def test_resize_keeps_a_constant_and_averages_when_shrinking() -> None:
    assert np.all(files.resize(np.full((2, 30, 11), 77, np.uint8), 8) == 77)
    stripes = np.zeros((1, 64, 64), np.uint8)
    stripes[:, :, ::2] = 200
    inner = files.resize(stripes, 8)[0, :, 1:-1]
    assert np.all(np.abs(inner.astype(int) - 100) <= 3)  # antialias: no stripe survives


@pytest.mark.parametrize("chunk", [1, 500, 1 << 24])
def test_resize_does_not_depend_on_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(7, 12, 10, 3)
    alone = np.concatenate([files.resize(x[i : i + 1], 8) for i in range(7)])
    monkeypatch.setattr(files, "_CHUNK", chunk)
    assert np.array_equal(files.resize(x, 8), alone)


def test_resize_does_not_depend_on_torch_threads() -> None:
    x, before = noise(50, 28, 28), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = files.resize(x, 32)
        torch.set_num_threads(2)
        two = files.resize(x, 32)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(one, two)


def test_resize_reads_views_of_any_order() -> None:
    x = noise(6, 12, 10, 3)
    x.setflags(write=False)
    assert np.array_equal(files.resize(x[::-2], 8), files.resize(np.ascontiguousarray(x[::-2]), 8))


# --- npz


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), count=st.integers(1, 6), size=st.integers(1, 9))
def test_npz_round_trip(tmp_path: Path, data: st.DataObject, count: int, size: int) -> None:
    x = data.draw(hnp.arrays(np.uint8, (count, size, size, 3)))
    y = data.draw(hnp.arrays(np.int64, count, elements=st.integers(0, 2)))
    files.write_npz(tmp_path / "art_train.npz", ImageSet(x, y))
    back = read(tmp_path, size=size)
    assert np.array_equal(back.x, x) and np.array_equal(back.y, y)
    assert back.x.dtype == np.uint8 and back.y.dtype == np.int64
    assert [path.name for path in tmp_path.iterdir()] == ["art_train.npz"]


@pytest.mark.parametrize("shape", [(4, 6, 6), (4, 6, 6, 1), (4, 9, 6, 3), (4, 8, 8, 3)])
@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint64])
def test_npz_of_every_shape(tmp_path: Path, shape: tuple[int, ...], kind: type) -> None:
    x = noise(*shape)
    savez(tmp_path, x=x, y=np.array([0, 2, 1, 0], kind), name=np.array("more"))
    images = read(tmp_path)
    assert np.array_equal(images.x, files.resize(x, 8))
    assert images.y.tolist() == [0, 2, 1, 0] and images.y.dtype == np.int64


def test_write_npz_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "art_train.npz"
    for label in (0, 1):
        files.write_npz(path, ImageSet(noise(1, 8, 8, 3), np.array([label])))
    assert read(path.parent).y.tolist() == [1]


def test_write_npz_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "art_train.npz"
    files.write_npz(path, ImageSet(noise(1, 8, 8, 3), np.array([2])))

    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(DataError, match=r"art_train\.npz: cannot be written .*No space left"):
        files.write_npz(path, ImageSet(noise(1, 8, 8, 3), np.array([0])))
    assert [result.name for result in tmp_path.iterdir()] == ["art_train.npz"]
    assert read(tmp_path).y.tolist() == [2]


def test_write_npz_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        files.write_npz(tmp_path / "file" / "x.npz", ImageSet(noise(1, 8, 8, 3), np.array([0])))


X, Y = noise(3, 8, 8, 3), np.array([0, 1, 2])
BAD_NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "no x": ({"y": Y}, "no key x; it must have x and y, found: y"),
    "no y": ({"x": X}, "no key y"),
    "neither": ({"images": X}, "no key x and y; it must have x and y, found: images"),
    "no keys": ({}, "found: none"),
    "float x": ({"x": X / 255, "y": Y}, "x has type float64 .*allowed are uint8"),
    "wide x": ({"x": X.astype(np.int64), "y": Y}, "x has type int64"),
    "flat x": ({"x": X.reshape(3, -1), "y": Y}, r"shape \(3, 192\); allowed are uint8 and \(N, H, W\)"),
    "four channels": ({"x": noise(3, 8, 8, 4), "y": Y}, r"shape \(3, 8, 8, 4\)"),
    "channels first": ({"x": noise(3, 3, 8, 8), "y": Y}, r"shape \(3, 3, 8, 8\)"),
    "no pixels": ({"x": noise(3, 0, 8, 3), "y": Y}, r"shape \(3, 0, 8, 3\)"),
    "float y": ({"x": X, "y": Y.astype(float)}, "y has type float64 .*allowed are integers"),
    "text y": ({"x": X, "y": np.array(["dog", "cat", "owl"])}, "y has type <U3"),
    "bool y": ({"x": X, "y": Y > 0}, "y has type bool"),
    "one-hot y": ({"x": X, "y": np.eye(3, dtype=int)}, r"y has type int64 and shape \(3, 3\)"),
    "short y": ({"x": X, "y": Y[:2]}, r"3 images \(x\) but 2 labels \(y\)"),
    "large label": ({"x": X, "y": Y + 1}, "labels from 1 to 3, allowed are 0 to 2"),
    "negative label": ({"x": X, "y": Y - 1}, "labels from -1 to 1, allowed are 0 to 2"),
    "huge label": ({"x": X, "y": np.array([0, 1, 2**64 - 1], np.uint64)}, "allowed are 0 to 2"),
    "object x": ({"x": np.array([None, 1, 2]), "y": Y}, "key x: cannot be read .*[Oo]bject arrays"),
    "object y": ({"x": X, "y": np.array([0, 1, None])}, "key y: cannot be read .*[Oo]bject arrays"),
    "empty": ({"x": X[:0], "y": Y[:0]}, "no images found"),
    "empty small": ({"x": noise(0, 4, 4), "y": Y[:0]}, "no images found"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz_is_refused_by_name(tmp_path: Path, case: str) -> None:
    arrays, pattern = BAD_NPZ[case]
    path = savez(tmp_path, **arrays)
    message = refusal(tmp_path)
    assert message.startswith(f"{path}: ")
    assert re.search(pattern, message), message


@pytest.mark.parametrize("keep", [0, 1, 10, 0.5, -1])
def test_truncated_npz_is_refused(tmp_path: Path, keep: float) -> None:
    path = savez(tmp_path, x=X, y=Y)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    assert refusal(tmp_path).startswith(f"{path}: not an npz file, or cut short")


@pytest.mark.parametrize("content", [b"x,y\n1,2\n", b"\x93NUMPY", b"PK\x03\x04 not really"])
def test_other_files_called_npz_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "art_train.npz").write_bytes(content)
    assert "art_train.npz: not an npz file" in refusal(tmp_path)


def test_npz_with_a_damaged_member_is_refused(tmp_path: Path) -> None:
    path = savez(tmp_path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[300] ^= 255  # inside the pixels: the zip's check sum notices
    path.write_bytes(content)
    assert f"{path}: key x: cannot be read (BadZipFile" in refusal(tmp_path)


def test_zip_of_other_things_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "art_train.npz", "w") as archive:
        archive.writestr("x", "text")
        archive.writestr("y", "text")
    assert "key y is no array" in refusal(tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 16), value=st.integers(1, 255))
def test_a_flipped_byte_never_shows_a_raw_error(tmp_path: Path, place: int, value: int) -> None:
    path = savez(tmp_path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= value
    path.write_bytes(content)
    problem = None
    try:
        read(tmp_path)
    except DataError as error:
        problem = str(error)
    assert problem is None or "art_train.npz" in problem


# --- image folder


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".bmp", ".webp", ".PNG"])
def test_folder_of_every_suffix(tmp_path: Path, suffix: str) -> None:
    for name, level in (("dog", 20), ("cat", 120), ("owl", 220)):
        write_image(tmp_path / "art" / "train" / name / f"a{suffix}", np.full((9, 7, 3), level, np.uint8))
    images = read(tmp_path)
    assert images.x.shape == (3, 8, 8, 3) and images.y.tolist() == [0, 1, 2]
    assert np.allclose(images.x.mean(axis=(1, 2, 3)), (20, 120, 220), atol=3)


def test_folder_order_is_class_then_file_name(tmp_path: Path) -> None:
    wanted = [("dog", "a"), ("dog", "b"), ("cat", "B"), ("cat", "a"), ("owl", "10"), ("owl", "9")]
    for i, (name, stem) in reversed(list(enumerate(wanted))):
        write_image(tmp_path / "art" / "train" / name / f"{stem}.png", np.full((8, 8, 3), i, np.uint8))
    images = read(tmp_path)
    assert images.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert images.y.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_folder_turns_every_8_bit_mode_into_rgb(tmp_path: Path, mode: str) -> None:
    suffix = ".jpg" if mode == "CMYK" else ".png"
    path = tmp_path / "art" / "train" / "dog" / f"a{suffix}"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(path)
    assert np.all(read(tmp_path).x >= 250)


def test_folder_ignores_case_of_classes_hidden_files_and_other_files(tmp_path: Path) -> None:
    split = tmp_path / "art" / "train"
    write_image(split / "DOG" / "a.png", noise(8, 8, 3))
    write_image(split / ".thumbnails" / "a.png", noise(8, 8, 3))
    write_image(split / "a.png", noise(8, 8, 3))
    (split / "DOG" / "._a.png").write_bytes(b"resource fork")
    (split / "DOG" / "notes.txt").write_text("text")
    (split / "DOG" / "sub.png").mkdir()
    assert len(read(tmp_path)) == 1


def test_exact_class_name_wins_over_other_case(tmp_path: Path) -> None:
    for name in ("Dog", "dog"):
        write_image(tmp_path / "art" / "train" / name / "a.png", noise(8, 8, 3))
    images = trees.find_plain(tmp_path, "art", "train", ("dog", "Dog"))
    assert read_found(images, 8).y.tolist() == [0, 1]


def test_npz_wins_over_the_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "art" / "train" / "dog" / "a.png", noise(8, 8, 3))
    assert layout.find_domain(tmp_path, "art", "train") == tmp_path / "art" / "train"
    assert len(read(tmp_path)) == 1
    path = savez(tmp_path, x=X, y=Y)
    assert layout.find_domain(tmp_path, "art", "train") == path
    assert len(read(tmp_path)) == 3
    assert layout.find_domain(tmp_path, "art", "test") is None


def test_two_folders_of_one_class_are_refused(tmp_path: Path) -> None:
    for name in ("DOG", "dog"):
        write_image(tmp_path / "art" / "train" / name / "a.png", noise(8, 8, 3))
    if len(list((tmp_path / "art" / "train").iterdir())) == 1:
        pytest.skip("this file system does not tell letter case")
    assert "folders DOG and dog both name the class dog" in refusal(tmp_path)


def test_unknown_class_folder_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "art" / "train" / "cow" / "a.png", noise(8, 8, 3))
    assert refusal(tmp_path) == f"{tmp_path}/art/train/cow: no class of that name; allowed are dog, cat, owl"


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp", ".tif"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.6])
def test_truncated_image_is_refused(tmp_path: Path, suffix: str, keep: float) -> None:
    path = tmp_path / "art" / "train" / "cat" / f"bad{suffix}"
    write_image(path.with_name(f"good{suffix}"), noise(64, 64, 3))
    write_image(path, noise(64, 64, 3))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    assert refusal(tmp_path).startswith(f"{path}: cannot be read (")


@pytest.mark.parametrize("inside", ["", "dog"])
def test_empty_folder_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "art" / "train" / inside).mkdir(parents=True)
    assert refusal(tmp_path).startswith(f"{tmp_path}/art/train: no images found; expected <class>/*{{.png,")


# --- what is not there


def test_missing_data_dir_is_refused(tmp_path: Path) -> None:
    assert f"data-dir {tmp_path}/no does not exist" in refusal(tmp_path / "no")
    (tmp_path / "file").write_bytes(b"")
    assert f"data-dir {tmp_path}/file is a file" in refusal(tmp_path / "file")


def test_missing_domain_names_what_was_tried_and_what_is_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "photo_train.npz", x=X, y=Y)
    np.savez(tmp_path / "later_test.npz", x=X, y=Y)
    write_image(tmp_path / "sketch" / "train" / "dog" / "a.png", noise(8, 8, 3))
    message = refusal(tmp_path)
    assert f"art train not found in {tmp_path}: neither art_train.npz nor art/train/<class>/" in message
    assert message.endswith("\nDomains with a train split there: photo, sketch")


def test_missing_domain_in_an_empty_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = refusal(Path())
    assert str(tmp_path) in message and message.endswith("there: none")
