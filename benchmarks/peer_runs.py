"""A run of a peer or of ours for ``peers.py``: what starts it, its images, its time, processor time and memory."""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import numpy as np
import psutil
import yaml

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peer_jobs"
DATA = Path(os.environ.get("FEDSHIFT_TEST_DATA") or ROOT.parent / "shared" / "data")
VENVS = Path(os.environ.get("FEDSHIFT_PEERS_VENVS") or ROOT.parent / "peers-venvs")
sys.path.insert(0, str(PEERS))
from common import (  # noqa: E402
    DEVICE,
    ENCODER,
    IMAGES,
    JOBS,
    MOMENTS,
    MOMENTUM,
    PROCESSES,
    SCORES,
    WEIGHT_DECAY,
)

FLOAT32 = "train.precision=float32"
#: Frameworks that are peers: of these the best is what ours is compared with.
SCRIPTS = {
    "flower": ("with_flower.py", ""), "pfl": ("with_pfl.py", ""), "blazefl-threads": ("with_blazefl.py", "threads"),
    "blazefl-processes": ("with_blazefl.py", "processes"), "torch": ("bare.py", ""),
}  # fmt: skip
VENV_OF = ("pfl", "blazefl")  # peers with an environment of their own
MARK = "FEDSHIFT_PEERS"
MB = 1e6
SAMPLE_SECONDS = 1.0
EMBEDDED, USPS = 360, 7291  # training images of a domain of `handwritten`, of USPS
SCORED = {"accuracy": "accuracy", "loss": "test_loss"}  # by key of the table, the key of a round


@dataclass(frozen=True)
class Setting:
    """What all runs of a job share.

    Attributes:
        letter: The job's.
        rounds: Of each run.
        venvs: Folder of the peers' environments.
        images: File with the images of each client.
        encoder: File with a frozen network that comes before what trains; None for none.
        device: ``cpu`` or ``cuda``.
        processes: That train side by side, of one thread each.
    """

    letter: str
    rounds: int
    venvs: Path
    images: Path
    encoder: Path | None = None
    device: str = "cpu"
    processes: int = 2

    @property
    def ours(self) -> dict[str, list[str]]:
        """What a run of ours is given, by its name."""
        side_by_side = ["engine=inline", f"workers={self.processes}"]
        return {
            self.mine: [*side_by_side, FLOAT32],
            f"{self.mine}-auto": [*side_by_side, "train.precision=auto"],
            "simulation": [FLOAT32],
        }

    @property
    def mine(self) -> str:
        """The run of ours that has a target."""
        return f"inline{self.processes}"

    def python(self, name: str) -> str:
        """Return the Python of a run; empty where it is not there."""
        venv = name.split("-")[0] if name.split("-")[0] in VENV_OF else None
        python = sys.executable if venv is None else str(self.venvs / venv / "bin" / "python")
        return python if Path(python).exists() else ""


def command_of(name: str, setting: Setting, folder: Path) -> list[str]:
    """Return what runs a job."""
    if name in setting.ours:
        return [*ours(setting, folder), *setting.ours[name]]
    script, mode = SCRIPTS[name]
    launch = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={setting.processes}"]
        if name == "pfl"
        else []
    )
    words = [setting.letter, str(setting.rounds), mode]
    return [setting.python(name), *launch, str(PEERS / script), *filter(None, words)]


def ours(setting: Setting, folder: Path) -> list[str]:
    """Return the command of ours; the model is scored after the last round alone."""
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment(setting.letter)))
    return [
        sys.executable, "-m", "fedshift", "run", str(file), f"nodes={JOBS[setting.letter].clients}",
        f"rounds={setting.rounds}", "evaluate-every=1000", "evaluate.last=1", f"output-dir={folder}", "report=false",
    ]  # fmt: skip


def experiment(letter: str) -> dict[str, Any]:
    """Return a job as an experiment. Images of A are embedded digits, a tenth of its domain's for each client."""
    job = JOBS[letter]
    sgd = {"lr": job.lr, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    data: dict[str, Any] = {"dataset": {"name": "handwritten"}}
    data["allocation"] = {"counts": "any", "share": job.images / EMBEDDED, "with_replacement": True}
    if letter == "B":
        data["dataset"] = {"name": "digits", "domains": ["usps"], "data_dir": str((DATA / "digits").resolve())}
        data["allocation"] = {"counts": {"usps": job.clients}, "share": job.images / USPS}
    return data | {
        "model": {"name": job.network},
        "images": {"crop_padding": 0, "flip": False},
        "train": {"epochs": job.epochs, "batch_size": job.batch} | sgd,
        "method": {"name": "fedavg"},
        "federation": {"participation": job.cohort / job.clients},
        "rounds": 1,
    }


def write_images(letter: str, file: Path) -> None:
    """Write which images each of FedShift's nodes trains on, and all test images, for the peers."""
    sys.path.insert(0, str(ROOT))
    from fedshift_app.config import resolving
    from fedshift_app.node import data as node_data
    from fedshift_app.node import holdings
    from fedshift_app.node.place import Place

    job, written = JOBS[letter], file.with_suffix(".yaml")
    written.write_text(yaml.safe_dump(experiment(letter)))
    config = resolving.resolve({"experiment": str(written)})
    domains, source = config.dataset.domains, config.dataset.source()
    pools = {domain: holdings.read(config.dataset, domain, "train", source, shared=True) for domain in domains}
    tests = [holdings.read(config.dataset, domain, "test", source, shared=True) for domain in domains]
    first = dict(zip(domains, np.cumsum([0, *(len(pool) for pool in pools.values())]), strict=False))
    held = []
    for client, domain in enumerate(holdings.dealt(config, job.clients)):
        where = Place(domain, client, job.clients, source, shared=True, threads=1)
        held.append(first[domain] + node_data.train_places(config, where)[domain])
    arrays = {
        "x": np.concatenate([pool.x for pool in pools.values()]), "y": np.concatenate([p.y for p in pools.values()]),
        "test_x": np.concatenate([test.x for test in tests]), "test_y": np.concatenate([test.y for test in tests]),
        "held": np.stack(held),
    }  # fmt: skip
    np.savez(file, **arrays)  # type: ignore[arg-type]


def moments(folder: Path) -> list[float]:
    """Return when a peer's job began round 1 and ended each round, as far as it has."""
    moments_file = folder / "moments"
    lines = moments_file.read_text().splitlines() if moments_file.exists() else []
    return [json.loads(line)["at"] for line in lines if line.endswith("}")]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of ours, as far as it has come."""
    files = list(folder.glob("*/metrics.jsonl"))
    text = files[0].read_text() if files else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


class Watched:
    """A program while it runs.

    Attributes:
        started, ended: When, in seconds since 1970.
        ends: When its rounds ended, as far as was seen.
        memory: Proportional set size of all its processes in MB, each time with the number of full rounds.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", mark: str, finished: Callable[[], int]) -> None:
        """Watch it until it ends."""
        self.started = time.time()
        self.ends: list[float] = []
        self.memory: list[tuple[int, float]] = []
        self._mark, self._seconds = mark, dict[int, float]()  # processor time by process
        self._others: set[psutil.Process] = set()
        before, sampled = children_seconds(), 0.0
        while process.poll() is None:
            time.sleep(0.02)
            if time.time() - sampled > SAMPLE_SECONDS:
                self.memory.append((len(self.ends), self._sample()))
                sampled = time.time()
            while finished() > len(self.ends):
                self.ends.append(time.time())
        self.ended = time.time()
        # The system knows of children that were waited for; what was sampled is of all, and lacks their last moments.
        self.cpu = max(children_seconds() - before, sum(self._seconds.values()))

    def _sample(self) -> float:
        """Return the memory of all processes with the mark, and of their children; note their processor time."""
        processes: set[psutil.Process] = set()
        for process in psutil.process_iter():
            if process in self._others:  # of before the run: looked at once, as that costs time
                continue
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    processes |= {process, *process.children(recursive=True)}
                elif process.create_time() < self.started:
                    self._others.add(process)
        total = 0.0
        for process in processes:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss / MB
                used = process.cpu_times()
                self._seconds[process.pid] = used.user + used.system
        return total

    @property
    def largest(self) -> float:
        """The largest memory, in MB."""
        return max((mb for _, mb in self.memory), default=0.0)


def run(command: list[str], folder: Path, path: Path, finished: Callable[[], int], more: dict[str, str]) -> Watched:
    """Run a program.

    Raises:
        SystemExit: If it failed; with the end of what it said.
    """
    mark = uuid.uuid4().hex
    env = os.environ | {MARK: mark, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
        watched = Watched(process, mark, finished)
    if process.returncode != 0:
        tail = (folder / "said").read_text(errors="replace")[-2000:]
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return watched


def children_seconds() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(name: str, setting: Setting) -> dict[str, float]:
    """Run a job once and return its figures."""
    job, mine = JOBS[setting.letter], name in setting.ours
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {IMAGES: setting.images, MOMENTS: folder / "moments", SCORES: folder / "scores"}
        files |= {ENCODER: setting.encoder} if setting.encoder else {}
        asked = {DEVICE: setting.device, PROCESSES: str(setting.processes)}
        place = {} if setting.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}  # ours takes a GPU where it sees one
        ran = run(
            command_of(name, setting, folder), folder, ROOT if mine else PEERS,
            lambda: len(rounds_of(folder)) if mine else len(moments(folder)),
            place if mine else place | asked | {key: str(file) for key, file in files.items()},
        )  # fmt: skip
        if mine:
            lines = rounds_of(folder)
            seconds = [line["seconds"] for line in lines]
            begun, last = ran.ends[0] - seconds[0], ran.ends[-1]
            scores = {of: statistics.mean(lines[-1][key].values()) for of, key in SCORED.items()}
        else:
            times = moments(folder)
            seconds = [after - before for before, after in pairwise(times)]
            begun, last = times[0], times[-1]
            file = folder / "scores"
            scores = json.loads(file.read_text()) if file.exists() else dict.fromkeys(SCORED, float("nan"))
    return {
        "ms": 1000 * statistics.median(seconds[1:-1] or seconds) / job.cohort, "cpu": ran.cpu,
        "start": begun - ran.started, "end": ran.ended - last, "mb": ran.largest, **scores,
    }  # fmt: skip


def about(given: argparse.Namespace) -> str:
    """Return the machine, its load at the beginning, the versions and the commit."""
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    names = {
        sys.executable: ("torch", "flwr", "ray"),
        **{str(given.venvs / of / "bin/python"): (of, "torch") for of in VENV_OF},
    }
    versions = [_versions(python, wanted) for python, wanted in names.items() if Path(python).exists()]
    load = ", ".join(f"{value:.1f}" for value in given.load)
    return f"{machine.describe()}; load before: {load}; FedShift {commit.stdout.strip()}; {'; '.join(versions)}"


def _versions(python: str, names: tuple[str, ...]) -> str:
    code = "import sys, platform; from importlib.metadata import version as v; " + (
        "print('Python', platform.python_version(), *(n + ' ' + v(n) for n in sys.argv[1:]))"
    )
    said = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=False)
    return said.stdout.strip()
