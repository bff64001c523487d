"""A disk that is full, read-only or failing ends a run in one line with how it goes on; room is looked at before."""

import contextlib
import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.app import MessageType
from killing import KEEPING, SHORT, STAGES, KillAt, only, outcome, resume, start
from support import Command, ListeningGrid, Run
from traffic import asked, changing

from fedshift.run.engine import inline
from fedshift_app.run import disk_space, status
from fedshift_core import atomic_io
from fedshift_core.disk_use import bytes_in
from fedshift_core.errors import ConfigError, FederationError, FedShiftError

FLAT = {"method": KEEPING, "rounds": 3, "set": SHORT}
ARGUMENTS = ["handwritten", f"method={KEEPING}", "rounds=3", *SHORT.split(), "engine=inline", "nodes=3", "report=false"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """Return a function: within its block no file whose path fits an expression can be written."""

    @contextlib.contextmanager
    def failing(part: str, number: int = errno.ENOSPC) -> Iterator[None]:
        real = io.open

        def open_(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if re.search(part, str(file)) and set(mode) & set("wa+x"):
                raise OSError(number, os.strerror(number))  # as write() does, without the name
            return real(file, mode, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr(io, "open", open_)  # Path.open calls it
            yield

    return failing


FEW_FREE = Mock(return_value=SimpleNamespace(total=10**9, used=10**9, free=70_000))
Failing = Callable[..., contextlib.AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("metrics.jsonl", errno.ENOSPC),
        ("round-00001.json", errno.EDQUOT),
        pytest.param("weights-00001", errno.EROFS, marks=pytest.mark.long),
        pytest.param("results.json", errno.EIO, marks=pytest.mark.long),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line_and_the_run_goes_on(
    file: str, number: int, tmp_path: Path, failing: Failing, whole_run: Run,
    fedshift: Command,
) -> None:  # fmt: skip
    with failing(file, number):
        code, _, line = fedshift("run", *ARGUMENTS, f"output-dir={tmp_path}")
    folder = only(tmp_path)
    assert code == 1
    problem, where, go_on = line.splitlines()
    assert problem.startswith(f"error: cannot write {folder}/") and problem.endswith(f": {os.strerror(number)}")
    assert file in problem
    assert (where, go_on) == (f"the results so far are in {folder}", f"continue with: fedshift run resume={folder}")
    assert not list(folder.rglob("*.part"))
    content = status.read(folder)
    assert (content.state, os.strerror(number) in content.error) == ("failed", True)
    assert outcome(resume(tmp_path)) == outcome(whole_run)


@pytest.mark.parametrize("file", ["config.yaml", "lock"])
def test_a_folder_that_cannot_be_begun_is_not_left_behind(
    file: str, tmp_path: Path, failing: Failing, fedshift: Command
) -> None:
    with failing(file):
        code, _, line = fedshift("run", *ARGUMENTS, f"output-dir={tmp_path}")
    assert code == 1
    assert line.startswith(f"error: cannot write {tmp_path}/handwritten-") and line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def full_while(monkeypatch: pytest.MonkeyPatch, failing: Failing) -> Callable[..., None]:
    """Return a function: while messages of a kind are answered, in a round or any, certain files cannot be written."""

    def set_up(kind: str, part: str, number: int = errno.ENOSPC, server_round: int = 0) -> None:
        class Grid(ListeningGrid):
            def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
                requests = list(messages)
                first = requests[0]
                bad = first.metadata.message_type == kind and server_round in (0, asked(first).get("server-round"))
                with failing(part, number) if bad else contextlib.nullcontext():
                    return super().send_and_receive(requests, timeout=timeout)

        monkeypatch.setattr(inline, "InlineGrid", Grid)

    return set_up


@pytest.mark.parametrize(
    ("nodes", "server_round", "number"),
    [("node-2", 2, errno.ENOSPC), pytest.param("node-2", 2, errno.EIO, marks=pytest.mark.long), ("", 1, errno.ENOSPC)],
)
def test_nodes_that_cannot_keep_their_private_parts_end_the_run_which_goes_on_with_the_same_numbers(
    nodes: str, server_round: int, number: int, tmp_path: Path, full_while: Callable[..., None], whole_run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Left out of the round, one would change the run's numbers, and nothing would say so."""
    full_while(MessageType.TRAIN, f"/nodes/{nodes}", number, server_round)
    with pytest.raises(FederationError) as caught:
        start(tmp_path, **FLAT)
    monkeypatch.undo()
    folder = only(tmp_path)
    problem, *_, go_on = str(caught.value).splitlines()
    assert problem.startswith(f"round {server_round}: ")
    assert f"{folder}/checkpoint/nodes/{nodes}" in problem and problem.endswith(os.strerror(number))
    assert go_on == f"continue with: fedshift run resume={folder}"
    assert status.read(folder).full_rounds == server_round - 1
    assert outcome(resume(tmp_path)) == outcome(whole_run)


def test_a_status_and_a_log_that_cannot_be_written_end_no_run(
    tmp_path: Path, failing: Failing, whole_run: Run, capsys: Any
) -> None:
    with failing(r"handwritten-.*/status\.json"), failing("log.jsonl"):
        run = start(tmp_path, **FLAT)
    assert outcome(run) == outcome(whole_run)
    out = capsys.readouterr().out
    assert out.count("without it: No space left on device") == 1


def test_a_disk_that_turns_read_only_in_the_middle_of_a_run(
    tmp_path: Path, whole_run: Run, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = contextlib.ExitStack()

    def turn(message: Any, reply: Any) -> Any:
        ends.enter_context(failing(str(tmp_path), errno.EROFS))
        return reply

    with ends:
        with monkeypatch.context() as patch:
            patch.setattr(inline, "InlineGrid", changing(turn, "evaluate", rounds=[2]))
            with pytest.raises(FederationError, match="Read-only file system"):
                start(tmp_path, **FLAT)
        assert f"cannot write to {only(tmp_path)}: Read-only file system" in refused(tmp_path)
    assert status.read(only(tmp_path)).state == "interrupted"  # its last word could not be written
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", FEW_FREE)
        assert "70.0 kB are free in" in refused(tmp_path)
    assert outcome(resume(tmp_path)) == outcome(whole_run)


# --- room, before a run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("fedcode", ""),
        ("fedbn", "model.name=cnn_bn"),
        *(pytest.param(method, "", marks=pytest.mark.long) for method in ("fedavg", "fedproto", "moon", "fpl")),
    ],
)
def test_the_estimate_is_above_what_a_run_takes_and_not_far(
    method: str, setting: str, tmp_path: Path, kill_at: KillAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Mock(side_effect=disk_space.check)
    monkeypatch.setattr(disk_space, "check", check)
    with kill_at("round-00004.json", "unnamed"):
        start(tmp_path, method=method, rounds=5, set=f"{SHORT} {setting}")
    files = [path for path in only(tmp_path).glob("checkpoint/**/*00003*") if path.is_file()]
    one, whole = sum(path.stat().st_size for path in files), bytes_in(only(tmp_path))
    estimate = check.call_args.args[1]
    assert 0.9 * one < estimate.checkpoint < 2.2 * one
    assert whole < estimate.folder < 4 * whole + disk_space.REPORT


def test_too_little_room_is_refused_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedshift: Command
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", FEW_FREE)
    code, _, line = fedshift("run", *ARGUMENTS, f"output-dir={tmp_path / 'runs'}")
    assert code == 1 and "output-dir: 70.0 kB are free" in line
    assert not (tmp_path / "runs").exists()


# --- a clock that jumps, and kills next to the checkpoint ----------------------------------------------------------


@pytest.mark.parametrize(("file", "stage"), [("status.json", "half"), *(("results.json", stage) for stage in STAGES)])
def test_a_kill_next_to_the_checkpoints(file: str, stage: str, tmp_path: Path, kill_at: KillAt) -> None:
    """A run is finished if and only if ``results.json`` is there, and what is said of it agrees."""
    with kill_at(file, stage):
        start(tmp_path, rounds=1, set=SHORT)
    folder = only(tmp_path)
    if (file, stage) != ("results.json", "after"):
        assert not (folder / "results.json").exists()
        assert resume(tmp_path).results["rounds"] == 1
    assert status.read(folder).state == "completed"
    assert status.exit_code(status.read(folder)) == 0
    assert "is finished" in refused(tmp_path)


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        resume(folder)
    return str(caught.value)


def test_an_error_of_the_disk_names_the_file_and_is_both_kinds(tmp_path: Path, failing: Failing) -> None:
    (tmp_path / "x").write_text("before")
    with failing("x.part"), pytest.raises(FedShiftError) as caught:
        atomic_io.write_atomically(tmp_path / "x", "after")
    assert isinstance(caught.value, OSError)
    assert str(caught.value) == f"cannot write {tmp_path / 'x'}: No space left on device"
    assert (tmp_path / "x").read_text() == "before"
