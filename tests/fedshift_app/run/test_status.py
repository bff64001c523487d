"""`status.json` and `fedshift status`: what they say while a run goes on, and after each way in which it can end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message
from refusals import refused
from run_folders import STATUS
from support import ROOT, Command, InlineRun, json_lines, node
from traffic import asked, changing, lost

from fedshift.run.engine import inline
from fedshift.run.launch import runner, watching
from fedshift_app.config.resolving import resolve
from fedshift_app.run import exit_codes, status
from fedshift_app.run.files import LOCK_FILE
from fedshift_core.atomic_io import Lock
from fedshift_core.errors import ConfigError, FederationError, FedShiftError

SHORT = "train.epochs=1 allocation.share=0.05"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[status.Status]:
    """Collect what `fedshift status` would say whenever nodes have been asked; node 1 breaks off in round 2."""
    collected: list[status.Status] = []

    def look(message: Message, reply: Message) -> Message | None:
        kind = message.metadata.message_type
        if kind != "query":
            collected.append(status.read(next(tmp_path.glob("runs/*"))))
        at = kind, asked(message).get("server-round"), message.metadata.dst_node_id
        return None if at == ("train", 2, 1001) else reply

    monkeypatch.setattr(inline, "InlineGrid", changing(look))
    return collected


def test_a_run_tells_how_it_stands(run_inline: InlineRun, watched: list[status.Status]) -> None:
    run = run_inline(f"rounds=3 {SHORT}")
    phases = list(dict.fromkeys((result.round, result.state) for result in watched))
    assert phases == [(n, phase) for n in (1, 2, 3) for phase in ("training", "evaluating")]
    first, last = watched[0], watched[-1]
    assert (first.asked, first.answered, first.full_rounds, first.last_scored) == (4, 0, 0, None)
    assert (first.pid, first.rounds, first.error, first.resume) == (os.getpid(), 3, None, None)
    assert [n.domain for n in first.nodes if n.connected] == ["scan", "texture", "street", "sketch"]
    assert last.full_rounds == 2 and last.seconds_left is not None
    assert last.last_scored is not None and last.last_scored.accuracy == run.rounds[1]["accuracy"]
    assert [(out.round, out.node, out.reason) for out in last.left_out] == [(2, 1, "no answer in time")]

    result = status.read(run.folder)
    assert (result.state, result.round, result.full_rounds, result.seconds_left) == ("degraded", 3, 3, 0.0)
    assert result.left_out == [] and status.exit_code(result) == exit_codes.DEGRADED
    assert "texture, 18 images: answered" in status.block(result)


def test_a_run_that_fails_says_so_in_its_folder(run_inline: InlineRun, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "InlineGrid", changing(lost, "train", rounds=[2]))
        with pytest.raises(FederationError, match="round 2"):
            run_inline(f"rounds=3 {SHORT}")
    (folder,) = tmp_path.glob("runs/*")
    result = status.read(folder)
    assert (result.state, result.round, result.full_rounds) == ("failed", 2, 1)
    assert "no node delivered a usable result" in str(result.error)
    assert result.resume == f"fedshift run resume={folder}"
    assert status.exit_code(result) == exit_codes.STOPPED_SHORT

    def events() -> list[str]:
        return [line.get("event") for line in json_lines(folder / "log.jsonl")]

    before = events()
    assert before[-1] == "failed"
    runner.run_inline({"resume": str(folder)}, 4)
    assert (status.read(folder).state, status.read(folder).full_rounds) == ("completed", 3)
    assert events() == [*before, "started", "resumed", "round", "round", "finished"]  # it goes on in it


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[[str, list[Any]], status.StatusFile]]:
    """Return a function that makes the status file of a run that goes on."""
    lock = Lock(tmp_path / LOCK_FILE)

    def make(engine: str, nodes: list[Any]) -> status.StatusFile:
        folder: Any = SimpleNamespace(path=tmp_path, engine=engine, run_id="", history=[], changed=(), seconds=1.0)
        return status.StatusFile(folder, resolve({}), nodes)

    yield make
    lock.release()


def nodes_of(number: int) -> list[Any]:
    return [node(i, (3, 4), "scan", 5, node_id=10 + i, shared_test=False) for i in range(number)]


def test_waiting_for_nodes_is_reported_with_who_is_there(written: Any, tmp_path: Path) -> None:
    nodes = nodes_of(3)
    file = written("deployment", nodes)
    file.waiting(nodes[1:], nodes)
    result = status.read(tmp_path)
    assert (result.state, result.round, result.asked) == ("waiting", 1, 0)
    assert [each.connected for each in result.nodes] == [False, True, True]
    assert "scan, 7 images: not asked, not connected" in status.block(result)
    file.asked(1, nodes[1:], training=True)
    file.answered([12, 99])
    file.end("failed", "a\x1b\n" * 1000)
    result = status.read(tmp_path)
    assert (result.asked, result.answered) == (2, 1)
    assert result.error is not None and len(result.error) == 1000 and result.error.isprintable()
    assert status.resume_command(tmp_path, "deployment").startswith("flwr run APP SITE ")


def folder_with(tmp_path: Path, state: str, **more: Any) -> Path:
    """Return the folder of a run whose process is no more, as it last stood."""
    (tmp_path / status.FILE).write_text(json.dumps(STATUS | {"state": state, "round": 2, "rounds": 3} | more))
    (tmp_path / LOCK_FILE).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("states", "locked", "shown"),
    [
        ("training", True, "training"),
        ("waiting", True, "waiting"),
        ("completed degraded failed interrupted", True, "gathering"),
        ("training evaluating waiting completed degraded", False, "interrupted"),
        ("failed", False, "failed"),
    ],
)
def test_the_lock_tells_whether_a_run_goes_on(tmp_path: Path, states: str, locked: bool, shown: str) -> None:
    lock = Lock(folder_with(tmp_path, "waiting") / LOCK_FILE)
    if not locked:
        lock.release()
    for state in states.split():
        assert status.read(folder_with(tmp_path, state)).state == shown
    lock.release()


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_what_cannot_be_said_is_reported(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / status.FILE).write_text(content)
    with pytest.raises(ConfigError, match=status.FILE):
        status.read(tmp_path)


# --- a site ----------------------------------------------------------------------------------------

NODES = {"success": True, "nodes": [{"node-id": "1", "status": "online"}, {"node-id": "2", "status": "offline"}]}
RUNS = {"success": True, "runs": [{"run-id": "9", "status": "finished:failed", "elapsed": "00:00:07"}]}


def answer(monkeypatch: pytest.MonkeyPatch, *texts: str) -> list[list[str]]:
    """Let `flwr` print these texts, one after another; return what it is called with."""
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append(command[1:])
        return subprocess.CompletedProcess(command, 0, texts[len(calls) - 1], "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_site_is_asked_by_flowers_own_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = answer(monkeypatch, *2 * [json.dumps(NODES), json.dumps(RUNS)])
    assert watching.show([], as_json=True, watch=True, site="clinic") == 0
    assert calls == [["supernode", "list", "clinic", "--format", "json"], ["list", "clinic", "--format", "json"]]
    output = json.loads(capsys.readouterr().out)
    assert output == {"site": "clinic", "supernodes": NODES["nodes"], "runs": RUNS["runs"]}
    assert watching.show([], as_json=False, watch=False, site="clinic") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_folder_and_a_site_are_two_questions() -> None:
    with refused(FedShiftError, "--site"):
        watching.show(["runs/x"], as_json=False, watch=False, site="clinic")


# --- the command, with real processes ----------------------------------------------------------------


def start(arguments: list[str], folder: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedshift", *arguments], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env,
    )  # fmt: skip


def begun(process: subprocess.Popen[str], folder: Path) -> Path:
    """Wait for the first full round; return the run folder."""
    until = time.monotonic() + 240
    while time.monotonic() < until and process.poll() is None:
        for file in folder.glob("runs/*/metrics.jsonl"):
            if file.read_text():
                return file.parent
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "error"),
    [
        (signal.SIGINT, exit_codes.CTRL_C, "stopped by Ctrl-C"),
        (signal.SIGHUP, exit_codes.HANGUP, "stopped by SIGHUP (its terminal was closed)"),
        (signal.SIGTERM, exit_codes.TERMINATED, "stopped by SIGTERM"),
        (signal.SIGKILL, -signal.SIGKILL, None),
    ],
)
def test_a_stopped_run_is_interrupted_and_says_how_it_goes_on(
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    error: str | None,
    fedshift: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start(["run", "handwritten", "engine=inline", "nodes=4", "rounds=500", f"set={SHORT}"], tmp_path)
    folder = begun(process, tmp_path)
    assert status.read(folder).state in ("training", "evaluating")
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == code
    assert "Traceback" not in err
    resume = f"fedshift run resume={folder}"
    assert (resume in err) == (error is not None)
    monkeypatch.chdir(tmp_path)
    ended = fedshift("status", "--json", "--watch")
    content = json.loads(ended.out)
    assert (ended.code, content["state"], content["error"], content["resume"]) == (3, "interrupted", error, resume)


def test_without_a_run_the_command_ends_with_1(here: Path, fedshift: Command) -> None:
    code, out, err = fedshift("status")
    assert (code, out) == (1, "") and err.startswith("error: output-dir: no run folder in ")
    assert fedshift("status", "--nonsense").code == 2
