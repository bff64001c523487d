"""What the image cache's checks cost. It has 10,000 images of 64 x 64 pixels, or as many of another size as are named.

    python benchmarks/cache_check.py
    python benchmarks/cache_check.py 10000 224

Each open is one of a process of its own, but for "again": the same process once more. The images are drawn, saved as
JPEG and removed at the end. The last line is one JSON object.
"""

import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedshift_datasets.io import cache, kept
from fedshift_datasets.listing import Item, Listing

REPEATS = 5


def listed(folder: Path, count: int) -> Listing:
    """Return the listing of the images in a folder."""
    items = [Item(str(folder / f"{place}.jpg"), str(folder / f"{place}.jpg")) for place in range(count)]
    return Listing(tuple(items), np.zeros(count, np.int64))


def draw(folder: Path, count: int, size: int) -> None:
    """Save images of noise."""
    rng = np.random.default_rng(0)
    for place in range(count):
        Image.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8)).save(folder / f"{place}.jpg")


def _opening(part: cache.Part, images: Listing, results: "multiprocessing.Queue[list[float]]") -> None:
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        cache.load(part, images)
        seconds.append(time.perf_counter() - start)
    results.put(seconds)


def opened(part: cache.Part, images: Listing, before: Callable[[], object]) -> tuple[float, float]:
    """Return the median seconds of the first and the second open in a process; ``before`` is done before each."""
    context = multiprocessing.get_context("fork")
    firsts, seconds = [], []
    for _ in range(REPEATS):
        before()
        results: multiprocessing.Queue[list[float]] = context.Queue()
        process = context.Process(target=_opening, args=(part, images, results))
        process.start()
        first, second = results.get()
        process.join()
        firsts.append(first)
        seconds.append(second)
    return statistics.median(firsts), statistics.median(seconds)


def main() -> None:
    """Build a part, then open it with and without a check."""
    count, size = (int(text) for text in (sys.argv[1:3] or ("10000", "64")))
    with tempfile.TemporaryDirectory() as scratch:
        folder, home = Path(scratch, "images"), Path(scratch, "cache")
        folder.mkdir()
        os.environ[cache.CACHE_DIR] = str(home)
        draw(folder, count, size)
        part, images = cache.Part("drawn", "noise", "train", size), listed(folder, count)
        start = time.perf_counter()
        x = cache.load(part, images, workers=os.cpu_count() or 1).x
        built = time.perf_counter() - start
        kept._checked.clear()  # which forked processes would inherit
        file = next(home.glob("drawn-*"))
        checked, again = opened(part, images, lambda: kept.lock_of(file).unlink(missing_ok=True))
        believed, _ = opened(part, images, lambda: None)
        copied, _ = opened(part, images, lambda: [path.chmod(0o600) for path in folder.iterdir()])
    result = {
        "images": count, "size": size, "mb": round(x.nbytes / 1e6), "build_ms": round(built * 1e3),
        "first_open_ms": round(checked * 1e3), "another_process_ms": round(believed * 1e3),
        "again_ms": round(again * 1e3), "other_inodes_ms": round(copied * 1e3),
        "digest_mb_per_s": round(x.nbytes / 1e6 / (checked - believed)),
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
