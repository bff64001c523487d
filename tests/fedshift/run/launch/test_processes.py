"""Processes that a command started end with it, however it ends; what is left all the same is found."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import ROOT, until

from fedshift.run.launch import orphans, processes
from fedshift_app.run import exit_codes
from fedshift_app.run.files import LOCK_FILE
from fedshift_core import atomic_io, env
from fedshift_core.errors import FedShiftError


def test_what_is_left_is_found_and_the_command_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The watchdog was killed too."""
    owner = subprocess.Popen(["sleep", "1000"])
    named = f"{owner.pid} {psutil.Process(owner.pid).create_time()}"
    orphan = subprocess.Popen(
        ["sleep", "1000"], env=os.environ | {processes.MARK: str(tmp_path), processes.OWNER: named}
    )

    def ours() -> list[tuple[str, str]]:
        return [left for left in orphans.leftovers() if str(orphan.pid) in left[1].split()]

    try:
        assert processes.is_running(named)
        assert ours() == []
        owner.kill()
        owner.wait()
        assert not processes.is_running(named)
        (left,) = ours()
        assert left == ("left running: 1 process of a command that was killed", f"kill {orphan.pid}")
        result = subprocess.run(
            [sys.executable, "-m", "fedshift", "status", f"output-dir={tmp_path}"], cwd=ROOT,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == exit_codes.FAILED
        assert f"to end: kill {orphan.pid}" in result.stderr
        subprocess.run(left[1].split(), check=True)
        orphan.wait(timeout=10)
        assert ours() == []
    finally:
        for process in (owner, orphan):
            process.kill()
            process.wait()


def test_only_marked_processes_of_runs_that_are_over_are_listed(tmp_path: Path) -> None:
    """The owner's id belongs to another process since; a SuperLink of another project is as it is left by Flower."""
    link, status_file, run = tmp_path / "flower-superlink", tmp_path / "status.json", tmp_path / "run"
    link.write_text("import time; time.sleep(1000)")
    status_file.write_text(json.dumps({"run_folder": str(run)}))
    run.mkdir()
    lock = atomic_io.Lock(run / LOCK_FILE)
    ours = {processes.MARK: str(tmp_path), processes.OWNER: f"{os.getpid()} 12.5", env.STATUS_FILE: str(status_file)}
    started = [
        subprocess.Popen([sys.executable, str(link), "--simulation"], env=os.environ | marks) for marks in ({}, ours)
    ]

    def listed() -> list[bool]:
        pids = {pid for _, command in orphans.leftovers() for pid in command.split()}
        return [str(process.pid) in pids for process in started]

    try:
        assert until(lambda: all("--simulation" in psutil.Process(process.pid).cmdline() for process in started))
        assert listed() == [False, False]  # the run goes on without its command
        lock.release()
        assert listed() == [False, True]
        shutil.rmtree(run)
        assert listed() == [False, True]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("by_flower", "alone"), [(True, True), (True, False), (False, True)])
def test_a_run_says_how_to_end_the_superlink_that_flower_started_for_it_alone(
    tmp_path: Path, by_flower: bool, alone: bool
) -> None:
    run = "from fedshift_app.flower import internals; print(internals.local_superlink_above())"
    other = f"subprocess.Popen([{sys.executable!r}, '-c', 'input()'], stdin=subprocess.PIPE); " * (not alone)
    link = tmp_path / "flower-superlink"
    link.write_text(f"import subprocess; {other}subprocess.run([{sys.executable!r}, '-c', {run!r}])")
    options = ["--log-file", str(tmp_path / "local-superlink" / "superlink.log")] if by_flower else ["--simulation"]
    started = subprocess.Popen(
        [sys.executable, str(link), *options], env=os.environ | {"FLWR_HOME": str(tmp_path)}, cwd=ROOT,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    output, _ = started.communicate(timeout=120)
    assert json.loads(output) == ([started.pid] if by_flower and alone else [])


def test_a_process_that_shows_no_mark_ends_with_its_group(tmp_path: Path) -> None:
    nested = "import subprocess as s, time; s.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)"
    with processes.group(tmp_path, dict(os.environ)) as made:
        parent = psutil.Process(made.start("one", ["env", "-u", processes.MARK, sys.executable, "-c", nested]).pid)
        assert until(lambda: bool(parent.children()))
        family = {parent, *parent.children()}
        at_once = made.start("two", ["sleep", "1000"])
    assert not any(process.is_running() for process in family) and at_once.poll() is not None


# --- ports -------------------------------------------------------------------------------------------


def test_ports_are_of_the_range_that_is_asked_for_each_once_and_none_that_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _, last = os.environ[processes.PORTS].partition("-")
    found = [processes.free_port() for _ in range(50)]
    assert len(set(found)) == 50 and int(first) <= min(found) <= max(found) <= int(last)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", found[0]))
        monkeypatch.setenv(processes.PORTS, f"{found[0]}-{found[0] + 1}")
        assert {processes.free_port() for _ in range(4)} == {found[0] + 1}
        monkeypatch.setenv(processes.PORTS, f"{found[0]}-{found[0]}")
        with pytest.raises(FedShiftError, match=rf"^FEDSHIFT_PORTS={found[0]}-{found[0]}: all ports are taken$"):
            processes.free_port()
    monkeypatch.delenv(processes.PORTS)
    assert processes.free_port() > 0
