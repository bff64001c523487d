"""Many small images: `fedshift prepare` against torchvision, the start of later runs, and many nodes over them.

    python benchmarks/large.py                      # 20,000 images of 64 pixels in six sites
    python benchmarks/large.py --images 200000      # 0.8 GB of JPEG files and 2.5 GB of decoded images, in TMPDIR

Makes the images, measures, and deletes them and all that was made of them. Times are processor seconds of a command
with all that it started, also of processes that outlive it for a moment, which other work on the machine does not
lengthen much; a second column is the clock's.
ImageFolder and DataLoader read every image once, in one process; per core, `prepare` does as much if its images a
processor second are as many. Memory is the largest resident memory of a command and its children together, without
what they share. A start is the time from the command to its first training step: the run is ended there.
"""

import argparse
import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import machine
import numpy as np
import psutil
from PIL import Image

from fedshift_app.config.files import APP
from fedshift_app.config.registry import table
from fedshift_app.run.versions import commit
from fedshift_datasets.io import cache

SITES, CLASSES, PIXELS = 6, 10, 64
HEAD = ("what", "images or nodes", "CPU s", "s", "peak MB", "images a CPU s")
RATIO, START, MOST_BYTES = 1.0, 3.5, 2e9
PR_SET_CHILD_SUBREAPER = 36  # of Linux: orphans become children of this process
#: Reads all images once, as most training code does.
THEIRS = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
torch.set_num_threads(1)
seen = 0
for site in range(int(sys.argv[2])):
    folder = datasets.ImageFolder(f"{sys.argv[1]}/site-{site}", transforms.ToTensor())
    for x, _ in DataLoader(folder, 256):
        seen += len(x)
assert seen == int(sys.argv[3]), seen
"""
#: Runs until the first training step.
STARTED = """
import os, sys
from fedshift import cli
from fedshift.run.launch import runner
run_inline = runner.run_inline
def begun(*_given, **_named):
    os._exit(0)
def until_begun(*given, **named):
    from fedshift_clients.training import trainer  # torch: when the command imports it
    trainer.LocalTrainer._train = begun
    return run_inline(*given, **named)
runner.run_inline = until_begun
sys.argv = ["fedshift", "run", *sys.argv[1:]]
cli.main()
"""


@dataclass(frozen=True)
class Taken:
    """What a command took: processor seconds, seconds, and megabytes at most."""

    cpu: float
    seconds: float
    megabytes: float


def make(folder: Path, images: int) -> int:
    """Write smooth random JPEG images, all different; return their bytes."""
    rng, size = np.random.default_rng(0), 0
    for number in range(images):
        place = folder / f"site-{number % SITES}" / f"class-{number // SITES % CLASSES}"
        if number < SITES * CLASSES:
            place.mkdir(parents=True)
        coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        file = place / f"{number:07}.jpg"
        Image.fromarray(coarse).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC).save(file, quality=85)
        size += file.stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"{number} images are {size} bytes, more than {MOST_BYTES:.0f}")
    return size


def taken(command: Sequence[str], home: Path) -> Taken:
    """Run a command to its end; stop if it fails."""
    env = os.environ | {cache.CACHE_DIR: str(home / "cache"), "PYTHONPATH": str(APP), "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPYCACHEPREFIX": str(home / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=home, stdout=log, stderr=log)
        peak = [0.0]
        watching = threading.Thread(target=watch, args=(process, peak))
        watching.start()
        code = process.wait()
        with contextlib.suppress(ChildProcessError):
            while True:  # those that decode end a moment later, without their parent
                os.wait()
        watching.join()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise SystemExit(f"{' '.join(command[:6])} ended with {code}:\n{(home / 'log').read_text()[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(cpu, seconds, peak[0])


def watch(process: "subprocess.Popen[bytes]", peak: list[float]) -> None:
    """Note the largest private memory of a process and its children, in MB."""
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid)
            total = sum(unshared(one) for one in (family, *family.children(recursive=True)))
            peak[0] = max(peak[0], total / 1e6)
        time.sleep(0.2)


def unshared(process: psutil.Process) -> float:
    """Return the memory of a process without pages of files, which the system takes back at need; in bytes."""
    with contextlib.suppress(psutil.Error):
        info = process.memory_info()
        return float(info.rss - info.shared)
    return 0.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    given = parser.parse_args()
    if given.images < 100 * SITES or given.nodes < SITES:
        parser.error(f"--images from {100 * SITES} up, --nodes from {SITES} up")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    rows: list[tuple[str, ...]] = []
    found: dict[str, Taken] = {}
    with tempfile.TemporaryDirectory(prefix="fedshift-large-") as name:
        home = Path(name)
        size = make(home / "images", given.images)
        program, python = [sys.executable, "-P", "-m", "fedshift"], [sys.executable, "-c"]
        settings = ["engine=inline", "workers=1", "report=false", "train.precision=float32", "rounds=1"]
        start = [*python, STARTED, "mine/mine.yaml", *settings, f"output-dir={home / 'runs'}"]
        many = [
            *start, f"nodes={given.nodes}", "allocation.counts=any",
            f"federation.participation={min(1.0, 10 / given.nodes)}",
        ]  # fmt: skip
        imports = [*python, "import fedshift.run.launch.runner, fedshift.data.prepare, fedshift_app.server_app"]
        taken([*python, f"{imports[-1]}, torchvision"], home)  # compiles what an installed package has compiled
        commands = {
            "`fedshift init`": [*program, "init", "mine", f"data-dir={home / 'images'}", "dataset.test_share=0.2"],
            "`fedshift prepare`": [*program, "prepare", "mine/mine.yaml"],
            "`prepare` again": [*program, "prepare", "mine/mine.yaml"],
            "ImageFolder, DataLoader": [*python, THEIRS, str(home / "images"), str(SITES), str(given.images)],
            "imports of a run alone": imports,
            "start of a run": start,
            "start of a second run": start,
            "start with many nodes": many,
        }
        for what, command in commands.items():
            one = found[what] = taken(command, home)
            number = given.nodes if command is many else given.images
            each = f"{given.images / one.cpu:,.0f}" if "prepare" in what or "Folder" in what else ""
            rows.append((what, f"{number:,}", f"{one.cpu:.1f}", f"{one.seconds:.1f}", f"{one.megabytes:.0f}", each))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    ratio = found["ImageFolder, DataLoader"].cpu / found["`fedshift prepare`"].cpu
    begun = found["start of a second run"].cpu
    print(table(HEAD, rows))
    print(
        f"\n`prepare` against ImageFolder and DataLoader per core: {ratio:.2f} (at least {RATIO:g}: "
        f"{'met' if ratio >= RATIO else 'missed'}); start of a second run {begun:.1f} CPU s (at most {START:g}: "
        f"{'met' if begun <= START else 'missed'}). {size / 1e6:.0f} MB of JPEG files. {machine.describe()}; "
        f"commit {commit(APP)}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
