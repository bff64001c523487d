"""Images per second of the training input path: whole batches against one PIL image at a time.

Ours: uint8 images in memory (a memory-mapped array at 128 pixels), ``fedshift_clients.images.augment.Pipeline`` on
batches of 64. Theirs: torch's DataLoader over PIL images with torchvision's v1 transforms, as in the papers' code; at
128 pixels the images are opened from JPEG files. Both cut with padding 4, flip and normalise, in one thread and one
process, in turns, and see every image once a repetition. Before timing, both must agree without augmentation.

The real images are looked for in FEDSHIFT_TEST_DATA, else in ../shared/data next to the repository; where they
are absent, made-up ones of the same size take their place.

Run: python benchmarks/data.py [--repeats 7]
"""

import argparse
import json
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1  # type: ignore[import-untyped]

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.training.settings import ImageConfig
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

BATCH = 64
IMAGES = {32: 6400, 128: 1920}  # a repetition at each size
TARGETS = {32: 5.0, 128: 10.0}  # times faster
CONFIG = ImageConfig(crop_padding=4, flip=True)
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")

Pixels = NDArray[np.uint8]
Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """The two paths over the same images.

    Attributes:
        name: What is shown.
        size: Height and width in pixels.
        images: All images (N, size, size, 3), for our path.
        pictures: The same images, each opened as PIL image by a call, for theirs.
    """

    name: str
    size: int
    images: Pixels
    pictures: list[Callable[[], Image.Image]]


class Pictures(Dataset[tuple[Tensor, int]]):
    """PIL images, transformed one by one."""

    def __init__(self, pictures: list[Callable[[], Image.Image]], transform: Callable[[Image.Image], Tensor]) -> None:
        self.pictures = pictures
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.pictures[index]()), 0


def ours(case: Case, repeat: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield augmented batches as a node's training loop does."""
    pipeline = Pipeline(CONFIG, torch.device("cpu"))
    rng = torch.Generator().manual_seed(repeat)
    images, labels = torch.from_numpy(case.images), torch.zeros(len(case.images), dtype=torch.int64)
    for index in torch.split(torch.randperm(len(labels), generator=rng), BATCH):
        x = torch.index_select(images, 0, index)
        yield pipeline.train(x, rng), labels[index]


def theirs(case: Case, repeat: int) -> Batches:
    """Return the usual DataLoader of augmented images."""
    steps = [v1.RandomCrop(case.size, padding=4), v1.RandomHorizontalFlip()]
    rng = torch.Generator().manual_seed(repeat)
    return DataLoader(Pictures(case.pictures, plain_steps(case, steps)), BATCH, shuffle=True, generator=rng)


def plain_steps(case: Case, augmentation: list[Any]) -> Callable[[Image.Image], Tensor]:
    """Return the PIL transforms with an augmentation in their midst; files are resized first."""
    resize = [v1.Resize((case.size, case.size))] if case.size == 128 else []
    steps: Callable[[Image.Image], Tensor] = v1.Compose(
        [*resize, *augmentation, v1.ToTensor(), v1.Normalize(CONFIG.mean, CONFIG.std)]
    )
    return steps


def check_agreement(case: Case) -> None:
    """Stop if the two paths do not see the same images."""
    x = Pipeline(CONFIG, torch.device("cpu")).plain(torch.from_numpy(case.images[:BATCH]))
    plain = plain_steps(case, [])
    torch.testing.assert_close(x, torch.stack([plain(picture()) for picture in case.pictures[:BATCH]]))


def images_per_second(batches: Batches) -> float:
    """Run through the batches and return the rate."""
    start, seen = time.perf_counter(), 0
    for x, _ in batches:
        seen += len(x)
    return seen / (time.perf_counter() - start)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Time both paths in turns, after one pass of each that does not count."""
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for repeat in range(-1, repeats):
        for name, path in (("ours", ours), ("theirs", theirs)):
            rate = images_per_second(path(case, repeat + 1))
            if repeat >= 0:
                rates[name].append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio, target = medians["ours"] / medians["theirs"], TARGETS[case.size]
    spread = {name: [min(values), max(values)] for name, values in rates.items()}
    return {
        "images": case.name, "ratio": ratio, "target": target, "ok": ratio >= target, "medians": medians,
        "spread": spread,
    }  # fmt: skip


# --- the images ------------------------------------------------------------------------------------


def case_at_32(data: Path) -> Case:
    """Return MNIST's digits at 32 pixels, or made-up images."""
    if (data / "digits").is_dir():
        name = "mnist at 32"
        images = catalog.load("digits", "mnist", "train", Source(data / "digits")).x[: IMAGES[32]].copy()
    else:
        name, images = "made-up images at 32", made_up(32)
    return Case(name, 32, images, [lambda x=x: Image.fromarray(x) for x in images])  # type: ignore[misc]


def case_at_128(data: Path, folder: Path) -> Case:
    """Return PACS at 128 pixels as JPEG files and a memory-mapped array in ``folder``, or made-up images."""
    if (data / "PACS").is_dir():
        name, files = "PACS at 128", extracted(data / "PACS", folder)
    else:
        name, files = "made-up images at 128", saved(made_up(128), folder)
    pixels = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=(len(files), 128, 128, 3)
    )
    for i, path in enumerate(files):
        pixels[i] = np.asarray(open_picture(path))
    pixels.flush()
    # Copy on write: torch wants arrays that may be written to, and nobody writes.
    images = np.load(folder / "images.npy", mmap_mode="c")
    return Case(name, 128, images, [lambda path=path: open_picture(path) for path in files])  # type: ignore[misc]


def open_picture(path: Path) -> Image.Image:
    """Open a file as torchvision's ImageFolder does."""
    with path.open("rb") as file:
        return Image.open(file).convert("RGB")


def extracted(pacs: Path, folder: Path) -> list[Path]:
    """Extract evenly spaced images of every domain."""
    files = []
    for domain in DOMAINS:
        with tarfile.open(pacs / f"{domain}.tar") as tar:
            members = [member for member in tar.getmembers() if member.isfile()]
            count = IMAGES[128] // len(DOMAINS)
            chosen = [members[i * len(members) // count] for i in range(count)]
            tar.extractall(folder, chosen, filter="data")
            files += [folder / member.name for member in chosen]
    return files


def made_up(size: int) -> Pixels:
    """Return smooth random images with some noise: as JPEG files about as large as photographs."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, size=(IMAGES[size], 8, 8, 3), dtype=np.uint8)
    smooth = np.stack([np.asarray(Image.fromarray(x).resize((size, size), Image.Resampling.BICUBIC)) for x in coarse])
    noise = rng.integers(-8, 9, size=smooth.shape)
    return (smooth + noise).clip(0, 255).astype(np.uint8)


def saved(images: Pixels, folder: Path) -> list[Path]:
    """Save images as JPEG files."""
    files = [folder / f"{i}.jpg" for i in range(len(images))]
    for path, x in zip(files, images, strict=True):
        Image.fromarray(x).save(path, quality=90)
    return files


# --- the report ------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    """Print one case of the table."""
    for name in ("theirs", "ours"):
        low, high = result["spread"][name]
        print(f"{result['images']:24} {name:7} {result['medians'][name]:10,.0f} {low:10,.0f} {high:10,.0f}")
    verdict = "ok" if result["ok"] else "MISSED"
    print(f"{'':24} ratio   {result['ratio']:10.1f}   (at least {result['target']:g}: {verdict})")


def main() -> None:
    """Measure both sizes; print a table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Images per second of the training input path.")
    parser.add_argument("--repeats", type=int, default=7)
    repeats: int = parser.parse_args().repeats
    torch.set_num_threads(1)
    shared_data = Path(__file__).resolve().parents[2] / "shared" / "data"
    data = Path(os.environ.get("FEDSHIFT_TEST_DATA", shared_data))
    results = []
    print(f"{'images per second':24} {'path':7} {'median':>10} {'lowest':>10} {'highest':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for case in (case_at_32(data), case_at_128(data, Path(folder))):
            check_agreement(case)
            results.append(measure(case, repeats))
            show(results[-1])
    tightest = min(results, key=lambda result: result["ratio"] / result["target"])
    head = {"name": "data", "ratio": tightest["ratio"], "target": tightest["target"]}
    report = head | {"ok": all(result["ok"] for result in results), "cases": results, "machine": machine.describe()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
