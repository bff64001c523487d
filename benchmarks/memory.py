"""Resident memory of several processes that read the same data set through the cache.

    python benchmarks/memory.py pacs ../shared/data/PACS

Each process maps every domain and reads every image, as an actor of a simulation does. ``own`` is memory
that a process shares with nobody, ``shared pages`` what all of them map together: it must not grow with
the number of processes. The last line is one JSON object.
"""

import json
import multiprocessing
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedshift_datasets import catalog
from fedshift_datasets.base import SPLITS, Source

PROCESSES = (2, 8)
#: A process may own so many MB more than one that read nothing.
TARGET_MB = 20.0
MB = 1e6


def _read_all(name: str, data_dir: str, read: bool, ready: Barrier, results: "multiprocessing.Queue[float]") -> None:
    """Map and read all images, wait for the others, and report the memory that is this process's own, in MB."""
    kept = []
    if read:
        for domain in catalog.get(name).domains:
            for split in SPLITS:
                images = catalog.load(name, domain, split, Source(Path(data_dir)))
                kept.append(images)
                for start in range(0, len(images), 256):  # in batches, as training does
                    images.x[start : start + 256].sum()
    ready.wait()
    results.put(psutil.Process().memory_full_info().uss / MB)
    ready.wait()


def own_memory(name: str, data_dir: str, processes: int, read: bool) -> float:
    """Return the largest memory, in MB, that one of ``processes`` processes has to itself."""
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Barrier(processes), spawn.Queue()
    members = [spawn.Process(target=_read_all, args=(name, data_dir, read, ready, results)) for _ in range(processes)]
    for member in members:
        member.start()
    own = max(results.get() for _ in members)
    for member in members:
        member.join()
    return own


def main() -> None:
    """Compare processes that read the whole data set with processes that read nothing."""
    name, data_dir = sys.argv[1], sys.argv[2]
    pixels = 0
    for domain in catalog.get(name).domains:
        pixels += sum(catalog.load(name, domain, split, Source(Path(data_dir))).x.nbytes for split in SPLITS)
    print(f"{name}: {pixels / MB:.0f} MB of pixels")
    extra = {}
    for processes in PROCESSES:
        idle, busy = (own_memory(name, data_dir, processes, read) for read in (False, True))
        extra[processes] = busy - idle
        print(f"{processes} processes: {idle:.0f} MB own each without data, {busy:.0f} MB after reading all of it")
    worst, whole_mb = max(extra.values()), pixels / MB
    result = {
        "name": "memory",
        "pixels_mb": round(whole_mb),
        "extra_own_mb": {str(processes): round(own, 1) for processes, own in extra.items()},
        "ratio": round(worst / whole_mb, 4),
        "target": round(TARGET_MB / whole_mb, 4),
        "ok": worst <= TARGET_MB,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
