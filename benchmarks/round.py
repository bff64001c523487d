"""A simulated round through ``flwr run`` against the same local work without any federation.

Federated: ten clients with ResNet-10 in Flower's simulation, one thread each, as many side by side as there are
cores; a round is messages, local training, and averaging. Its evaluation and the start of the run (SuperLink, Ray,
first question to the nodes) are counted apart. Alone: the same clients trained one after another in this process with
all cores, at the same precision. In turns, so many rounds of one and then of the other.

Real digits are looked for in FEDSHIFT_TEST_DATA, else in ../shared/data next to the repository; where they are absent,
the embedded digits take their place. With a GPU, ``--side-by-side`` tells how many clients share it.

Run: python benchmarks/round.py [--repeats 3] [--rounds 3] [--images 256] [--side-by-side N]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import torch
import yaml
from flwr.app import Context

from fedshift_app.config import resolving as configuration
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup

NODES = 10
TARGET = 0.85  # of the time alone, on two cores: two clients side by side beat one with two threads
#: Training images of a domain, of which each of its nodes gets ``--images``.
POOLS = {"mnist": 60000, "usps": 7291, "mnistm": 59001}
COUNTS = {"mnist": 4, "usps": 3, "mnistm": 3}


def experiment(data: Path, images: int) -> dict[str, Any]:
    """Return the experiment: ten nodes with so many images each, and one scored round in so many as can be."""
    common: dict[str, Any] = {
        "model": {"name": "resnet10"},
        "train": {"epochs": 2, "batch_size": 64, "lr": 0.01},
        "method": {"name": "fedavg"},
        "rounds": 1,
    }
    if (data / "digits").is_dir():
        dataset = {"name": "digits", "domains": list(COUNTS), "data_dir": str((data / "digits").resolve())}
        share = {domain: images / POOLS[domain] for domain in COUNTS}
        return common | {"dataset": dataset, "allocation": {"counts": COUNTS, "share": share}}
    counts = {"scan": 3, "texture": 3, "street": 2, "sketch": 2}
    return common | {"dataset": {"name": "handwritten"}, "allocation": {"counts": counts, "share": images / 1437}}


def federated(file: Path, rounds: int, folder: Path, side_by_side: int | None) -> dict[str, Any]:
    """Run the experiment in Flower's simulation; return the seconds of each round, and of all around them."""
    started = time.perf_counter()
    limit = [f"actors={side_by_side}"] if side_by_side else []
    subprocess.run(
        [
            sys.executable, "-m", "fedshift", "run", str(file), f"rounds={rounds}", f"output-dir={folder}",
            "profile=true", "report=false", *limit,
        ],
        check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    total = time.perf_counter() - started
    (run,) = folder.iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluation = [line["profile"]["server"]["evaluation"] for line in lines]
    training = [line["seconds"] - seconds for line, seconds in zip(lines, evaluation, strict=True)]
    return {
        "training": training[1:],  # in the first the actors import torch and read the images
        "evaluation": statistics.median(evaluation[1:]),
        "start": total - sum(line["seconds"] for line in lines),
    }


def alone(config: RunConfig) -> float:
    """Train the clients one after another with all cores; return the seconds."""
    started = time.perf_counter()
    for index in range(NODES):
        client = setup.make_client(config, setup.place(config, context(index), setup.SIMULATION), index)
        state = client.model.state_dict()
        client.fit([state[name].numpy() for name in client.shared_names], {"server-round": 1})
    return time.perf_counter() - started


def context(index: int) -> Context:
    """Return what Flower would give a simulated node."""
    return make_context(index, {"partition-id": index, "num-partitions": NODES}, {})


def main() -> None:
    """Measure both in turns; print a table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="A simulated round against the same work without a federation.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--side-by-side", type=int)
    given = parser.parse_args()
    shared_data = Path(__file__).resolve().parents[2] / "shared" / "data"
    data = Path(os.environ.get("FEDSHIFT_TEST_DATA", shared_data))
    cores = os.cpu_count() or 1
    ratios, runs, singles = [], [], []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "round.yaml"
        file.write_text(yaml.safe_dump(experiment(data, given.images)))
        config = configuration.resolve({"experiment": str(file), "set": f"train.threads={cores}"})
        alone(config)  # does not count
        for repeat in range(given.repeats):
            run = federated(file, given.rounds, Path(name) / f"runs-{repeat}", given.side_by_side)
            own = [alone(config) for _ in run["training"]]
            ratios.append(statistics.median(run["training"]) / statistics.median(own))
            runs.append(run)
            singles += own
    training = [seconds for run in runs for seconds in run["training"]]
    print(
        f"{NODES} clients, resnet10, {given.images} images, {config.train.epochs} local epochs, {config.dataset.name}"
    )
    for label, values in (("federated round", training), ("one after another", singles)):
        print(f"{label:20} median {statistics.median(values):7.2f} s   {min(values):7.2f} to {max(values):7.2f}")
    start, evaluation = (statistics.median(run[key] for run in runs) for key in ("start", "evaluation"))
    print(f"start and end of the run {start:.1f} s, evaluation of a round {evaluation:.1f} s; neither counts")
    ratio = statistics.median(ratios)
    print(
        json.dumps({
            "name": "round", "ratio": ratio, "target": TARGET, "ok": ratio <= TARGET,
            "medians": {"federated": statistics.median(training), "alone": statistics.median(singles)},
            "spread": {"ratio": [min(ratios), max(ratios)]}, "start": start, "evaluation": evaluation,
            "side_by_side": given.side_by_side or cores, "gpu": torch.cuda.is_available(),
            "machine": machine.describe(),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
