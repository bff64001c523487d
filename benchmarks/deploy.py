"""Seconds a round of a real federation takes above its arithmetic: plain Flower's SuperNodes against ours.

    python benchmarks/deploy.py [--rounds 6] [--turns 3] [--set "train.epochs=5"]

The demo, `handwritten` with FedAvg on four SuperNodes with TLS and node keys on this machine's loopback. Two
federations stand side by side, each with a SuperLink of its own: `plain` has `flower-supernode`, a SuperLink that
answers as Flower's does and a ServerApp that looks for replies likewise (`FEDSHIFT_PLAIN_WAITS`), `ours` has
`fedshift supernode`. Runs alternate; the same run with `engine=inline` stands for the arithmetic. The time of a round
is the median over all rounds of all turns from the second round on (in the first of a run the app is imported). All
weight hashes must be equal.

Memory is what a node's SuperNode, its executor and its warm processes hold between messages, in MB, as PSS (shared
pages divided among those who share them), of the largest node, after the last run. The last line is one JSON object.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import psutil

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.flower.quick_grid import PLAIN_WAITS
from fedshift_app.node import state_folder
from fedshift_app.run.files import METRICS_FILE
from fedshift_datasets.io import cache

ABOVE, RATIO = 2.0, 5.0  # targets: seconds above the arithmetic, and times faster than plain
MB = 1e6
NODES = 4


@dataclass(frozen=True)
class Federation:
    """A SuperLink and its SuperNodes, running."""

    home: Path
    flower: processes.Group

    def run(self, flat: dict[str, Any]) -> Path:
        """Run once and return the run folder."""
        (self.home / "status.json").unlink(missing_ok=True)
        return runner.submit(self.flower, self.home, flat, [])

    def memory(self) -> dict[str, float]:
        """Return the PSS of the largest node's processes, in MB, by kind."""
        nodes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                here = process.environ().get(processes.MARK) == self.flower.env[processes.MARK]
                if here and ("flower-supernode" in words or "deploy.supernode" in words):
                    nodes.append(held(process))
        return max(nodes, key=lambda kinds: sum(kinds.values()), default={})


def held(node: psutil.Process) -> dict[str, float]:
    """Return the PSS of a SuperNode and of what it started, in MB, by kind."""
    megabytes: dict[str, float] = {}
    for process in (node, *node.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            kind = "warm" if "deploy.warm" in words else "executor" if "superexec" in words else "supernode"
            megabytes[kind] = round(megabytes.get(kind, 0.0) + process.memory_full_info().pss / MB, 1)
    return megabytes


@contextlib.contextmanager
def federation(home: Path, folders: list[exporting.NodeFolder], *, ours: bool) -> Iterator[Federation]:
    """Yield a federation on these folders."""
    home.mkdir()
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
    waits = {} if ours else {PLAIN_WAITS: "1"}
    with processes.Group(local_superlink.empty_folder(home), local_superlink.environment(home) | own | waits) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(home, link)
        for folder in folders:
            key = deploy_demo.make_node_key(flower, home, folder)
            deploy_demo.start_supernode(flower, link, folder, key, plain=not ours)
        yield Federation(home, flower)


def rounds_of(folder: Path) -> list[float]:
    """Return the seconds of a run's rounds from the second on."""
    lines = (folder / METRICS_FILE).read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines][1:]


def main() -> None:
    """Run all in turns; print a line for each run and, last, one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--set", default="", help="dotted keys, such as train.epochs=1")
    given = parser.parse_args()
    config = configuration.resolve({"experiment": "handwritten", "set": given.set})
    seconds: dict[str, list[float]] = {"inline": [], "plain": [], "ours": []}
    hashes: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="fedshift-") as name, contextlib.ExitStack() as stack:
        home = Path(name)
        os.environ[cache.CACHE_DIR] = str(home / "cache")
        folders = exporting.export(config, NODES, home / "nodes")
        # Idle nodes of the one ask every three seconds while the other is measured.
        both = {
            kind: stack.enter_context(federation(home / kind, folders, ours=kind == "ours"))
            for kind in seconds
            if kind != "inline"
        }
        settings = f"{given.set} federation.min_nodes={NODES}".strip()
        for turn in range(given.turns):
            for kind in seconds:
                flat = {
                    "experiment": "handwritten",
                    "rounds": given.rounds,
                    "output-dir": str(home / f"runs-{kind}-{turn}"),
                }
                if kind == "inline":
                    folder = runner.run_inline(flat | {"set": f"{given.set} train.threads=1".strip()}, NODES)
                else:
                    folder = both[kind].run(flat | {"set": settings})
                seconds[kind] += rounds_of(folder)
                hashes.add(json.loads((folder / "results.json").read_text())["weights_sha256"])
                print(
                    f"turn {turn}: {kind} {statistics.median(rounds_of(folder)):.2f} s a round",
                    file=sys.stderr,
                    flush=True,
                )
        memory = {kind: deployed.memory() for kind, deployed in both.items()}
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    above, ratio = median["ours"] - median["inline"], median["plain"] / median["ours"]
    result = {
        "name": "deploy",
        "seconds_a_round": {kind: round(value, 2) for kind, value in median.items()},
        "above_arithmetic": round(above, 2), "above_target": ABOVE,
        "ratio": round(ratio, 2), "ratio_target": RATIO,
        "equal_hashes": len(hashes) == 1,
        "ok": above <= ABOVE and ratio >= RATIO and len(hashes) == 1,
        "node_memory_mb": memory,
        "seconds_of_rounds": seconds,
        "machine": machine.describe(),
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
