"""FedShift compared with pfl-research, BlazeFL, plain Flower and bare PyTorch, job by job, in a table.

    python benchmarks/peers.py --job A      # or B, C, D; one command each, some 8 minutes on two quiet cores

| job | what | target |
|---|---|---|
| A | 1,000 clients of 36 images, 50 a round, two-layer CNN, batches of 32 | 0.9 of the best peer |
| B | ten clients of 512 images, ResNet-10, batches of 64 | 0.95 of the best peer |
| C | ten nodes, ten epochs, a frozen network and a layer that trains | 1.3 bare loops, 1/50 of every peer |
| D | 1,000 and 100,000 clients registered, 100 a round | memory grows by less than 50 MB |

In C ours computes what is frozen once, as the bare loop does (`benchmarks/frozen.py`); peers compute it in each step.

Peers have Python environments of their own, ``pfl`` and ``blazefl`` in the folder ``--venvs`` (else
$FEDSHIFT_PEERS_VENVS, else ../peers-venvs next to the repository); one that is not there is left out, with a line:

    python3.11 -m venv VENVS/pfl && VENVS/pfl/bin/pip install 'pfl[pytorch]'
    python3.13 -m venv VENVS/blazefl && VENVS/blazefl/bin/pip install numpy tqdm torch 'blazefl==3.0.0a1'

In A and B all have the same images of each client (FedShift's, written to a file first; no augmentation), networks,
batches, epochs, SGD with momentum, and as many rounds, in two processes (or threads) of one thread each:

| name | what it is |
|---|---|
| `inline2` | `fedshift run ... engine=inline workers=2 train.precision=float32` |
| `inline2-auto` | the same with `train.precision=auto`, what a user gets |
| `simulation` | Flower's simulation, as `fedshift run` starts it, in float32 |
| `flower` | Flower alone, as its quickstart has it (`run_simulation`) |
| `pfl` | pfl-research under `torch.distributed.run` |
| `blazefl-threads`, `blazefl-processes` | BlazeFL's pools and its FedAvg; threads are for a Python without GIL |
| `torch` | the steps alone in two processes: no federation |

All go in turns, each in processes of its own. Time a client is the median of a round from the second to the last but
one (ours scores the model in the last), over the clients of a round; processor time is that of the whole run, of all
its processes as far as is seen once a second. Start is from the command to round 1, end from the last round to the end
of the process. Memory is the largest sum of the proportional set size (PSS) over all processes of a run. Accuracy and
loss of the last model on the same test images show that each trains. Ratios are of the same turn. The last line is one
JSON object.
"""

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
import torch
import yaml

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peer_jobs"
DATA = Path(os.environ.get("FEDSHIFT_TEST_DATA") or ROOT.parent / "shared" / "data")
VENVS = Path(os.environ.get("FEDSHIFT_PEERS_VENVS") or ROOT.parent / "peers-venvs")
sys.path.insert(0, str(PEERS))
from common import (  # noqa: E402
    ENCODER,
    FROZEN_CLASSES,
    FROZEN_SIZE,
    IMAGES,
    JOBS,
    MOMENTS,
    MOMENTUM,
    SCORES,
    WEIGHT_DECAY,
)

PROCESSES = 2
FLOAT32 = "train.precision=float32"
OURS = {
    f"inline{PROCESSES}": ["engine=inline", f"workers={PROCESSES}", FLOAT32],
    f"inline{PROCESSES}-auto": ["engine=inline", f"workers={PROCESSES}", "train.precision=auto"],
    "simulation": [FLOAT32],
}
MINE = f"inline{PROCESSES}"
#: Frameworks that are peers: of these the best is what ours is compared with.
SCRIPTS = {
    "flower": ("with_flower.py", ""), "pfl": ("with_pfl.py", ""), "blazefl-threads": ("with_blazefl.py", "threads"),
    "blazefl-processes": ("with_blazefl.py", "processes"), "torch": ("bare.py", ""),
}  # fmt: skip
FRAMEWORKS = tuple(name for name in SCRIPTS if name != "torch")
#: At most this part of the best peer's time a client.
TARGETS = {"A": 0.9, "B": 0.95}
ROUNDS, TURNS = {"A": 10, "B": 4}, {"A": 2, "B": 1, "C": 3, "D": 1}
#: D: nodes, of which so many train in a round, and by how much memory may grow from the first to the last.
REGISTERED, COHORT, GROWTH_MB = (1000, 100_000), 100, 50.0
VENV_OF = ("pfl", "blazefl")  # peers with an environment of their own
#: C: the jobs of peers, of few images and of more, from which a round is extrapolated.
FEW_AND_MORE = ("C1", "C2")
#: C: at most so many times the bare loop, and at most this part of a peer that computes features anew.
BARE_TIMES, PEER_PART = 1.3, 1 / 50
MARK = "FEDSHIFT_PEERS"
MB = 1e6
SAMPLE_SECONDS = 1.0
EMBEDDED, USPS = 360, 7291  # training images of a domain of `handwritten`, of USPS
FIGURES = ("ms", "cpu", "start", "end", "mb", "accuracy", "loss")


@dataclass(frozen=True)
class Setting:
    """What all runs of a job share.

    Attributes:
        letter: The job's.
        rounds: Of each run.
        venvs: Folder of the peers' environments.
        images: File with the images of each client.
        encoder: File with a frozen network that comes before what trains; None for none.
    """

    letter: str
    rounds: int
    venvs: Path
    images: Path
    encoder: Path | None = None

    def python(self, name: str) -> str:
        """Return the Python of a run; empty where it is not there."""
        venv = name.split("-")[0] if name.split("-")[0] in VENV_OF else None
        python = sys.executable if venv is None else str(self.venvs / venv / "bin" / "python")
        return python if Path(python).exists() else ""


def command_of(name: str, setting: Setting, folder: Path) -> list[str]:
    """Return what runs a job."""
    if name in OURS:
        return [*ours(setting, folder), *OURS[name]]
    script, mode = SCRIPTS[name]
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"] if name == "pfl" else []
    words = [setting.letter, str(setting.rounds), mode]
    return [setting.python(name), *launch, str(PEERS / script), *filter(None, words)]


def ours(setting: Setting, folder: Path) -> list[str]:
    """Return the command of ours; the model is scored after the last round alone."""
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment(setting.letter)))
    return [
        sys.executable, "-m", "fedshift.cli", "run", str(file), f"nodes={JOBS[setting.letter].clients}",
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


# --- one run -----------------------------------------------------------------------------------------


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
    job, mine = JOBS[setting.letter], name in OURS
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {IMAGES: setting.images, MOMENTS: folder / "moments", SCORES: folder / "scores"}
        files |= {ENCODER: setting.encoder} if setting.encoder else {}
        ran = run(
            command_of(name, setting, folder), folder, ROOT if mine else PEERS,
            lambda: len(rounds_of(folder)) if mine else len(moments(folder)),
            {} if mine else {key: str(file) for key, file in files.items()},
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


SCORED = {"accuracy": "accuracy", "loss": "test_loss"}  # by key of the table, the key of a round


# --- jobs A and B ------------------------------------------------------------------------------------


def of_training(given: argparse.Namespace) -> dict[str, Any]:
    """Measure job A or B; return its result."""
    letter = given.job
    if letter == "B" and not (DATA / "digits").is_dir():
        raise SystemExit(f"job B is not measured: there are no real digits in {DATA / 'digits'}")
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(letter, given.rounds or ROUNDS[letter], given.venvs, Path(folder) / "images.npz")
        write_images(letter, setting.images)
        wanted = given.only.split(",") if given.only else [*OURS, *SCRIPTS]
        names = [name for name in wanted if setting.python(name)]
        for name in wanted:
            if name not in names:
                print(f"{name} is left out: there is no environment for it in {given.venvs}", flush=True)
        runs_of: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(given.turns):
            for name, runs in runs_of.items():
                runs.append(measure(name, setting))
                print(letter, name, ", ".join(f"{key} {value:.1f}" for key, value in runs[-1].items()), flush=True)
    print(f"\n{about(given)}\n")
    print(f"| job {letter}, {setting.rounds} rounds | ms a client | processor s | start, s | end, s | memory, MB | "
          "accuracy, % | loss |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, runs in runs_of.items():
        shown = [statistics.median(run[key] for run in runs) for key in FIGURES]
        print(f"| {name} | " + " | ".join("" if np.isnan(value) else f"{value:.3f}" if key == "loss" else f"{value:.1f}"
                                          for key, value in zip(FIGURES, shown, strict=True)) + " |")  # fmt: skip
    return {"runs": runs_of, "ratios": compared(letter, runs_of)}


def compared(letter: str, runs_of: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the ratio of ours to the best peer, turn by turn; print them."""
    peers = [name for name in FRAMEWORKS if runs_of.get(name)]
    ratios: list[dict[str, Any]] = []
    if not peers:
        return ratios
    best = min(peers, key=lambda name: statistics.median(run["ms"] for run in runs_of[name]))
    print(f"\n| ours over {best}, the best peer | time a client | by turns | target | processor time of the run |")
    print("|---|---|---|---|---|")
    for mine in (name for name in OURS if runs_of.get(name)):
        each, cpu = (
            [ours[key] / theirs[key] for ours, theirs in zip(runs_of[mine], runs_of[best], strict=True)]
            for key in ("ms", "cpu")
        )
        ratio, target = statistics.median(each), TARGETS[letter] if mine == MINE else None
        ratios.append({"of": mine, "over": best, "ratio": round(ratio, 3), "cpu": statistics.median(cpu),
                       "target": target, "ok": target is None or ratio <= target})  # fmt: skip
        print(f"| {mine} | {ratio:.2f} | {min(each):.2f} to {max(each):.2f} | {target or ''} | "
              f"{statistics.median(cpu):.2f} |")  # fmt: skip
    return ratios


# --- job D -------------------------------------------------------------------------------------------


def of_many(given: argparse.Namespace) -> dict[str, Any]:
    """Measure job D; return its result."""
    rows: dict[tuple[str, int], list[dict[str, float]]] = {}
    engines = given.only.split(",") if given.only else ["inline1", f"inline{PROCESSES}"]
    for _ in range(given.turns):
        for engine in engines:
            for nodes in given.registered:
                rows.setdefault((engine, nodes), []).append(many(engine, nodes, given.rounds or 4))
                print("D", engine, nodes, rows[engine, nodes][-1], flush=True)
    print(f"\n{about(given)}\n")
    print("| engine | clients registered | start, s | s a round | memory in rounds, MB | largest, MB | processor s |")
    print("|---|---|---|---|---|---|---|")
    medians = {
        key: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for key, runs in rows.items()
    }
    for (engine, nodes), row in medians.items():
        print(f"| {engine} | {nodes:,} | {row['start']:.1f} | {row['round']:.2f} | {row['mb']:.0f} | "
              f"{row['largest']:.0f} | {row['cpu']:.1f} |")  # fmt: skip
    ratios = []
    few, most = given.registered[0], given.registered[-1]
    for engine in engines:
        grown = {name: medians[engine, most][name] - medians[engine, few][name] for name in ("mb", "largest")}
        ok = grown["mb"] < GROWTH_MB
        verdict = f"target: below {GROWTH_MB:.0f}: {'met' if ok else 'missed'}"
        ratios.append({"of": engine, "grown_mb": grown, "target": GROWTH_MB, "ok": ok})
        print(
            f"\n{engine}: from {few:,} to {most:,} clients memory grows by {grown['mb']:.0f} MB in rounds ({verdict}), "
            f"the largest by {grown['largest']:.0f} MB"
        )
    return {"runs": {f"{engine} {nodes}": runs for (engine, nodes), runs in rows.items()}, "ratios": ratios}


def many(engine: str, nodes: int, rounds: int) -> dict[str, float]:
    """Run FedAvg with so many nodes, of which ``COHORT`` train in a round, and return its figures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = ["engine=simulation"] if engine == "simulation" else ["engine=inline", f"workers={engine[6:]}"]
        command = [
            sys.executable, "-m", "fedshift.cli", "run", "handwritten", f"nodes={nodes}", f"rounds={rounds}", *words,
            f"federation.participation={COHORT / nodes}", "allocation.with_replacement=true", "allocation.share=0.1",
            "train.epochs=1", "evaluate-every=1000", "evaluate.last=1", f"output-dir={folder}", "report=false",
        ]  # fmt: skip
        ran = run(command, folder, ROOT, lambda: len(rounds_of(folder)), {})
        seconds = [line["seconds"] for line in rounds_of(folder)]
    return {
        "start": ran.ends[0] - seconds[0] - ran.started, "round": statistics.median(seconds[1:-1] or seconds),
        "mb": statistics.median(mb for done, mb in ran.memory if done), "largest": ran.largest, "cpu": ran.cpu,
    }  # fmt: skip


# --- job C -------------------------------------------------------------------------------------------


def of_frozen(given: argparse.Namespace) -> dict[str, Any]:
    """Measure job C; return its result.

    Raises:
        SystemExit: If there is no PACS.
    """
    import frozen

    data = DATA / "PACS"
    if not data.is_dir():
        raise SystemExit(f"job C is not measured: there is no PACS in {data}")
    torch.set_num_threads(1)
    asked = argparse.Namespace(data=data, share=0.14, rounds=given.rounds or 6, turns=given.turns)
    ours, _ = frozen.our_round(asked)
    bare = frozen.bare_round(asked)
    sizes = frozen.node_sizes(frozen.config_of(data, asked.share))
    epochs = frozen.config_of(data, asked.share).train.epochs
    print(f"C inline1 {ours}, bare {bare}", flush=True)
    rounds: dict[str, Extrapolated] = {}
    with tempfile.TemporaryDirectory() as folder:
        images, encoder = Path(folder) / "images.npz", Path(folder) / "encoder.pt"
        write_frozen(images, encoder)
        wanted = given.only.split(",") if given.only else list(SCRIPTS)
        for name in wanted:
            settings = [Setting(letter, 3, given.venvs, images, encoder) for letter in FEW_AND_MORE]
            if not settings[0].python(name):
                print(f"{name} is left out: there is no environment for it in {given.venvs}", flush=True)
                continue
            rounds[name] = Extrapolated.of([measure(name, setting) for setting in settings], epochs * sum(sizes))
            print("C", name, rounds[name], flush=True)
    print(f"\n{about(given)}\n\nTen nodes with {min(sizes)} to {max(sizes)} images, {epochs} epochs. ", end="")
    few, more = (JOBS[letter].images * JOBS[letter].cohort for letter in FEW_AND_MORE)
    print("Peers compute the frozen network in each step; a round is extrapolated from those of one epoch", end="")
    print(f" of {few} and {more} made images, without scores.\n")
    print("| job C | a round | ours over it | target |\n|---|---|---|---|")
    print(f"| FedShift, kept features, one process | {ours.wall:.2f} s | | |")
    rows = {"bare PyTorch on kept features, one process": (bare.wall, BARE_TIMES)}
    rows |= {f"{name}, two processes, extrapolated": (took.seconds, PEER_PART) for name, took in rounds.items()}
    ratios = []
    for name, (seconds, target) in rows.items():
        ratio = ours.wall / seconds
        ratios.append({"of": "inline1", "over": name, "ratio": ratio, "target": target, "ok": ratio <= target})
        print(f"| {name} | {seconds:.2f} s | {ratio:.3g} | {target} |")
    print(f"\nIn processor time ours is {ours.cpu / bare.cpu:.2f} times the bare loop.")
    return {"runs": {name: vars(took) for name, took in rounds.items()}, "ratios": ratios}


@dataclass(frozen=True)
class Extrapolated:
    """A round of a peer, extrapolated from two that have fewer images.

    Attributes:
        few, more: Seconds of those.
        seconds: Of the whole round.
    """

    few: float
    more: float
    seconds: float

    @classmethod
    def of(cls, measured: list[dict[str, float]], images: int) -> "Extrapolated":
        """Return the round of so many images, each as often as it is trained on: what does not grow with them once."""
        jobs = [JOBS[letter] for letter in FEW_AND_MORE]
        few, more = (run["ms"] / 1000 * job.cohort for run, job in zip(measured, jobs, strict=True))
        numbers = [job.images * job.cohort for job in jobs]
        of_image = (more - few) / (numbers[1] - numbers[0])
        return cls(few, more, few + of_image * (images - numbers[0]))


def write_frozen(images: Path, encoder: Path) -> None:
    """Write made images for the peers, and the frozen network as a file that any of their environments can read."""
    import timm

    job, rng = JOBS[FEW_AND_MORE[-1]], np.random.default_rng(0)
    number = job.images * job.cohort
    x = rng.integers(0, 256, (number, FROZEN_SIZE, FROZEN_SIZE, 3), np.uint8)
    y = rng.integers(0, FROZEN_CLASSES, number)
    held = np.arange(number).reshape(job.cohort, job.images)
    np.savez(images, x=x, y=y, test_x=x[:32], test_y=y[:32], held=held)
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0).eval().requires_grad_(False)
    with torch.inference_mode():
        torch.jit.save(torch.jit.trace(network, torch.zeros(2, 3, FROZEN_SIZE, FROZEN_SIZE)), str(encoder))  # type: ignore[no-untyped-call]


# --- what all say ------------------------------------------------------------------------------------


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


def main() -> None:
    """Measure a job; print a Markdown table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="FedShift compared with its peers.")
    parser.add_argument("--job", required=True, choices=list(JOB_OF))
    parser.add_argument("--venvs", type=Path, default=VENVS, help="folder of the peers' environments")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--registered", type=_numbers, default=REGISTERED, help="of job D, such as 1000,100000")
    parser.add_argument("--only", default="", help="names of what is run, with commas")
    given = parser.parse_args()
    given.turns = given.turns or TURNS[given.job]
    given.load = os.getloadavg()
    result = {"name": f"peers {given.job}", "machine": machine.describe()} | JOB_OF[given.job](given)
    result["ok"] = all(ratio["ok"] for ratio in result["ratios"])
    print(json.dumps(result))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


JOB_OF: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "A": of_training, "B": of_training, "C": of_frozen, "D": of_many,
}  # fmt: skip

if __name__ == "__main__":
    main()
