"""FedShift compared with pfl-research, plain Flower and bare PyTorch: time a client, start, end, memory.

    python -m venv PFL && PFL/bin/pip install 'pfl[pytorch]'
    python benchmarks/peers.py --pfl PFL/bin/python [--jobs A,B] [--rounds 6] [--turns 3] [--only inline2,pfl,...]

Job A: 1,000 clients of 36 images, 50 a round, two-layer CNN, one local epoch in batches of 32. Job B: ten clients of
512 images, ResNet-10, batches of 64; ours on real digits (USPS) from FEDSHIFT_TEST_DATA, else ../shared/data next to
the repository, and not at all where there are none. 32x32 pixels, SGD with momentum, two processes of one thread each:

| name | what it is |
|---|---|
| `inline1`, `inline2` | `fedshift run ... engine=inline workers=1`, `2`, augmentation with it |
| `simulation` | the same in Flower's simulation, as `fedshift run` starts it |
| `flower` | Flower alone, as its quickstart has it (`run_simulation`) |
| `pfl` | pfl-research under `torch.distributed.run`; left out where `--pfl` is not given |
| `torch` | the steps alone in two processes: no federation |

The last three compute in float32 as PyTorch does by default; ours as `train.precision` says (`--precision`; `auto` is
what a user gets). All go in turns, each in processes of its own. Time a client is the median of a round from the second
on, without evaluation, over the clients of a round. Start is from the command to round 1, end from the last round to
the end of the process (ours without its report). Memory is the largest sum of the proportional set size (PSS) over all
processes of a run. The last line is one JSON object.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import psutil
import yaml

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peer_jobs"
DATA = Path(os.environ.get("FEDSHIFT_TEST_DATA") or ROOT.parent / "shared" / "data")
sys.path.insert(0, str(PEERS))
from common import JOBS, LR, MOMENTUM, WEIGHT_DECAY  # noqa: E402

PROCESSES = 2
OURS = {
    "inline1": ["engine=inline", "workers=1"],
    f"inline{PROCESSES}": ["engine=inline", f"workers={PROCESSES}"],
    "simulation": [],
}
MINE = f"inline{PROCESSES}"
#: At most this much of the other's time a client: (job, ours, theirs).
TARGETS = {
    ("A", MINE, "pfl"): 0.95,
    ("A", "simulation", "flower"): 0.6,
    ("B", MINE, "pfl"): 1.0,
}
#: Seconds to round 1, and from the last round.
START, END = 10.0, 5.0
MARK = "FEDSHIFT_PEERS"
MB = 1e6
SAMPLE_SECONDS = 0.5
SCORED_AT_THE_END = 5  # rounds that are always scored: ours goes on for so many
EMBEDDED, USPS = 360, 7291  # training images of a domain of `handwritten`, of USPS
FIGURES = ("ms", "start", "end", "mb")


def command_of(name: str, letter: str, rounds: int, folder: Path, given: argparse.Namespace) -> list[str]:
    """Return what runs a job."""
    moments_file = str(folder / "moments")
    if name in OURS:
        return ours(letter, rounds, folder, given.precision) + OURS[name]
    if name == "pfl":
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        return [given.pfl, *launch, str(PEERS / "with_pfl.py"), letter, str(rounds), moments_file]
    script = {"flower": "with_flower.py", "torch": "bare.py"}[name]
    return [sys.executable, str(PEERS / script), letter, str(rounds), moments_file]


def ours(letter: str, rounds: int, folder: Path, precision: str) -> list[str]:
    """Return the command of ours, of so many rounds without evaluation and the five that have one."""
    job, file = JOBS[letter], folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment(letter, precision)))
    return [
        sys.executable, "-m", "fedshift.cli", "run", str(file), f"nodes={job.clients}",
        f"rounds={rounds + SCORED_AT_THE_END}", "evaluate-every=1000", f"output-dir={folder}", "report=false",
    ]  # fmt: skip


def experiment(letter: str, precision: str) -> dict[str, Any]:
    """Return a job as an experiment. Images of A are embedded digits, a tenth of its domain's for each client."""
    job = JOBS[letter]
    sgd = {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    data: dict[str, Any] = {"dataset": {"name": "handwritten"}}
    data["allocation"] = {"counts": "any", "share": job.images / EMBEDDED, "with_replacement": True}
    if letter == "B":
        data["dataset"] = {"name": "digits", "domains": ["usps"], "data_dir": str((DATA / "digits").resolve())}
        data["allocation"] = {"counts": {"usps": job.clients}, "share": job.images / USPS}
    return data | {
        "model": {"name": job.network},
        "train": {"epochs": job.epochs, "batch_size": job.batch, "precision": precision} | sgd,
        "method": {"name": "fedavg"},
        "federation": {"participation": job.cohort / job.clients},
        "rounds": 1,
    }


def moments(folder: Path) -> list[float]:
    """Return when a peer's job began round 1 and ended each round, as far as it has."""
    moments_file = folder / "moments"
    lines = moments_file.read_text().splitlines() if moments_file.exists() else []
    return [json.loads(line)["at"] for line in lines if line.endswith("}")]


def rounds_of(folder: Path) -> list[float]:
    """Return the seconds of each round of ours, as far as it has come."""
    files = list(folder.glob("*/metrics.jsonl"))
    text = files[0].read_text() if files else ""
    return [json.loads(line)["seconds"] for line in text.splitlines() if line.endswith("}")]


def memory(mark: str) -> float:
    """Return the proportional set size in MB of all processes with the mark, and of their children."""
    jobs: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                jobs |= {process, *process.children(recursive=True)}
    total = 0.0
    for process in jobs:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss / MB
    return total


def watch(run: "subprocess.Popen[bytes]", mark: str, finished: Callable[[], int]) -> Iterator[tuple[int, float, float]]:
    """Yield rounds as they end, with the time and the largest memory until then in MB."""
    largest, sampled, done = 0.0, 0.0, 0
    while run.poll() is None:
        time.sleep(0.02)
        if time.time() - sampled > SAMPLE_SECONDS:
            largest, sampled = max(largest, memory(mark)), time.time()
        if (now := finished()) > done:
            done = now
            yield done, time.time(), largest


def measure(name: str, letter: str, given: argparse.Namespace) -> dict[str, float]:
    """Run a job once and return its figures.

    Raises:
        SystemExit: If it failed; with the end of what it said.
    """
    mark, job = uuid.uuid4().hex, JOBS[letter]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = command_of(name, letter, given.rounds, folder, given)
        path = str(ROOT) if name in OURS else str(PEERS)
        env = os.environ | {MARK: mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        mine = name in OURS
        with (folder / "said").open("wb") as said:
            started = time.time()
            run = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
            seen = list(watch(run, mark, lambda: len(rounds_of(folder)) if mine else len(moments(folder))))
            ended = time.time()
        if run.returncode != 0:
            tail = (folder / "said").read_text(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}:\n{tail}")
        if mine:
            seconds = rounds_of(folder)
            begun = seen[0][1] - seconds[0]
            last = seen[-1][1]
            seconds = seconds[: given.rounds]
        else:
            times = moments(folder)
            seconds = [after - before for before, after in pairwise(times)]
            begun, last = times[0], times[-1]
    return {
        "ms": 1000 * statistics.median(seconds[1:]) / job.cohort,
        "start": begun - started,
        "end": ended - last,
        "mb": seen[-1][2],
    }


def compared(letter: str, runs_of: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the ratios that have a target, turn by turn, of a job."""
    ratios = []
    for (job, mine, other), target in TARGETS.items():
        if job != letter or not (runs_of.get(mine) and runs_of.get(other)):
            continue
        each = [ours["ms"] / theirs["ms"] for ours, theirs in zip(runs_of[mine], runs_of[other], strict=True)]
        ratio = statistics.median(each)
        pair = {"job": job, "of": mine, "over": other, "ratio": round(ratio, 3)}
        ratios.append(
            pair | {"from": round(min(each), 3), "to": round(max(each), 3), "target": target, "ok": ratio <= target}
        )
    return ratios


def main() -> None:
    """Measure all in turns; print Markdown tables and, last, one JSON object."""
    known = [*OURS, "flower", "pfl", "torch"]
    parser = argparse.ArgumentParser(description="FedShift compared with its peers.")
    parser.add_argument("--pfl", help="Python of an environment with pfl and PyTorch")
    parser.add_argument("--jobs", default="A,B")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--only", default=",".join(known))
    given = parser.parse_args()
    names = [name for name in given.only.split(",") if name != "pfl" or given.pfl]
    result: dict[str, Any] = {"name": "peers", "runs": {}, "ratios": [], "machine": machine.describe()}
    for letter in given.jobs.split(","):
        if letter == "B" and not (DATA / "digits").is_dir():
            print(f"job B is left out: there are no real digits in {DATA / 'digits'}", flush=True)
            continue
        runs_of: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(given.turns):
            for name, runs in runs_of.items():
                runs.append(measure(name, letter, given))
                print(letter, name, ", ".join(f"{key} {value:.1f}" for key, value in runs[-1].items()), flush=True)
        print(f"\n| job {letter} | ms a client | start, s | end, s | memory, MB |\n|---|---|---|---|---|")
        for name, runs in runs_of.items():
            shown = [f"{statistics.median(run[key] for run in runs):.1f}" for key in FIGURES]
            print(f"| {name} | " + " | ".join(shown) + " |")
        print(flush=True)
        result["runs"][letter] = runs_of
        result["ratios"] += compared(letter, runs_of)
    result["starts"] = {"target": START, "end_target": END}
    result["ok"] = all(ratio["ok"] for ratio in result["ratios"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
