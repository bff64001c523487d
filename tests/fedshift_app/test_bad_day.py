"""Nodes and servers that die, sleep, come back and lie: real processes of Flower on loopback."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from support import ROOT, InlineRun, Run, until

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_datasets.io import cache

pytestmark = [pytest.mark.slow, pytest.mark.long]
LIMIT = 240.0  # seconds; for a machine that does much else
ROUND = "federation.round_timeout=40"  # above what a whole round takes on a busy machine
LIES = ("nan", "shape", "names", "huge", "count")
DOMAINS = ("scan", "texture", "street")
SETTINGS = f"dataset.domains=[{','.join(DOMAINS)}] allocation.share=0.2"  # what the nodes hold

#: Put into the Python of every SuperNode: it tells when a node starts to work on a message, and lets one of them lie.
HAND = """
import os, pathlib
from flwr.clientapp import ClientApp

marks = pathlib.Path(os.environ["MARKS"])
ordinary = ClientApp.__call__

def watched(app, message, context):
    from flwr.app import Array, ArrayRecord, MetricRecord
    import numpy as np
    config = message.content["config"]
    mark = f"{message.metadata.message_type}-{config.get('server-round', 0)}"
    (marks / mark).touch()
    reply = ordinary(app, message, context)
    if not os.environ.get("LIES") or not mark.startswith("train") or reply.has_error():
        return reply
    lie = os.environ["LIES"].split()[config["server-round"] - 1]
    from fedshift_core.wire.packing import unpacked
    reply.content = unpacked(reply.content)
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    first = next(iter(arrays))
    if lie == "nan":
        arrays[first] = np.full_like(arrays[first], np.nan)
    if lie == "huge":
        arrays[first] = np.full_like(arrays[first], 1e30)
    if lie == "shape":
        arrays[first] = arrays[first][:1]
    if lie == "names":
        arrays = {"evil/../" + name: array for name, array in arrays.items()}
    reply.content["arrays"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    if lie == "count":
        reply.content["metrics"] = MetricRecord(dict(reply.content["metrics"]) | {"num-examples": 10**12})
    return reply

ClientApp.__call__ = watched
"""


class Federation:
    """A SuperLink with a database and SuperNodes, one per domain, that can be killed one by one."""

    def __init__(self, home: Path, flower: processes.Group, folders: list[exporting.NodeFolder]) -> None:
        self.home, self.flower, self.folders = home, flower, folders
        self.port = processes.free_port()
        self._started = itertools.count(1)
        self._processes: dict[str, psutil.Process] = {}
        self._names: dict[int, str] = {}

    def start_superlink(self) -> None:
        self._superlink = f"superlink-{next(self._started)}"
        database = str(self.home / "state.db")
        command = [processes.command("flower-superlink"), "--insecure", "--host", "127.0.0.1"]
        self._start(self._superlink, *command, "--port", str(self.port), "--database", database)
        self.flower.wait_for_http(self._superlink, f"http://127.0.0.1:{self.port}/health")

    def start_node(self, index: int, lies: str = "", domain: str = "") -> str:
        """Start a SuperNode, wait until it has registered, and return its name.

        It is now the one of its index, unless it claims another domain.
        """
        name = f"supernode-{index}-{next(self._started)}"
        self.marks(index).mkdir(exist_ok=True)
        config = f"{self.folders[index].node_config} threads=1 {deploy_demo.OPEN_POLICY}"
        if domain:
            config = config.replace(f'domain="{DOMAINS[index]}"', f'domain="{domain}"')
        else:
            self._names[index] = name
        path = f"PYTHONPATH={self.home / 'hand'}:{ROOT}"
        command = ["env", f"MARKS={self.marks(index)}", f"LIES={lies}", path, sys.executable, "-m"]
        command += ["fedshift.site.deploy.supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        self._start(name, *command, "--port", str(processes.free_port()), "--node-config", config)
        log = self.flower.log(name)
        self.wait(lambda: "SuperNode ID" in log.read_text(errors="replace"), f"node {index} to register")
        return name

    def serverapps(self) -> list[int]:
        """Return the processes of ServerApps that are there."""
        mark, result = self.flower.env[processes.MARK], []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if "flwr-serverapp" in " ".join(process.cmdline()) and process.environ().get(processes.MARK) == mark:
                    result.append(process.pid)
        return result

    def kill_superlink(self) -> None:
        """Kill the SuperLink and wait for its SuperExec to end; the ServerApp does not, and looks for it."""
        superlink, *children = self.family(self._superlink)
        superlink.kill()
        psutil.wait_procs([superlink, *(child for child in children if "superexec" in child.name())], timeout=30)

    def kill(self, name: str | int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process and all its children, as the end of a machine would; wait for the end."""
        family = self.family(name)
        for process in family:
            with suppress(psutil.Error):
                process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            psutil.wait_procs(family, timeout=30)

    def family(self, name: str | int) -> list[psutil.Process]:
        first = self._processes[self._names[name] if isinstance(name, int) else name]
        with suppress(psutil.Error):
            return [first, *first.children(recursive=True)]
        return []

    def log(self, index: int) -> str:
        return self.flower.log(self._names[index]).read_text(errors="replace")

    def marks(self, index: int) -> Path:
        return self.home / f"marks-{index}"

    def submit(self, *dotted: str, resumed: "Running | None" = None, **flat: Any) -> "Running":
        for mark in self.home.glob("marks-*/*"):
            mark.unlink()
        (self.home / "status.json").unlink(missing_ok=True)
        if resumed is not None:
            return Running(self, resumed.output, {"resume": str(resumed.folder)})
        output = self.home / f"runs-{time.monotonic_ns()}"
        given = " ".join((f"dataset.domains=[{','.join(DOMAINS)}]", *dotted))
        return Running(self, output, {"method": "fedavg", "set": given, "output-dir": str(output)} | flat)

    def wait(self, done: Callable[[], bool], what: str) -> None:
        assert until(done, LIMIT), f"waited {LIMIT:.0f} s for {what}"

    def _start(self, name: str, *command: str) -> None:
        self._processes[name] = psutil.Process(self.flower.start(name, [*command]).pid)


class Running:
    """A run that was submitted with ``flwr run``."""

    def __init__(self, federation: Federation, output: Path, config: dict[str, Any]) -> None:
        self.federation, self.output = federation, output
        home, flower = federation.home, federation.flower
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "x"\n\n[superlink.x]\naddress = "127.0.0.1:{federation.port}"\ninsecure = true\n'
        )
        overrides = home / "run-config.toml"
        overrides.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        self._log = home / f"{time.monotonic_ns()}.log"
        command = [processes.command("flwr"), "run", str(runner.APP), "x", "--stream", "--run-config", str(overrides)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=flower.folder, env=flower.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def screen(self) -> str:
        return self._log.read_text()

    def wait_for_line(self, text: str) -> None:
        self.federation.wait(lambda: text in self.screen or self.process.poll() is not None, repr(text))
        assert text in self.screen, self.screen

    def wait_for_mark(self, index: int, mark: str) -> None:
        self.federation.wait((self.federation.marks(index) / mark).exists, f"node {index}: {mark}\n{self.screen}")

    def end(self) -> dict[str, Any]:
        """Wait for the end and return what the ServerApp says of it; check what must hold after any end.

        Each round is there once and whole, with a checkpoint of the last, in which all is finite.
        """
        try:
            self.process.wait(LIMIT)
        finally:
            self.process.kill()
        numbers = [line["round"] for line in self.rounds]
        assert numbers == [*range(1, len(numbers) + 1)]
        weights = load_file(self.folder / "checkpoint" / f"weights-{len(numbers):05d}.safetensors")
        assert all(np.isfinite(array).all() for array in weights.values())
        status = self.federation.home / "status.json"
        return json.loads(status.read_text()) if status.is_file() else {}

    @property
    def folder(self) -> Path:
        (folder,) = self.output.iterdir()
        return folder

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return Run(self.folder).rounds


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three nodes, one per domain; every test leaves all three running."""
    home = tmp_path_factory.mktemp("bad-day")
    config = configuration.resolve({"set": SETTINGS})
    folders = exporting.export(config, len(DOMAINS), home / "nodes")
    (home / "hand").mkdir()
    (home / "hand" / "sitecustomize.py").write_text(HAND)
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
    with processes.Group(local_superlink.empty_folder(home), local_superlink.environment(home) | own) as flower:
        federation = Federation(home, flower, folders)
        federation.start_superlink()
        for index in range(len(folders)):
            federation.start_node(index)
        yield federation


def test_a_node_that_sleeps_longer_than_the_round_is_left_out_and_is_back_in_the_next(federation: Federation) -> None:
    run = federation.submit("train.epochs=1", "federation.min_nodes=2", ROUND, rounds=2)
    run.wait_for_mark(1, "train-1")
    federation.kill(1, signal.SIGSTOP)
    try:
        run.wait_for_line("round 1: node 1 (texture) left out: no answer in time")
    finally:
        federation.kill(1, signal.SIGCONT)
    assert run.end()["state"] == "degraded"
    assert [line["nodes"] for line in run.rounds] == [[0, 2], [0, 1, 2]]


def test_a_node_that_sends_nonsense_is_left_out_and_one_of_a_foreign_domain_is_not_let_in(
    federation: Federation,
) -> None:
    federation.kill(2, signal.SIGTERM)
    federation.start_node(2, lies=" ".join(LIES))
    early = federation.start_node(0, domain="photo")
    run = federation.submit("train.epochs=1", "federation.min_nodes=3", rounds=len(LIES))
    run.wait_for_mark(0, "train-1")
    late = federation.start_node(0, domain="photo")
    status = run.end()
    federation.kill(early, signal.SIGTERM)
    federation.kill(late, signal.SIGTERM)
    federation.kill(2, signal.SIGTERM)
    federation.start_node(2)
    assert status["state"] == "degraded"
    assert [line["nodes"] for line in run.rounds] == [[0, 1]] * len(LIES)
    for line in run.rounds:
        (left_out,) = line["left_out"]
        assert left_out.startswith("node 2 (street): ")
    assert "'photo'" in run.screen


def test_when_two_thirds_of_the_nodes_are_gone_the_run_waits_then_ends_with_its_rounds(federation: Federation) -> None:
    run = federation.submit("train.epochs=1", "federation.min_nodes=2", "federation.node_timeout=30", ROUND, rounds=9)
    run.wait_for_line("round 1/9")
    for index in (1, 2):
        federation.kill(index, signal.SIGTERM)
    status = run.end()
    for index in (1, 2):
        federation.start_node(index)
    assert status["state"] == "failed"
    assert status["error"].startswith(f"round {len(run.rounds) + 1}: ") and "federation.min_nodes" in status["error"]


@pytest.mark.parametrize("moment", ["train-2", "evaluate-2"])
def test_a_superlink_killed_and_started_again_serves_the_same_nodes_and_the_run_is_resumed(
    moment: str, federation: Federation, run_inline: InlineRun
) -> None:
    settings = "model.name=cnn_bn train.epochs=1 federation.min_nodes=3"
    run = federation.submit(settings, ROUND, method="fedbn", rounds=4)
    run.wait_for_mark(1, moment)
    federation.kill_superlink()
    federation.start_superlink()
    federation.wait(lambda: not federation.serverapps(), "the run to end")
    status = run.end()
    if status["state"] == "completed":  # the new SuperLink was there before the ServerApp gave up
        reasons = [reason for line in run.rounds for reason in line["left_out"]]
        assert len(run.rounds) == 4
        assert reasons
        assert all(reason.endswith("no answer in time") for reason in reasons)
        return
    assert status["state"] == "failed"
    assert status["error"] in (  # the second where Flower ends its process at once
        "the ServerApp was stopped, or lost its SuperLink", "the ServerApp ended without a word",
    )  # fmt: skip
    done = len(run.rounds)
    again = federation.submit(resumed=run)
    assert again.end()["state"] == "completed"
    assert f"continues after round {done} of 4" in again.screen
    undisturbed = run_inline(f"method=fedbn nodes=3 rounds=4 {SETTINGS} {settings}")
    assert Run(run.folder).results["weights_sha256"] == undisturbed.results["weights_sha256"]
    assert [line["accuracy"] for line in run.rounds] == [line["accuracy"] for line in undisturbed.rounds]


@pytest.mark.parametrize(("moment", "pause"), [("train-2", 90), ("evaluate-2", 20), ("evaluate-3", 0)])
def test_a_site_that_is_back_takes_part_in_the_next_round_however_long_it_was_away(
    moment: str, pause: int, federation: Federation
) -> None:
    run = federation.submit("train.epochs=1", "federation.min_nodes=3", rounds=3)
    run.wait_for_mark(2, moment)
    federation.kill(2)
    time.sleep(pause)
    federation.start_node(2)
    assert run.end()["state"] == "degraded"
    kind, number = moment.split("-")
    for line in run.rounds:
        missed = line["round"] == int(number)
        assert line["nodes"] == ([0, 1] if missed and kind == "train" else [0, 1, 2])
        assert bool(line["left_out"]) == missed == (line["accuracy"]["street"] is None)


# Last: for a minute Flower takes the killed SuperNode for connected, and a run that starts waits for it.
def test_a_node_killed_in_training_comes_back_with_its_private_parts(federation: Federation) -> None:
    run = federation.submit(
        "model.name=cnn_bn", "train.epochs=4", "federation.min_nodes=2", ROUND,
        method="fedbn", rounds=3,
    )  # fmt: skip
    run.wait_for_line("round 1/3")
    run.wait_for_mark(2, "train-2")
    time.sleep(0.3)
    federation.kill(2)
    federation.start_node(2)
    assert run.end()["state"] == "degraded"
    assert run.rounds[1]["left_out"][0] == "node 2 (street): no answer in time"
    assert run.rounds[2]["nodes"] == [0, 1, 2]
    assert "node 2 (street) is here again, under a new id" in run.screen
    assert "the private parts of this node are back from its disk" in federation.log(2)
