"""Seconds a round of a real federation takes above its arithmetic, by nodes, secure sums, size of messages and network.

    python benchmarks/deployed.py --nodes 4,16,50 --secure                  # eight minutes at most on two cores
    python benchmarks/deployed.py --nodes 4 --megabytes 100 --slow --secure

`handwritten` with FedAvg, one local epoch of the two-layer CNN on a tenth of the images, on SuperNodes of this machine
with TLS and node keys. `--megabytes` also takes ResNet-10 with a layer behind it, of so many megabytes of weights,
`--slow` also puts all SuperNodes behind a line of 200 ms and 1 % loss (`slow_link.py`; root and Linux). Arithmetic is
the same run with `engine=inline`, one process and one thread: all nodes one after another. The time of a round is the
median from the second on. Processor time is that of all processes, from the submission to the end, over the rounds;
other work on the machine does not lengthen it much. Memory is PSS (shared pages divided), between messages. All weights
must be equal.

No row is begun with which the processes would hold more than `--most-gb`, or after `--minutes`.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import psutil
import slow_link

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.config.files import APP
from fedshift_app.config.registry import table
from fedshift_app.node import state_folder
from fedshift_app.run.files import METRICS_FILE
from fedshift_app.run.versions import commit, versions
from fedshift_datasets import catalog
from fedshift_datasets.io import cache

TINY = "train.epochs=1 allocation.share=0.1 allocation.with_replacement=true train.precision=float32"
ABOVE = 2.0  # target, in seconds
BODY, FEATURES = 4_900_000, 512  # parameters and features of ResNet-10
ROUND_TRIP, LOSS = 0.2, 0.01
GB = 1e9
#: Programs of a federation, by a part of their command: a message's process counts as the fork server's child, the
#: ServerApp as that of the SuperLink's executor.
PROGRAMS = ("deploy.warm", "superexec.py", "deploy.supernode", "launch.superlink", "flower-superexec")
HEAD = (
    "nodes", "secure sums", "message MB", "network", "s a round", "arithmetic", "above", f"at most {ABOVE:g}",
    "CPU s a round", "of it arithmetic", "PSS a node MB", "equal",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        nodes: SuperNodes.
        secure: Whether sums are secure.
        megabytes: Weights of the network, 20 of them ResNet-10's; 0 for the two-layer CNN.
        slow: Whether the SuperNodes are behind a slow line.
    """

    nodes: int
    secure: bool = False
    megabytes: int = 0
    slow: bool = False

    @property
    def settings(self) -> str:
        """The dotted keys of its runs."""
        per_width = FEATURES + 1 + len(catalog.get("handwritten").classes)  # the layer, its bias, the classifier
        width = round((self.megabytes * 1e6 / 4 - BODY) / per_width) if self.megabytes else 0
        more = ["model.name=resnet10", f"model.projection={width}"] if width else []
        more += ["federation.secure_sums=on"] if self.secure else []
        return " ".join([TINY, *more])


@dataclass
class Measured:
    """What a run took.

    Attributes:
        folder: Its run folder.
        cpu: Processor seconds of all its processes.
    """

    folder: Path
    cpu: float
    lines: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        """Read its rounds."""
        self.lines = [json.loads(line) for line in (self.folder / METRICS_FILE).read_text().splitlines()]

    @property
    def seconds(self) -> float:
        """Median seconds of a round from the second on."""
        return float(statistics.median(line["seconds"] for line in self.lines[1:]))

    @property
    def weights(self) -> str:
        """The hash of the last weights."""
        return str(json.loads((self.folder / "results.json").read_text())["weights_sha256"])


class Deployed:
    """A SuperLink and its SuperNodes, running.

    Attributes:
        home: Their folder.
        flower: Their processes.
    """

    def __init__(self, home: Path, flower: processes.Group) -> None:
        self.home, self.flower = home, flower

    def members(self) -> list[psutil.Process]:
        """Return all its processes."""
        mark = self.flower.env[processes.MARK]
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(processes.MARK) == mark:
                    found |= {one.pid: one for one in (process, *process.children(recursive=True))}
        return list(found.values())

    def cpu(self) -> Counter[str]:
        """Return the processor seconds of all processes so far, with those of ended children, by program."""
        seconds: Counter[str] = Counter()
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                times, words = process.cpu_times(), " ".join(process.cmdline())
                program = next((name for name in PROGRAMS if name in words), "others")
                seconds[program] += times.user + times.system + times.children_user + times.children_system
        return seconds

    def pss(self) -> float:
        """Return what all processes hold, in bytes."""
        total = 0.0
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def run(self, flat: dict[str, Any]) -> Measured:
        """Run once."""
        (self.home / "status.json").unlink(missing_ok=True)
        before, mine = self.cpu(), os.times()
        folder = runner.submit(self.flower, self.home, flat, [])
        now = os.times()
        submitting = now.children_user + now.children_system - mine.children_user - mine.children_system
        after = self.cpu()
        rounds = max(flat["rounds"], 1)
        shares = ", ".join(f"{name} {(after[name] - before[name]) / rounds:.2f}" for name in sorted(after))
        print(f"processor s a round, with the run's start and end: {shares}", file=sys.stderr, flush=True)
        return Measured(folder, after.total() - before.total() + submitting)


class Inside:
    """A group of processes that start behind a line."""

    def __init__(self, flower: processes.Group, prefix: Sequence[str]) -> None:
        self._flower, self._prefix = flower, prefix

    def start(self, name: str, arguments: list[str]) -> object:
        """Start a process there."""
        return self._flower.start(name, [*self._prefix, *arguments])


@contextlib.contextmanager
def federation(home: Path, nodes: int, *, slow: bool, most: float) -> Iterator[Deployed]:
    """Yield a federation of so many SuperNodes.

    Raises:
        MemoryError: If its processes hold more than ``most`` bytes before all are there.
    """
    home.mkdir()
    config = configuration.resolve({"experiment": "handwritten", "set": TINY})
    folders = exporting.export(config, nodes, home / "nodes")
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
    with contextlib.ExitStack() as stack:
        flower = stack.enter_context(
            processes.Group(
                local_superlink.empty_folder(home),
                local_superlink.environment(home) | own,
            )
        )
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(home, link)
        prefix = stack.enter_context(slow_link.line(link.port, ROUND_TRIP, LOSS)) if slow else []
        deployed, group = Deployed(home, flower), Inside(flower, prefix)
        for number, folder in enumerate(folders, 1):
            key = deploy_demo.make_node_key(flower, home, folder)
            deploy_demo.start_supernode(group, link, folder, key)  # type: ignore[arg-type]
            if number % 4 == 0 and (deployed.pss() > most or psutil.virtual_memory().available < 2 * GB):
                raise MemoryError(f"{number} of {nodes} SuperNodes hold {deployed.pss() / GB:.1f} GB")
        yield deployed


def inline(home: Path, case: Case, rounds: int) -> Measured:
    """Do the same run in this process."""
    before = os.times()
    flat = {"experiment": "handwritten", "rounds": rounds, "output-dir": str(home)}
    folder = runner.run_inline(flat | {"set": f"{case.settings} train.threads=1"}, case.nodes)
    now = os.times()
    return Measured(folder, sum(now[:4]) - sum(before[:4]))


def measure(deployed: Deployed, case: Case, rounds: int) -> tuple[str, ...]:
    """Return a row of the table."""
    where = deployed.home / f"runs-{case.secure}-{case.megabytes}"
    alone = inline(where / "inline", case, rounds)
    flat = {"experiment": "handwritten", "rounds": rounds, "output-dir": str(where / "deployed")}
    waits = f"federation.min_nodes={case.nodes} federation.node_timeout=1200"
    real = deployed.run(flat | {"set": f"{case.settings} {waits}"})
    above = real.seconds - alone.seconds
    one_way = real.lines[-1]["bytes_down"] / case.nodes / 1e6
    return (
        str(case.nodes), "on" if case.secure else "off", f"{one_way:.1f}",
        f"{1000 * ROUND_TRIP:.0f} ms, {LOSS:.0%}" if case.slow else "loopback",
        f"{real.seconds:.2f}", f"{alone.seconds:.2f}", f"{above:.2f}", "met" if above <= ABOVE else "missed",
        f"{real.cpu / rounds:.1f}", f"{alone.cpu / rounds:.1f}", f"{deployed.pss() / case.nodes / 1e6:.0f}",
        "yes" if real.weights == alone.weights else "NO",
    )  # fmt: skip


def groups(given: argparse.Namespace) -> list[tuple[int, bool, list[Case]]]:
    """Return the federations to start: their nodes, whether behind the line, and their rows."""
    secure = (False, True) if given.secure else (False,)
    found = []
    for slow in (False, True) if given.slow else (False,):
        for nodes in given.nodes if not slow else given.nodes[:1]:
            sizes = (0, given.megabytes) if given.megabytes and nodes == given.nodes[0] and not slow else (0,)
            found.append((nodes, slow, [Case(nodes, on, size, slow) for size in sizes for on in secure]))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=lambda text: [int(part) for part in text.split(",")], default=[4])
    parser.add_argument("--secure", action="store_true", help="each row with secure sums, too")
    parser.add_argument("--megabytes", type=int, default=0, help="the first number of nodes with such a network, too")
    parser.add_argument("--slow", action="store_true", help="the first number of nodes behind a slow line, too")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--most-gb", type=float, default=12.0)
    given = parser.parse_args()
    if given.rounds < 2 or min(given.nodes) < 4:
        parser.error("--rounds from 2 up, --nodes from 4 up")
    began = time.monotonic()
    rows: list[tuple[str, ...]] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fedshift-") as name:
        os.environ[cache.CACHE_DIR] = f"{name}/cache"
        for number, (nodes, slow, cases) in enumerate(groups(given)):
            if time.monotonic() - began > 60 * given.minutes:
                left_out += [f"{case}: no time left" for case in cases]
                continue
            try:
                home, most = Path(name) / str(number), given.most_gb * GB
                with federation(home, nodes, slow=slow, most=most) as deployed:
                    for case in cases:
                        if time.monotonic() - began > 60 * given.minutes:
                            left_out.append(f"{case}: no time left")
                            continue
                        rows.append(measure(deployed, case, given.rounds))
                        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
            except MemoryError as full:
                left_out += [f"{case}: {full}" for case in cases]
    config = configuration.resolve({"experiment": "handwritten"})
    software = ", ".join(
        f"{key} {value}" for key, value in versions(config).items() if key in ("flwr", "torch", "python")
    )
    print(table(HEAD, rows))
    print(f"\n{machine.describe()}; {software}; commit {commit(APP)}; load {os.getloadavg()[0]:.1f}")
    print("".join(f"\nnot measured: {line}" for line in left_out), end="")


if __name__ == "__main__":
    main()
