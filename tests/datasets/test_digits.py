"""The digits: every layout on small trees, every refusal, and the real files where they are."""

import bz2
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torchvision  # type: ignore[import-untyped]
from data_refusals import refuses
from digit_files import LABELS, NATIVE, load, noise, write_folder, write_mnist
from image_trees import SPLITS
from scipy.io import savemat

from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.listing import Arrays
from fedshift_datasets.sets import digits


def check_small(images: ImageSet) -> None:
    assert images.x.shape == (12, 32, 32, 3) and images.x.dtype == np.uint8
    assert images.y.tolist() == LABELS.tolist() and images.y.dtype == np.int64


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("folder", ["", "{domain}", "{DOMAIN}"])
@pytest.mark.parametrize(("domain", "shape"), [("mnist", (28, 28)), ("usps", (16, 16)), ("svhn", (32, 32, 3))])
def test_native_files(tmp_path: Path, folder: str, domain: str, shape: tuple[int, ...], split: Split) -> None:
    path = NATIVE[domain](tmp_path / folder.format(domain=domain, DOMAIN=domain.upper()), split)
    found = digits.find(domain, split, Source(tmp_path))
    labels = [path.with_name(path.name.replace("images-idx3", "labels-idx1"))] if domain == "mnist" else []
    assert isinstance(found, Arrays) and found.files == (path, *labels)
    check_small(load(tmp_path, domain, split))
    wanted = np.broadcast_to(noise(12, *shape).reshape(12, *shape[:2], -1), (12, *shape[:2], 3))
    assert np.abs(found.read().x.astype(int) - wanted).max() <= (domain == "usps")  # torchvision cuts, not rounds


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("imgs_train", "imgs_valid"), ("training", "testing")])
@pytest.mark.parametrize("folder", ["mnistm", "mnist_m", "MNIST-M", "syn", "SYN", "synth", "synthetic_digits"])
def test_folders_as_found_in_the_field(tmp_path: Path, folder: str, train: str, test: str) -> None:
    domain = "mnistm" if folder.lower().startswith("m") else "syn"
    write_folder(tmp_path / folder / train)
    with refuses(domain, "test", "not found"):
        load(tmp_path, domain, "test")
    write_folder(tmp_path / folder / test)
    for split in SPLITS:
        assert load(tmp_path, domain, split).y.tolist() == list(range(10))


# --- layouts


# --- refusals


@pytest.mark.parametrize(
    "damage", [*(lambda c, k=k: c[: int(len(c) * k)] for k in (0.0, 0.01, 0.5, 0.99)), lambda c: bytes(noise(5000))]
)
@pytest.mark.parametrize("domain", [*NATIVE, "mnist.gz"])
def test_damaged_native_file_is_refused_by_name(tmp_path: Path, domain: str, damage: Callable[[bytes], bytes]) -> None:
    path = write_mnist(tmp_path, "train", suffix=".gz") if "." in domain else NATIVE[domain](tmp_path, "train")
    path.write_bytes(damage(path.read_bytes()))
    with refuses(path):
        load(tmp_path, domain.removesuffix(".gz"))


def bz2_of(text: str) -> Callable[[Path], object]:
    return lambda root: (root / "usps.bz2").write_bytes(bz2.compress(text.encode()))


def mat_of(**content: Any) -> Callable[[Path], object]:
    return lambda root: savemat(root / "train_32x32.mat", content)


X, TWO = noise(32, 32, 3, 2), np.array([[1], [2]])


@pytest.mark.parametrize(
    ("domain", "make", "named"),
    [
        *(
            (domain, lambda root, domain=domain, more=more: NATIVE[domain](root, "train", labels=LABELS + more), named)
            for domain, more, named in [*((name, 2, "11 0 9") for name in NATIVE), ("usps", -1, "-1 8 0 9")]
        ),
        ("mnist", lambda root: write_mnist(root, "train", labels=LABELS[1:]), "12 11 train-labels-idx1-ubyte"),
        ("mnist", lambda root: write_mnist(root, "train").open("ab").write(b"\0"), "9409 (12, 28, 28)"),
        ("mnist", lambda root: write_mnist(root, "train").rename(root / "elsewhere"), "not found MNIST/raw"),
        *(("usps", bz2_of(text), "usps.bz2") for text in ("", "1 1:0.5\n", "one 1:0.5\n", "\n")),
        *(
            ("svhn", mat_of(**content), "train_32x32.mat")
            for content in (
                {"X": X},
                {"y": TWO},
                {"X": X[..., 0, 0], "y": TWO[:1]},
                {"X": X / 255, "y": TWO},
                {"X": X, "y": TWO / 1},
                {"X": X, "y": np.array(["a", "b"], object)},
            )
        ),
    ],
)
def test_native_files_of_other_content_are_refused(
    tmp_path: Path, domain: str, make: Callable[[Path], object], named: str
) -> None:
    make(tmp_path)
    with refuses(*named.split()):
        load(tmp_path, domain)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with refuses("data-dir"):
        load(None, "mnist")
    with refuses("emnist", *digits.DOMAINS):
        load(tmp_path, "emnist")
    with refuses("data-dir", tmp_path / "no"):
        load(tmp_path / "no", "mnist")
    with refuses("svhn test", tmp_path, "svhn_test.npz", "none"):
        load(tmp_path, "svhn", "test")
    write_mnist(tmp_path, "train")
    write_folder(tmp_path / "MNIST-M" / "imgs_valid")
    with refuses("svhn train", "mnist (train), mnistm (test)"):
        load(tmp_path, "svhn")
    with refuses("syn", tmp_path, "syn_train.npz"):  # which nobody can download
        load(tmp_path, "syn", download=True)


# --- download


@pytest.mark.parametrize("domain", NATIVE)
def test_download_asks_torchvision_once(tmp_path: Path, domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root, calls = tmp_path / "new", []
    original = getattr(torchvision.datasets, domain.upper())

    def fetch(where: Path, **options: Any) -> Any:
        if not options.get("download"):
            return original(where, **options)  # USPS is read through torchvision too
        calls.append(options)
        return NATIVE[domain](where, "train")

    monkeypatch.setattr(torchvision.datasets, domain.upper(), fetch)
    for _ in range(2):
        check_small(load(root, domain, download=True))
    assert calls == [{"download": True, **({"split": "train"} if domain == "svhn" else {"train": True})}]


@pytest.mark.parametrize("domain", NATIVE)
def test_failed_download_names_domain_and_cause(tmp_path: Path, domain: str) -> None:
    error = RuntimeError("Error downloading:\nTried mirror, got:\n<urlopen error no route>\n" + "more " * 200)
    with (
        patch.object(torchvision.datasets, domain.upper(), side_effect=error),
        refuses(f"{domain} train", tmp_path, "<urlopen error no route>"),
    ):
        load(tmp_path, domain, download=True)
