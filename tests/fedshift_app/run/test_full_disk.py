"""A disk that is full, read-only or failing ends a run in one line with how it goes on; room is looked at before."""

import contextlib
import errno
import io
import os
import re
import shutil
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import MessageType
from killing import KEEPING, SHORT, STAGES, KillAt, only, outcome, resume, start
from support import Command, ListeningGrid, Run, SmallDisk

from fedshift.lab.pages.report import build as report_build
from fedshift.lab.pages.report import command, predictions
from fedshift.run.engine import inline
from fedshift_app.run import disk_space, status
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError, FederationError, FedShiftError

FLAT = {"method": KEEPING, "rounds": 3, "set": SHORT}
ARGUMENTS = ["handwritten", f"method={KEEPING}", "rounds=3", *SHORT.split(), "engine=inline", "nodes=4", "report=false"]


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


Usage = namedtuple("Usage", "total used free")
Failing = Callable[..., contextlib.AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("metrics.jsonl", errno.ENOSPC), ("round-00001.json", errno.EDQUOT),
        *(
            pytest.param(file, number, marks=pytest.mark.long)
            for file, number in (
                ("weights-00001", errno.EROFS), ("knowledge-00001", errno.EIO), ("results.json", errno.ENOSPC),
            )
        ),
    ],
)  # fmt: skip
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


def test_private_parts_of_all_nodes_that_cannot_be_kept(
    tmp_path: Path, failing: Failing, whole_run: Run, fedshift: Command
) -> None:
    with failing("/nodes/"):
        code, _, line = fedshift("run", *ARGUMENTS, f"output-dir={tmp_path}")
    assert code == 1
    assert "round 1: the simulation lost the work of node " in line
    assert "cannot keep this node's private parts in " in line and "No space left on device" in line
    assert f"continue with: fedshift run resume={only(tmp_path)}" in line
    assert outcome(resume(tmp_path)) == outcome(whole_run)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_one_node_that_cannot_keep_its_private_parts_ends_the_run_which_goes_on_with_the_same_numbers(
    number: int, tmp_path: Path, failing: Failing, whole_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out of the round, it would change the run's numbers, and nothing would say so."""

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            requests = list(messages)
            config = requests[0].content.config_records["config"] if requests else {}
            bad = requests and requests[0].metadata.message_type == MessageType.TRAIN and config["server-round"] == 2
            with failing("/nodes/node-2/", number) if bad else contextlib.nullcontext():
                return super().send_and_receive(requests, timeout=timeout)

    with monkeypatch.context() as patch:
        patch.setattr(inline, "InlineGrid", Grid)
        with pytest.raises(FederationError) as caught:
            start(tmp_path, **FLAT)
    folder = only(tmp_path)
    problem, *_, go_on = str(caught.value).splitlines()
    assert problem == (
        "round 2: the simulation lost the work of node 2 (scan): cannot keep this node's private parts in "
        f"{folder}/checkpoint/nodes/node-2: {os.strerror(number)}"
    )
    assert go_on == f"continue with: fedshift run resume={folder}"
    assert len(Run(folder).rounds) == 1
    assert outcome(resume(tmp_path)) == outcome(whole_run)


def test_scoring_needs_no_room(tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            requests = list(messages)
            scored = requests and requests[0].metadata.message_type == MessageType.EVALUATE
            with failing("/") if scored else contextlib.nullcontext():
                return super().send_and_receive(requests, timeout=timeout)

    monkeypatch.setattr(inline, "InlineGrid", Grid)
    run = start(tmp_path, **FLAT | {"rounds": 1})
    assert None not in run.rounds[0]["accuracy"].values()
    assert run.rounds[0]["left_out"] == []


def test_a_status_and_a_log_that_cannot_be_written_end_no_run(
    tmp_path: Path, failing: Failing, whole_run: Run, capsys: Any
) -> None:
    with failing(r"handwritten-.*/status\.json"), failing("log.jsonl"):
        run = start(tmp_path, **FLAT)
    assert outcome(run) == outcome(whole_run)
    out = capsys.readouterr().out
    assert out.count("the run continues without it: No space left on device") == 1


@pytest.mark.long
def test_a_report_that_cannot_be_written_is_reported_and_the_run_is_finished(
    tmp_path: Path, failing: Failing, few_figures: None, fedshift: Command
) -> None:
    arguments = [word for word in ARGUMENTS if word != "report=false"]
    with failing("report.html"):
        code, _, line = fedshift("run", *arguments, f"output-dir={tmp_path}")
    assert code == 0
    again = f"to try again: fedshift report {only(tmp_path)}"
    assert line == f"report: none (report: cannot write to {only(tmp_path)}: No space left on device); {again}\n"


# --- real disks ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_disk_that_fills_up_and_gets_room_again(
    small_disk: SmallDisk, whole_run: Run, kill_at: KillAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, filler = small_disk.path / "runs", small_disk.path / "filler"
    with kill_at("weights-00002", "before"):
        start(runs, **FLAT)
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    os.truncate(filler, filler.stat().st_size - 300_000)  # not enough for a checkpoint
    assert "are free in" in refused(runs)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 10**9))  # as if it had filled up since
        with pytest.raises(FedShiftError) as caught:
            resume(runs)
    problem, _, go_on = str(caught.value).splitlines()
    assert problem.endswith("No space left on device")
    assert go_on == f"continue with: fedshift run resume={only(runs)}"
    filler.unlink()
    assert outcome(resume(runs)) == outcome(whole_run)


def test_a_disk_that_turns_read_only_in_the_middle_of_a_run(
    small_disk: SmallDisk, whole_run: Run, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel makes it where a disk fails; an administrator cannot while the lock is open for writing."""
    runs, ends = small_disk.path / "runs", contextlib.ExitStack()

    class Grid(ListeningGrid):
        def pass_on(self, asked: Any, reply: Any) -> Any:
            config = asked.content.config_records["config"]
            if asked.metadata.message_type == MessageType.EVALUATE and config["server-round"] == 2:
                ends.enter_context(failing(str(runs), errno.EROFS))
            return reply

    with monkeypatch.context() as patch, ends:
        patch.setattr(inline, "InlineGrid", Grid)
        with pytest.raises(FederationError) as caught:
            start(runs, **FLAT)
    folder = only(runs)
    assert str(caught.value).startswith(f"cannot write {folder}/figures.json: Read-only file system\n")
    small_disk.read_only(True)
    assert refused(runs) == f"resume: cannot write to {folder}: Read-only file system"
    assert status.read(folder).state == "interrupted"  # its last word could not be written
    small_disk.read_only(False)
    assert outcome(resume(runs)) == outcome(whole_run)


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
    estimates: list[disk_space.Needed] = []
    check = disk_space.check

    def seen(folder: Path, needed: disk_space.Needed, **more: bool) -> None:
        estimates.append(needed)
        check(folder, needed, **more)

    monkeypatch.setattr(disk_space, "check", seen)
    with kill_at("round-00004.json", "unnamed"):
        start(tmp_path, method=method, rounds=5, set=f"train.epochs=1 allocation.share=0.05 {setting}")
    files = [path for path in only(tmp_path).glob("checkpoint/**/*00003*") if path.is_file()]
    one, whole = sum(path.stat().st_size for path in files), disk_space.taken(only(tmp_path))
    (estimate,) = estimates
    assert 0.9 * one < estimate.checkpoint < 2.2 * one
    assert whole < estimate.folder < 4 * whole + disk_space.REPORT


def test_too_little_room_is_refused_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedshift: Command
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 70_000))
    code, _, line = fedshift("run", *ARGUMENTS, f"output-dir={tmp_path / 'runs'}")
    assert code == 1
    assert line.startswith(f"error: output-dir: 70 kB are free in {tmp_path / 'runs'}, the run needs about ")
    assert "to start; make room, or name another output-dir\n" in line and line.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_little_room_is_reported_and_much_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(disk_space.log, "warning", lambda text, *given, **more: said.append(text % given))
    needed = disk_space.Needed(checkpoint=1_000_000, folder=7_500_000, texts=0)
    warning = (
        f"little room: 2 MB are free in {tmp_path}, the run needs about 7.5 MB; "
        "the run ends when a file cannot be written"
    )
    monkeypatch.setattr(disk_space, "free", lambda folder: 7_500_000)
    disk_space.check(tmp_path, needed)
    assert said == []
    monkeypatch.setattr(disk_space, "free", lambda folder: 2_000_000)
    disk_space.check(tmp_path, needed)
    assert said == [warning]
    monkeypatch.setattr(disk_space, "free", lambda folder: 1_999_999)
    with pytest.raises(ConfigError, match=r"2 MB are free in .*, the run needs about 7\.5 MB, and 2 MB to start"):
        disk_space.check(tmp_path, needed)
    assert disk_space.free(tmp_path / "not" / "there") > 0


# --- a clock that jumps, and kills next to the checkpoint ----------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, whole_run: Run, monkeypatch: pytest.MonkeyPatch, kill_at: KillAt
) -> None:
    """Back by years and forward again, in each second call, in a run that is killed and resumed."""
    real, calls = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: real() - (10**8 if next(calls) % 2 else 0))
    with kill_at("weights-00003", "half"):
        start(tmp_path, **FLAT)
    run = resume(tmp_path)
    assert outcome(run) == outcome(whole_run)
    assert 0 < run.results["seconds"] < 600
    content = status.read(run.folder)
    assert (content.state, content.seconds < 600, content.seconds_left) == ("completed", True, 0.0)


def test_a_run_of_a_second_that_was_before_gets_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda form, *_: "20200101-000000")
    names = [start(tmp_path, rounds=1, set=SHORT).folder.name for _ in range(2)]
    assert names == ["handwritten-fedavg-seed0-20200101-000000", "handwritten-fedavg-seed0-20200101-000000-1"]


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of a report what takes long: the figures of images."""
    monkeypatch.setattr(report_build.predictions, "look", lambda record, data_dir, limit: predictions.Sight())
    monkeypatch.setattr(report_build.figures, "sections", lambda record, sight, numbers: [])


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("file", ["report.json", "report.html"])
def test_a_kill_while_the_report_is_written(
    file: str, stage: str, whole_run: Run, tmp_path: Path, kill_at: KillAt, few_figures: None
) -> None:
    """Each file is there as a whole or not at all, and the same command makes it."""
    folder = tmp_path / "run"
    shutil.copytree(whole_run.folder, folder)
    with kill_at(file, stage):
        command.run(folder, [])
    assert (folder / file).exists() == (stage == "after")
    assert command.run(folder, []).page.read_text().rstrip().endswith("</html>")
    assert not list(folder.glob("*.part"))


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


@pytest.mark.parametrize("stage", ["before", "half", "unnamed"])
def test_a_kill_as_a_run_begins_leaves_no_run(stage: str, tmp_path: Path, kill_at: KillAt) -> None:
    with kill_at("config.yaml", stage):
        start(tmp_path, rounds=1, set=SHORT)
    assert "is not the folder of a run: it has no config.yaml" in refused(tmp_path)
    with pytest.raises(ConfigError, match="no run folder in"):
        status.newest(tmp_path)


def test_an_error_of_the_disk_names_the_file_and_is_both_kinds(tmp_path: Path, failing: Failing) -> None:
    (tmp_path / "x").write_text("before")
    with failing("x.part"), pytest.raises(FedShiftError) as caught:
        atomic_io.write_atomically(tmp_path / "x", "after")
    assert isinstance(caught.value, OSError)
    assert str(caught.value) == f"cannot write {tmp_path / 'x'}: No space left on device"
    assert (tmp_path / "x").read_text() == "before"
