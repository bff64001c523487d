"""engine=inline in several processes: the same bits, whoever dies; nothing outlives the run."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from refusals import refused
from support import ROOT, Run, own_experiment, until

from fedshift.run.engine import inline, workers
from fedshift.run.engine.workers import WorkersGrid
from fedshift.run.launch import runner, worker_count
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.simulating import TRIES
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.wire.records import encode

ONE_EPOCH = "method.classifier_epochs=1 method.personal_epochs=1"
SHORT = "train.epochs=1 allocation.share=0.06 train.batch_size=12"
#: A user's own file, which kills workers that have just remembered a round, as often as there are marks of it.
DEADLY = """
import logging, multiprocessing, os, signal
from pathlib import Path
from fedshift_clients.base import DomainClient
from fedshift_app.node.state_store import StateStore
from fedshift_core.registry import Method
from fedshift_strategies.base import DomainStrategy

METHOD = Method(name="own", title="Own", strategy=DomainStrategy, client=DomainClient)
remember = StateStore.remember

def dies(self, server_round, memory):
    remember(self, server_round, memory)
    mark = Path(__file__).with_name(f"{self.folder.name}-{server_round}")
    if mark.exists():
        times = int(mark.read_text())
        mark.write_text(str(times - 1)) if times > 1 else mark.unlink()
        logging.getLogger("fedshift").warning("%s has had its day", mark.name)
        os.kill(os.getpid(), signal.SIGKILL)

if multiprocessing.current_process().name == "fedshift-worker":
    StateStore.remember = dies
"""
EXPERIMENT = """
plugins: [deadly.py]
dataset: {name: handwritten}
model: {name: cnn}
train: {lr: 0.02}
allocation: {counts: any}
rounds: 2
"""


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write an experiment with a user's own file."""
    with own_experiment(tmp_path, monkeypatch, "deadly.py", DEADLY, EXPERIMENT) as file:
        yield file


def run(tmp_path: Path, number: int, experiment: str = "handwritten", **flat: Any) -> Run:
    given = {"experiment": experiment, "output-dir": str(tmp_path / f"runs-{number}"), "set": SHORT} | flat
    return Run(runner.run_inline(given, 4, number))


def timeless(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in ("seconds", "profile")} for line in run.rounds]


def same(one: Run, other: Run) -> bool:
    assert timeless(one) == timeless(other)
    assert one.results["site_figures"] == other.results["site_figures"]
    return bool(one.results["weights_sha256"] == other.results["weights_sha256"])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", "federation.participation=0.5"),
        pytest.param("i2pfl", "", marks=pytest.mark.long),
        pytest.param("fedavg", "model.name=cnn_bn model.freeze=encoder", marks=pytest.mark.long),
        pytest.param("fedicon", f"method.classifier_rounds=1 {ONE_EPOCH}", marks=pytest.mark.long),
    ],
)
def test_the_number_of_workers_changes_no_bit(method: str, settings: str, tmp_path: Path) -> None:
    one, many = (
        run(tmp_path, number, method=method, rounds=2, profile=number > 1, set=f"{SHORT} {settings}")
        for number in (1, 2)
    )
    assert same(one, many)
    assert max(line["profile"]["side_by_side"] for line in many.rounds) == 2


@pytest.mark.parametrize("method", ["fedbn", pytest.param("fedcode", marks=pytest.mark.long)])
def test_a_worker_that_dies_after_it_has_remembered_changes_no_bit(method: str, deadly: Path, tmp_path: Path) -> None:
    """Its work is repeated from what the node had before that round, on disk: in round 1 that is nothing."""
    bn = " model.bn=local" if method == "fedbn" else ""
    flat = {"method": method, "set": f"{SHORT} model.name=cnn_bn{bn}"}
    whole = run(tmp_path, 1, str(deadly), **flat)
    marks = {"node-0-1": 1, "node-3-1": 1, "node-1-2": TRIES - 1, "node-2-2": 1}
    for name, times in marks.items():
        (tmp_path / name).write_text(str(times))
    killed = run(tmp_path, 2, str(deadly), **flat)
    assert same(whole, killed) and not any((tmp_path / name).exists() for name in marks)
    rows = [line["message"] for line in killed.events("worker_died")]
    assert len(rows) == sum(marks.values()) and "SIGKILL (out of memory?); another one repeats its work" in rows[0]
    lines = (killed.folder / "log.jsonl").read_text()
    assert lines.count('"node-1-2 has had its day"') == TRIES - 1  # a worker's own line


@pytest.mark.long
def test_work_that_kills_every_worker_ends_the_run_in_a_line(deadly: Path, tmp_path: Path) -> None:
    (tmp_path / "node-1-1").write_text("99")
    with pytest.raises(FederationError, match=rf"^node 1: {TRIES} worker processes died on its work; .*SIGKILL"):
        run(tmp_path, 2, str(deadly), method="fedbn", set=f"{SHORT} model.name=cnn_bn model.bn=local")


def test_a_worker_that_does_not_start_ends_the_run_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "serve", slice)  # ends at once
    grid = WorkersGrid(2, 2)
    with refused(FederationError, "code 0"):
        grid.send_and_receive([Message(RecordDict({"arrays": encode({})}), 1000, "train")])
    assert not grid._workers


def test_how_many_workers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")  # the machine's, not the run's
    plain, threads = resolve({}), resolve({"set": "train.threads=2"})
    asked = ((plain, 8, None), (plain, 4, None), (plain, 8, 2), (threads, 8, None))
    assert [worker_count.workers(*each) for each in asked] == [6, 4, 2, 3]
    monkeypatch.setenv(worker_count.WORKERS, "3")
    assert (worker_count.requested({}), worker_count.requested({"workers": 2})) == (3, 2)
    monkeypatch.setenv(worker_count.WORKERS, "many")
    for ask, flat, named in (
        (worker_count.requested, {}, "FEDSHIFT_WORKERS"), (worker_count.check, {"workers": 2}, "workers=2"),
    ):  # fmt: skip
        with refused(ConfigError, named):
            ask(flat)


# --- ended from outside -------------------------------------------------------------------------------------------

MARK = "FEDSHIFT_TEST_WORKERS"


def marked(mark: str) -> list[psutil.Process]:
    collected = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                collected.append(process)
    return collected


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_run(how: signal.Signals, tmp_path: Path) -> None:
    env = os.environ | {MARK: str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fedshift", "run", "handwritten", "engine=inline", "workers=2", "nodes=4"]
    requests = [*command, "rounds=500", "allocation.share=0.1", f"output-dir={tmp_path}"]
    output = tmp_path / "output"
    with output.open("w") as result:
        started = subprocess.Popen(
            requests, env=env, stdout=result, stderr=result, cwd=tmp_path, start_new_session=True
        )
    try:
        assert until(lambda: "round " in output.read_text() or started.poll() is not None, 240)
        assert len(marked(str(tmp_path))) >= 4, output.read_text()  # itself, what workers are made from, two
        if how == signal.SIGINT:
            os.killpg(started.pid, how)  # as a terminal does: to all of them
        else:
            started.kill()
        started.wait(60)
    finally:
        started.kill()
    assert until(lambda: not marked(str(tmp_path)), 20)
    said = output.read_text()
    assert "Traceback" not in said
    assert ("interrupted; continue with: fedshift run resume=" in said) == (how == signal.SIGINT)


# --- in one process -----------------------------------------------------------------------------------------


def answering(message: Message, context: Context) -> Message:
    """Answer as a node of which every tenth keeps an array."""
    if inline.index_of(message.metadata.dst_node_id) % 10 == 0:
        context.state["memory"] = ArrayRecord({"a": Array(np.zeros(1))})
    return Message(RecordDict(), reply_to=message)


def test_nodes_that_keep_nothing_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MOST_CONTEXTS", 5)
    app: Any = answering
    grid = inline.InlineGrid(app, 100)
    ids = list(grid.get_node_ids())
    assert len(ids) == len(set(ids)) == 100
    replies = list(grid.send_and_receive([Message(RecordDict(), node_id, "query") for node_id in ids]))
    assert [reply.metadata.src_node_id for reply in replies] == ids
    assert sorted(map(inline.index_of, grid._contexts)) == [*range(5), *range(10, 100, 10)]
    kept = grid.context_of(ids[0])
    assert inline.state_of(kept)
    assert kept is grid.context_of(ids[0])
    assert not inline.state_of(grid.context_of(ids[1]))
