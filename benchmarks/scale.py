"""Time per participating client, and memory, of simulations with 200 and with 1,000 nodes.

    python benchmarks/scale.py [--rounds 6] [--set "train.epochs=1"]

Each run is `fedshift run handwritten` in Flower's Ray simulation with the two-layer CNN; a node holds 36 images.
Time is the median of a round from the second on, training and evaluation, divided by the clients that
trained in it: it must not grow with their number, nor with that of the nodes. Memory is the resident memory of
the process of the ServerApp (Flower's simulation runs in it too) and of the largest actor, the median of
what was sampled from outside while round 2 ran, and while the last one did. The last line is one JSON object.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import psutil

ROOT = Path(__file__).resolve().parent.parent
#: Nodes, and the share of them that trains in a round: 50, 200 and 200 clients.
RUNS = ((1000, 0.05), (1000, 0.2), (200, 1.0))
TARGET = 1.3
#: From the second round to the last, the memory of a process may grow by so many MB.
TARGET_MB = 20.0
EVERY_SECONDS = 0.25
MARK = "FEDSHIFT_SCALE"
SERVER, ACTOR = "flwr-simulation", "ray::ClientAppActor"
MB = 1e6


@dataclass(frozen=True)
class Sample:
    """Resident memory in MB while the round after ``done`` finished ones was running."""

    done: int
    server: float
    actor: float


def members(mark: str) -> list[psutil.Process]:
    """Return the processes of a run: those that carry the mark, and their children (Ray's workers lose it)."""
    members_now: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                members_now |= {process, *process.children(recursive=True)}
    return list(members_now)


def memory(processes: list[psutil.Process], title: str) -> float:
    """Return the resident memory, in MB, of the largest process of that title; 0 if there is none."""
    sizes = [0.0]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if any(title in part for part in process.cmdline()[:3]):
                sizes.append(process.memory_info().rss / MB)
    return max(sizes)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the finished rounds of the only run under ``folder``."""
    files = list(folder.glob("*/metrics.jsonl"))
    text = files[0].read_text() if files else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def measure(nodes: int, participation: float, rounds: int, more: list[str]) -> dict[str, Any]:
    """Run once and return its figures."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable, "-m", "fedshift", "run", "handwritten", "method=fedavg", "model.name=cnn",
            f"nodes={nodes}", f"rounds={rounds}", f"federation.participation={participation}",
            "allocation.with_replacement=true", "allocation.share=0.1", f"output-dir={folder}", "report=false", *more,
        ]  # fmt: skip
        started = time.perf_counter()
        env = os.environ | {MARK: mark, "PYTHONPATH": str(ROOT)}
        run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        samples: list[Sample] = []
        members_now: list[psutil.Process] = []
        while run.poll() is None:
            time.sleep(EVERY_SECONDS)
            done = len(lines_of(folder))
            if done < 1:  # actors come with the first round; to look through all processes takes a while
                members_now = members(mark)
                continue
            samples.append(Sample(done, memory(members_now, SERVER), memory(members_now, ACTOR)))
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}")
        lines = lines_of(folder)
    seconds = [line["seconds"] for line in lines[1:]]
    clients = len(lines[-1]["nodes"])
    early, late = ([s for s in samples if s.done == done and s.actor] for done in (1, rounds - 1))
    figures = {
        f"{kind}_mb_round_{number}": round(statistics.median(getattr(sample, kind) for sample in those), 1)
        for number, those in ((2, early), (rounds, late))
        for kind in ("server", "actor")
    }
    return {
        "nodes": nodes,
        "clients": clients,
        "seconds_per_round": round(statistics.median(seconds), 3),
        "seconds_of_rounds": seconds,
        "ms_per_client": round(1000 * statistics.median(seconds) / clients, 2),
        "whole_run_seconds": round(time.perf_counter() - started, 1),
        **figures,
    }


def main() -> None:
    """Run all sizes one after the other; print a line for each and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Simulations with 200 and 1,000 nodes.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--set", default="train.epochs=1")
    given = parser.parse_args()
    results = []
    for nodes, participation in RUNS:
        measured = measure(nodes, participation, given.rounds, given.set.split())
        results.append(measured)
        print(", ".join(f"{key} {value}" for key, value in measured.items()), flush=True)
    few, many = min(results, key=lambda r: r["clients"]), [r for r in results if r["clients"] > 50]
    ratio = max(measured["ms_per_client"] for measured in many) / few["ms_per_client"]
    growth = {
        kind: max(measured[f"{kind}_mb_round_{given.rounds}"] - measured[f"{kind}_mb_round_2"] for measured in results)
        for kind in ("server", "actor")
    }
    result = {
        "name": "scale",
        "ratio": round(ratio, 3),
        "target": TARGET,
        "memory_growth_mb": {kind: round(value, 1) for kind, value in growth.items()},
        "memory_target_mb": TARGET_MB,
        "ok": ratio <= TARGET and max(growth.values()) <= TARGET_MB,
        "runs": results,
        "machine": machine.describe(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
