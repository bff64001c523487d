"""The digits: every layout on small trees, every refusal, and the real files where they are."""

import bz2
import hashlib
from pathlib import Path
from typing import Any

import image_trees
import numpy as np
import pytest
import torchvision  # type: ignore[import-untyped]
from digit_files import LABELS, NATIVE, load, noise, write_folder, write_mnist, write_svhn, write_usps
from image_trees import SPLITS
from scipy.io import savemat
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.base import ImageSet, Split
from fedshift_datasets.catalog import DATASETS
from fedshift_datasets.io import files
from fedshift_datasets.sets.digits import DOMAINS

REAL = image_trees.REAL / "digits"


def refusal(root: Path | None, domain: str, split: Split = "train", *, download: bool = False) -> str:
    """Return the message with which a load is refused: two lines at most."""
    return refusal_of(DataError, load, root, domain, split, download=download)


def check_small(images: ImageSet) -> None:
    assert images.x.shape == (12, 32, 32, 3) and images.x.dtype == np.uint8
    assert images.y.tolist() == LABELS.tolist() and images.y.dtype == np.int64


def test_data_set_describes_itself() -> None:
    assert (
        DATASETS["digits"].name == "digits" and DATASETS["digits"].size == 32 and "\n" not in DATASETS["digits"].title
    )
    assert DATASETS["digits"].domains == ("mnist", "usps", "mnistm", "svhn", "syn")
    assert DATASETS["digits"].classes == tuple("0123456789")


# --- layouts


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("domain", DOMAINS)
def test_npz_and_image_folder_of_every_domain(tmp_path: Path, domain: str, split: Split) -> None:
    write_folder(tmp_path / domain / split)
    images = load(tmp_path, domain, split)
    assert images.y.tolist() == list(range(10)) and images.x[:, 5, 5, 1].tolist() == [20 * k for k in range(10)]
    np.savez(tmp_path / f"{domain}_{split}.npz", x=noise(12, 16, 16), y=LABELS)
    check_small(load(tmp_path, domain, split))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("base", ["", "mnist", "MNIST"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_raw_files(tmp_path: Path, base: str, suffix: str, split: Split) -> None:
    write_mnist(tmp_path / base, split, suffix=suffix)
    images = load(tmp_path, "mnist", split)
    check_small(images)
    assert np.array_equal(images.x, files.resize(noise(12, 28, 28), 32))


def test_mnist_and_svhn_are_read_as_torchvision_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in SPLITS:
        write_mnist(tmp_path, split)
    mnist = torchvision.datasets.MNIST(tmp_path, train=False)
    images = load(tmp_path, "mnist", "test")
    assert np.array_equal(images.x, files.resize(mnist.data.numpy(), 32))
    assert images.y.tolist() == mnist.targets.tolist()
    path = write_svhn(tmp_path, "test")
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(torchvision.datasets.SVHN.split_list, "test", ["", path.name, md5])
    svhn, images = torchvision.datasets.SVHN(tmp_path, split="test"), load(tmp_path, "svhn", "test")
    assert np.array_equal(images.x, svhn.data.transpose(0, 2, 3, 1)) and images.y.tolist() == svhn.labels.tolist()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("base", ["", "usps", "USPS", "Usps"])
def test_usps_files(tmp_path: Path, base: str, split: Split) -> None:
    write_usps(tmp_path / base, split)
    images = load(tmp_path, "usps", split)
    check_small(images)
    wanted = files.resize(noise(12, 16, 16), 32)
    assert np.abs(images.x.astype(int) - wanted).max() <= 1  # torchvision cuts where rounding is due


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("base", ["", "svhn", "SVHN"])
def test_svhn_files(tmp_path: Path, base: str, split: Split) -> None:
    write_svhn(tmp_path / base, split)
    images = load(tmp_path, "svhn", split)
    check_small(images)
    assert np.array_equal(images.x, noise(12, 32, 32, 3)) and images.x.flags.c_contiguous


def test_svhn_of_a_single_image(tmp_path: Path) -> None:
    savemat(tmp_path / "train_32x32.mat", {"X": noise(32, 32, 3, 1), "y": np.array([[10]], np.uint8)})
    assert load(tmp_path, "svhn").y.tolist() == [0]


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("imgs_train", "imgs_valid"), ("training", "testing")])
@pytest.mark.parametrize(
    ("domain", "folder"),
    [("mnistm", name) for name in ("mnistm", "mnist_m", "MNIST-M", "MNISTM")]
    + [("syn", name) for name in ("syn", "SYN", "synth", "synthetic_digits")],
)
def test_folders_as_found_in_the_field(tmp_path: Path, domain: str, folder: str, train: str, test: str) -> None:
    write_folder(tmp_path / folder / train)
    assert "not found" in refusal(tmp_path, domain, "test")
    write_folder(tmp_path / folder / test)
    for split in SPLITS:
        assert load(tmp_path, domain, split).y.tolist() == list(range(10))


def test_val_is_test_where_there_is_no_test(tmp_path: Path) -> None:
    write_folder(tmp_path / "syn" / "val")
    assert len(load(tmp_path, "syn", "test")) == 10
    write_folder(tmp_path / "syn" / "test")
    (tmp_path / "syn" / "test" / "0" / "a.png").unlink()
    assert len(load(tmp_path, "syn", "test")) == 9


def test_plain_layouts_win_over_native_files(tmp_path: Path) -> None:
    for domain, write in NATIVE.items():
        write(tmp_path, "train")
        np.savez(tmp_path / f"{domain}_train.npz", x=noise(2, 8, 8), y=[7, 8])
        assert load(tmp_path, domain).y.tolist() == [7, 8]


# --- refusals


def test_no_data_dir_names_the_key() -> None:
    assert refusal(None, "mnist").startswith("digits needs the key data-dir: ")
    assert "data-dir" in refusal(None, "syn", download=True)


def test_unknown_domain_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "emnist").endswith("allowed are mnist, usps, mnistm, svhn, syn")


def test_missing_data_dir_is_refused(tmp_path: Path) -> None:
    assert f"data-dir {tmp_path}/no does not exist" in refusal(tmp_path / "no", "mnist")
    (tmp_path / "file").write_bytes(b"")
    assert "is a file" in refusal(tmp_path / "file", "mnist", download=True)


@pytest.mark.parametrize("domain", DOMAINS)
def test_missing_domain_names_places_and_what_is_there(tmp_path: Path, domain: str) -> None:
    message = refusal(tmp_path, domain, "test")
    assert message.startswith(f"{domain} test not found in {tmp_path}; looked for {domain}_test.npz, ")
    assert message.endswith("\nDomains of digits there: none")


def test_missing_domain_lists_all_layouts_that_are_there(tmp_path: Path) -> None:
    write_mnist(tmp_path, "train")
    for split in SPLITS:
        write_usps(tmp_path / "USPS", split)
    write_folder(tmp_path / "MNIST-M" / "imgs_valid")
    wanted = "there: mnist (train), usps (train, test), mnistm (test)"
    assert refusal(tmp_path, "svhn").endswith(wanted)
    assert refusal(tmp_path, "mnist", "test").endswith(wanted)


def test_mnist_images_without_labels_are_not_found(tmp_path: Path) -> None:
    images = write_mnist(tmp_path, "train")
    images.with_name("train-labels-idx1-ubyte").unlink()
    assert "MNIST/raw/train-{images-idx3,labels-idx1}-ubyte[.gz]" in refusal(tmp_path, "mnist")


@pytest.mark.parametrize("domain", NATIVE)
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_truncated_native_file_is_refused_by_name(tmp_path: Path, domain: str, keep: float) -> None:
    path = NATIVE[domain](tmp_path, "train")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    message = refusal(tmp_path, domain)
    assert message.startswith(f"{path}: ") and "\n" not in message


@pytest.mark.parametrize("domain", NATIVE)
def test_native_file_of_other_bytes_is_refused_by_name(tmp_path: Path, domain: str) -> None:
    path = NATIVE[domain](tmp_path, "train")
    path.write_bytes(bytes(noise(5000)))
    assert refusal(tmp_path, domain).startswith(f"{path}: ")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_truncated_gzip_is_refused_by_name(tmp_path: Path, keep: float) -> None:
    path = write_mnist(tmp_path, "train", suffix=".gz")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    assert refusal(tmp_path, "mnist").startswith(f"{path}: ")


def test_idx_with_more_bytes_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = write_mnist(tmp_path, "train")
    path.write_bytes(path.read_bytes() + b"\0")
    assert f"9409 bytes of data, but its header says {(12, 28, 28)}" in refusal(tmp_path, "mnist")


def test_mnist_with_a_label_too_few_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, "train", labels=LABELS[1:])
    message = refusal(tmp_path, "mnist")
    assert "12 images (x) but 11 labels (y)" in message and "train-labels-idx1-ubyte" in message


@pytest.mark.parametrize("domain", NATIVE)
def test_native_label_outside_the_digits_is_refused(tmp_path: Path, domain: str) -> None:
    write: Any = NATIVE[domain]
    path = write(tmp_path, "train", labels=LABELS + 2)
    message = refusal(tmp_path, domain)
    assert message.startswith(str(path)) and message.endswith("to 11, allowed are 0 to 9")


def test_usps_labels_from_0_are_refused(tmp_path: Path) -> None:
    write_usps(tmp_path, "train", labels=LABELS - 1)
    assert "labels from -1 to 8" in refusal(tmp_path, "usps")


@pytest.mark.parametrize("text", ["", "1 1:0.5\n", "one 1:0.5\n", "\n"])
def test_usps_of_other_text_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(text.encode()))
    assert refusal(tmp_path, "usps").startswith(f"{tmp_path}/usps.bz2: ")


@pytest.mark.parametrize(
    "content",
    [
        {"X": noise(32, 32, 3, 2)},
        {"y": np.array([[1]])},
        {"X": noise(32, 32), "y": np.array([[1]])},
        {"X": noise(32, 32, 3, 2) / 255, "y": np.array([[1], [2]])},
        {"X": noise(32, 32, 3, 2), "y": np.array([[1.0], [2.0]])},
        {"X": noise(32, 32, 3, 2), "y": np.array(["a", "b"], object)},
        {"X": noise(32, 32, 3, 2), "y": "ab"},
    ],
)
def test_svhn_of_other_variables_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    savemat(tmp_path / "train_32x32.mat", content)
    assert refusal(tmp_path, "svhn").startswith(f"{tmp_path}/train_32x32.mat: ")


# --- download


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("domain", NATIVE)
def test_download_asks_torchvision_once(
    tmp_path: Path, domain: str, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, calls = tmp_path / "new", []
    original = getattr(torchvision.datasets, domain.upper())

    def fetch(where: Path, **options: Any) -> Any:
        if not options.get("download"):
            return original(where, **options)  # USPS is read through torchvision too
        calls.append(options)
        return NATIVE[domain](where, split)

    monkeypatch.setattr(torchvision.datasets, domain.upper(), fetch)
    assert "does not exist" in refusal(root, domain, split)
    check_small(load(root, domain, split, download=True))
    check_small(load(root, domain, split, download=True))
    assert calls == [{"download": True} | ({"split": split} if domain == "svhn" else {"train": split == "train"})]


@pytest.mark.parametrize("domain", NATIVE)
def test_failed_download_names_domain_and_cause(tmp_path: Path, domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("Error downloading:\nTried mirror, got:\n<urlopen error no route>\n" + "more " * 200)

    monkeypatch.setattr(torchvision.datasets, domain.upper(), fail)
    message = refusal(tmp_path, domain, download=True)
    assert message.startswith(f"download of {domain} train to {tmp_path} failed (RuntimeError: ")
    assert "<urlopen error no route>" in message and len(message) < 500


def test_download_that_leaves_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets, "SVHN", lambda *args, **options: None)
    assert "svhn train not found" in refusal(tmp_path, "svhn", download=True)


@pytest.mark.parametrize("domain", ["mnistm", "syn"])
def test_what_cannot_be_downloaded_says_where_to_put_it(tmp_path: Path, domain: str) -> None:
    message = refusal(tmp_path, domain, download=True)
    assert message.startswith(f"{domain} cannot be downloaded; put it in {tmp_path} as {domain}_train.npz, ")


def test_nothing_is_downloaded_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, "train")
    monkeypatch.setattr(torchvision.datasets, "MNIST", lambda *args, **options: pytest.fail("downloaded"))
    check_small(load(tmp_path, "mnist", download=True))


# --- the real files


real = pytest.mark.skipif(not REAL.is_dir(), reason=f"real digits are not at {REAL}")


@real
@pytest.mark.parametrize(("domain", "count"), [("mnist", 10000), ("usps", 2007), ("mnistm", 6000)])
def test_real_test_splits(domain: str, count: int) -> None:
    images = load(REAL, domain, "test")
    assert images.x.shape == (count, 32, 32, 3) and images.x.dtype == np.uint8
    assert set(images.y.tolist()) == set(range(10))


@real
@pytest.mark.parametrize(("domain", "count"), [("mnist", 60000), ("usps", 7291), ("mnistm", 12000)])
def test_real_train_splits(domain: str, count: int) -> None:
    images = load(REAL, domain, "train")
    assert images.x.shape == (count, 32, 32, 3) and len(images) == count
    assert np.bincount(images.y).min() > 0.07 * count


@real
def test_real_mnist_keeps_order_and_look() -> None:
    images = load(REAL, "mnist", "test")
    assert images.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert np.array_equal(images.x[..., 0], images.x[..., 2])
    assert abs(images.x.mean() / 255 - 0.1325) < 0.002  # the mean of the published test images
