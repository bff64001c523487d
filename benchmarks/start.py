"""Start and end of a run, for each engine: wall time, and processor time by process.

``fedshift run handwritten`` with two short rounds, as a user starts it. Start: from the command to the end of the first
round, and to the run's folder, which is made when all nodes have answered. End: from the last round to the end of the
command. Processor time is of all processes of the run, those that have ended included; on a busy machine it means more
than wall time does.

Run: python benchmarks/start.py [--engines inline,simulation] [--nodes 8] [--repeats 1]
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import machine
import psutil

MARK = "FEDSHIFT_BENCHMARK_START"  # in the environment of all processes of a run
SMALL = ("rounds=2", "train.epochs=1", "allocation.share=0.05", "model.name=cnn", "report=false")
TARGETS = {"inline": (4.0, 3.0), "simulation": (10.0, 3.0)}  # seconds to the first round, and of the end
LOOK_SECONDS = 0.05
#: Kinds of processes by a part of their name and command line; the first that fits counts. A fork has its own name.
KINDS = (
    ("launch/forked.py", "programs that stand for forks"), ("flower-superexe", "SuperExec"),
    ("fedshift.run.launch.superlink", "SuperLink"), ("ray::ClientApp", "Ray's workers, with the ClientApps"),
    ("default_worker", "Ray's workers, with the ClientApps"), ("ray::", "Ray's servers"), ("/ray/", "Ray's servers"),
    ("superexec", "SuperExec"), ("flwr-simulation", "simulation, with the ServerApp"),
    ("flwr-serverapp", "simulation, with the ServerApp"), ("flwr ", "flwr run"),
    ("fedshift.run.launch.fork_server", "fork server: torch, the app, Flower"),
    ("multiprocessing.forkserver", "fork server: torch, the app, Flower"), ("watchdog", "watchdog"),
    ("-m fedshift run", "fedshift run"),
)  # fmt: skip


class Processes:
    """Processor time of all processes of a run by kind."""

    def __init__(self, mark: str) -> None:
        self._mark, self._ours = mark, dict[int, psutil.Process]()
        self._others: set[int] = set()
        self._seconds: dict[int, tuple[str, float]] = {}

    def look(self) -> None:
        """Note the time of each process so far; that of one that ends between two looks is lost for that moment."""
        for pid in psutil.pids():
            if pid in self._others:
                continue
            try:
                process = self._ours.get(pid) or psutil.Process(pid)
                if pid not in self._ours and process.environ().get(MARK) != self._mark and not self._is_child(process):
                    self._others.add(pid)
                    continue
                self._ours[pid] = process
                spent, line = process.cpu_times(), f"{process.name()} {' '.join(process.cmdline())}"
                kind = next((kind for part, kind in KINDS if part in line), "other")
                self._seconds[pid] = kind, spent.user + spent.system
            except psutil.Error:
                continue

    def _is_child(self, process: psutil.Process) -> bool:
        return process.ppid() in self._ours  # Ray's workers overwrite their environment

    def by_kind(self) -> dict[str, float]:
        """Return seconds by kind of process, most first."""
        total: collections.Counter[str] = collections.Counter()
        for kind, seconds in self._seconds.values():
            total[kind] += seconds  # type: ignore[assignment]
        return {kind: round(seconds, 2) for kind, seconds in total.most_common()}


def measured(engine: str, nodes: int) -> dict[str, object]:
    """Run once; return seconds to the folder, to the first round and of the end, and processor time by process."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        command = [
            sys.executable, "-P", "-m", "fedshift", "run", "handwritten", f"engine={engine}", f"nodes={nodes}",
            f"output-dir={out}", *SMALL, *(["workers=1"] if engine == "inline" else []),
        ]  # fmt: skip
        started = time.perf_counter()
        run = subprocess.Popen(
            command, env=os.environ | {MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
        processes, seconds, spent = Processes(mark), list[float](), dict[str, float]()
        folder = 0.0
        while run.poll() is None:
            processes.look()
            if not folder and any(out.iterdir()):
                folder = time.perf_counter() - started
            lines = sum(file.read_text().count("\n") for file in out.glob("*/metrics.jsonl"))
            while len(seconds) < lines:
                seconds.append(time.perf_counter() - started)
                spent = spent or processes.by_kind()
            time.sleep(LOOK_SECONDS)
        ended = time.perf_counter() - started
        if run.returncode or len(seconds) < 2:
            raise SystemExit(f"{engine}: the run failed ({run.returncode})")
    return {
        "engine": engine, "folder": folder, "first_round": seconds[0], "end": ended - seconds[-1],
        "to_first_round": spent, "whole": processes.by_kind(),
    }  # fmt: skip


def main() -> None:
    """Measure each engine in turns; print tables and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Start and end of a run.")
    parser.add_argument("--engines", default="inline,simulation")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    results = [measured(engine, given.nodes) for _ in range(given.repeats) for engine in given.engines.split(",")]
    for result in results:
        first, end = TARGETS[str(result["engine"])]
        print(
            f"{result['engine']}: folder after {result['folder']:.1f} s, first round after "
            f"{result['first_round']:.1f} s (target {first:g}), end {result['end']:.1f} s (target {end:g}); "
            f"load {os.getloadavg()[0]:.1f}"
        )
        spent = result["to_first_round"]
        assert isinstance(spent, dict)
        for kind, seconds in spent.items():
            print(f"  {kind:36} {seconds:6.2f} s of processor time to the first round")
        print(f"  {'all':36} {sum(spent.values()):6.2f} s")
    print(json.dumps({"name": "start", "runs": results, "machine": machine.describe()}))


if __name__ == "__main__":
    main()
