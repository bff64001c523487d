"""Many small clients a round: the inline engine in one process and in several, Flower's simulation, bare PyTorch.

    python benchmarks/many_clients.py [--rounds 6] [--turns 3] [--only inline1,inline2,simulation,torch]

1,000 nodes with 36 images each of `handwritten`, 50 of which train in a round: five local epochs of the two-layer CNN
in batches of 32, float32. Bare PyTorch does the same steps on images of the same size, in two processes, and nothing
else: no federation, no augmentation, no evaluation. All go in turns, each in processes of its own.

Time a client is the median of a round from the second on, training, averaging and evaluation, divided by 50. Start is
the time until the first round begins, end that from the last round until the results are written, report that from then
until the command has ended. Memory is the largest sum, over all processes of a run, of the proportional set size (PSS),
which counts a page that several processes share once. The last line is one JSON object.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import machine
import psutil

ROOT = Path(__file__).resolve().parent.parent
CLIENTS, IMAGES, EPOCHS, BATCH, PROCESSES = 50, 36, 5, 32, 2
RUNS = {
    "inline1": ["engine=inline", "workers=1"],
    f"inline{PROCESSES}": ["engine=inline", f"workers={PROCESSES}"],
    "simulation": [],
}
TORCH = "torch"
#: Of the time of pfl-research a client over that of bare PyTorch, on another machine; ours is to be no larger.
TARGET = 1.04
MARK = "FEDSHIFT_CLIENTS"
MB = 1e6
SAMPLE_SECONDS = 0.5
FIGURES = ("ms", "start", "end", "report", "mb")


def memory(mark: str) -> float:
    """Return the proportional set size in MB of all processes with the mark, and of their children."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found |= {process, *process.children(recursive=True)}
    total = 0.0
    for process in found:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss / MB
    return total


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the finished rounds of the only run under ``folder``."""
    found = list(folder.glob("*/metrics.jsonl"))
    text = found[0].read_text() if found else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def measure(how: list[str], rounds: int) -> dict[str, float]:
    """Run once and return its figures."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable, "-m", "fedshift_app.cli", "run", "handwritten", "method=fedavg", "model.name=cnn",
            "nodes=1000", f"rounds={rounds}", "federation.participation=0.05", "allocation.with_replacement=true",
            "allocation.share=0.1", "train.precision=float32", f"train.epochs={EPOCHS}",
            f"train.batch_size={BATCH}", f"output-dir={folder}", *how,
        ]  # fmt: skip
        env = os.environ | {MARK: mark, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started = time.time()
        run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        largest, sampled, done, ended_at = 0.0, 0.0, 0, 0.0
        while run.poll() is None:
            time.sleep(0.02)
            if done < rounds and (now := len(lines_of(folder))) > done:
                done, ended_at = now, time.time()  # of the last one at the end
            if done < rounds and time.time() - sampled > SAMPLE_SECONDS:
                largest, sampled = max(largest, memory(mark)), time.time()
        ended = time.time()
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}")
        lines = lines_of(folder)
        (results,) = folder.glob("*/results.json")
        written = results.stat().st_mtime
    seconds = [line["seconds"] for line in lines]
    return {
        "ms": 1000 * statistics.median(seconds[1:]) / CLIENTS,
        "start": ended_at - started - sum(seconds),
        "end": written - ended_at,
        "report": ended - written,
        "mb": largest,
    }


def bare(begin: Any, rounds: int, told: Any) -> None:
    """Train a share of the clients of each round with a plain loop; tell the seconds of each round."""
    import torch
    from torch import nn

    from clients.models import cnn

    torch.set_num_threads(1)
    model = cnn.cnn(10, 32)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images, labels = torch.rand(IMAGES, 3, 32, 32), torch.randint(0, 10, (IMAGES,))
    for _ in range(rounds):
        begin.wait()
        started = time.perf_counter()
        for _ in range(CLIENTS // PROCESSES):
            model.load_state_dict(initial)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
            for _ in range(EPOCHS):
                for index in torch.randperm(IMAGES).split(BATCH):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images[index])[1], labels[index]).backward()
                    optimizer.step()
        told.put(time.perf_counter() - started)


def measure_torch(rounds: int) -> dict[str, float]:
    """Return the time a client of bare PyTorch."""
    context = multiprocessing.get_context("spawn")
    begin, told = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=bare, args=(begin, rounds, told)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    seconds = [max(told.get() for _ in processes) for _ in range(rounds)]
    for process in processes:
        process.join()
    return {"ms": 1000 * statistics.median(seconds[1:]) / CLIENTS}


def main() -> None:
    """Measure all in turns; print a Markdown table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Many small clients a round.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default=",".join([*RUNS, TORCH]))
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in given.only.split(",")}
    for _ in range(given.turns):
        for name, runs in found.items():
            runs.append(measure_torch(given.rounds) if name == TORCH else measure(RUNS[name], given.rounds))
            print(name, ", ".join(f"{key} {value:.1f}" for key, value in runs[-1].items()), flush=True)
    medians = {
        name: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for name, runs in found.items()
    }
    print("| | ms a client | start, s | end, s | report, s | memory, MB |\n|---|---|---|---|---|---|")
    for name, each in medians.items():
        print(f"| {name} | " + " | ".join(f"{each[key]:.1f}" if key in each else "" for key in FIGURES) + " |")
    mine = f"inline{PROCESSES}"
    result: dict[str, Any] = {"name": "clients", "target": TARGET, "runs": medians, "machine": machine.describe()}
    if mine in found and TORCH in found:
        ratios = [one["ms"] / other["ms"] for one, other in zip(found[mine], found[TORCH], strict=True)]
        ratio = statistics.median(ratios)
        result |= {"ratio": round(ratio, 3), "ok": ratio <= TARGET}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
