"""A long run on real SuperNodes: does memory, the run folder or the SuperLink's database grow with the rounds?

    python benchmarks/soak.py [--rounds 500] [--nodes 2] [--participation 1]

A SuperLink with TLS, node keys and a database on disk, and SuperNodes on this machine's loopback run `handwritten` with
the two-layer CNN, one batch a round and node; the global model is scored every 50 rounds. Every 20 rounds a line is
written: resident memory in MB of the SuperLink, its executors, the ServerApp and the largest SuperNode, bytes of
the run folder, of the database with its log, and of what the nodes keep. The last line tells how each grew from the
first line after round 40 to the last: it must be flat but for metrics.jsonl and log.jsonl, with a line a round.
"""

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_app.run.files import METRICS_FILE
from fedshift_datasets.io import cache

SETTINGS = "train.epochs=1 allocation.share=0.04 train.batch_size=32"
EVERY, FIRST = 20, 40
MB = 1e6
POLL_SECONDS = 1.0
#: What a process is, by a word of its command line.
KINDS = {
    "serverapp": "flwr-serverapp", "supernodes": "fedshift.site.deploy.supernode", "executors": "superexec",
    "superlink": "fedshift.run.launch.superlink", "warm": "deploy.warm",
}  # fmt: skip


def members(mark: str) -> Iterator[psutil.Process]:
    """Return the processes of a group."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(processes.MARK) == mark:
                yield process


def memory(mark: str) -> dict[str, float]:
    """Return the resident memory of the largest process of each kind, in MB."""
    peak = dict.fromkeys(KINDS, 0.0)
    for process in members(mark):
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            kind = next((kind for kind, word in KINDS.items() if word in words), None)
            if kind is not None:
                peak[kind] = max(peak[kind], process.memory_info().rss / MB)
    return peak


def size(folder: Path, *patterns: str) -> int:
    """Return the bytes of all files below a folder that have one of these names."""
    files = (path for pattern in patterns or ("*",) for path in folder.rglob(pattern))
    total = 0
    for path in files:
        with contextlib.suppress(OSError):  # it is replaced while it is looked at
            total += path.stat().st_size if path.is_file() else 0
    return total


def watch(home: Path, runs: Path, mark: str, lines: list[dict[str, Any]], done: threading.Event) -> None:
    """Look every ``EVERY`` rounds until the run has ended."""
    began = time.monotonic()
    while not done.wait(POLL_SECONDS):
        metrics = list(runs.glob(f"*/{METRICS_FILE}"))
        rounds = metrics[0].read_text().count("\n") if metrics else 0
        if rounds < (lines[-1]["round"] + EVERY if lines else 1):
            continue
        texts = size(runs, "metrics.jsonl", "log.jsonl")
        lines.append(
            {"round": rounds, "seconds": round(time.monotonic() - began, 1)}
            | {f"{kind}_mb": round(value, 1) for kind, value in memory(mark).items()}
            | {
                "run_folder_mb": round((size(runs) - texts) / MB, 3), "lines_mb": round(texts / MB, 3),
                "files": sum(path.is_file() for path in runs.rglob("*")),
                "database_mb": round(size(home, "superlink.db*") / MB, 3),
                "kept_by_nodes_mb": round(size(home / "state") / MB, 3),
            }
        )  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--participation", type=float, default=1.0, help="share of the nodes that train in a round")
    parser.add_argument("--method", default="fedbn", help="one whose nodes keep parts to themselves says more")
    options = parser.parse_args()
    domains = ("scan", "texture", "street", "sketch")[: options.nodes]
    network = "model.name=cnn_bn" if options.method == "fedbn" else "model.name=cnn"
    settings = f"dataset.domains=[{','.join(domains)}] {SETTINGS} {network} evaluate.every=50"
    config = configuration.resolve({"experiment": "handwritten", "method": options.method, "set": settings})
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fedshift-") as name:
        home = Path(name)
        runs = home / "runs"
        folders = exporting.export(config, options.nodes, home / "nodes")
        own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
        with processes.Group(
            local_superlink.empty_folder(home), local_superlink.environment(home) | own, remove=home
        ) as flower:
            link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
            local_superlink.start_superlink(flower, link, "--database", str(home / "superlink.db"))
            local_superlink.connect(home, link)
            for folder in folders:
                deploy_demo.start_supernode(flower, link, folder, deploy_demo.make_node_key(flower, home, folder))
            done = threading.Event()
            mark = flower.env[processes.MARK]
            watcher = threading.Thread(target=watch, args=(home, runs, mark, lines, done))
            watcher.start()
            text = f"{settings} federation.min_nodes={options.nodes} federation.participation={options.participation}"
            flat = {"method": options.method, "rounds": options.rounds, "output-dir": str(runs), "set": text}
            try:
                folder = runner.submit(flower, home, flat, [])
                left_out = sum(len(json.loads(line)["left_out"]) for line in (folder / METRICS_FILE).open())
            finally:
                done.set()
                watcher.join()
    settled = next((line for line in lines if line["round"] > FIRST), lines[0])
    growth = {key: round(lines[-1][key] - settled[key], 3) for key in settled if key.endswith("_mb") or key == "files"}
    print(json.dumps({"rounds": options.rounds, "left_out": left_out, "growth": growth}))


if __name__ == "__main__":
    main()
