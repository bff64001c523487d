"""Processes that a command started end with it, however it ends; what is left all the same is found."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import ROOT, until

from fedshift.lab.grid.sweep.forks import OF_REPORTS
from fedshift.run.launch import forked, forks, local_superlink, orphans, processes
from fedshift_app.run import exit_codes
from fedshift_app.run.files import LOCK_FILE
from fedshift_core import atomic_io, env
from fedshift_core.env import FORK_SERVER
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
    with processes.Group(tmp_path, dict(os.environ)) as made:
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


# --- forks --------------------------------------------------------------------------------------------------


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")

#: Makes the simulation the program that its first argument is.
LIBRARY = """
import sys
from fedshift.run.launch import forks
forks.PROGRAMS[forks.SIMULATION] = ("its", lambda: exec(sys.argv[1], {"arguments": sys.argv[1:]}))
"""
SERVER = """
import sys
from fedshift.run.launch import fork_server
fork_server.forks.OF_SIMULATIONS = ("numpy", "no_such_package")
fork_server.main(sys.argv[1], ["its_library"])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the socket of a fork server that is ready."""
    folder = tmp_path_factory.mktemp("s")
    (folder / "its_library.py").write_text(LIBRARY)
    address = folder / "forks"
    env = os.environ | {"WHOSE": "its", "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(address)], cwd=ROOT, env=env)
    assert until(lambda: forked.ask(str(address), [], 30) == 0)
    yield address
    process.kill()
    process.wait()


def start(server: Path, program: str, *more: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    """Start a program through the fork server as SuperExec starts a simulation."""
    return subprocess.Popen(
        [*forked.command(forked.SIMULATION), program, *more], cwd=folder, text=True,
        env=os.environ | {FORK_SERVER: str(server), "WHOSE": "ours"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@LINUX
def test_a_fork_has_its_own_arguments_environment_folder_and_output(server: Path, tmp_path: Path) -> None:
    program = "import os, sys; print(arguments[1:], os.environ['WHOSE'], os.getcwd()); print('said', file=sys.stderr)"
    out, err = start(server, program, "a", "b c", folder=tmp_path).communicate(timeout=60)
    assert out == f"['a', 'b c'] ours {tmp_path}\n"
    assert err == "said\n"


@LINUX
def test_ctrl_c_does_not_end_it_with_a_traceback(server: Path, tmp_path: Path) -> None:
    """A terminal sends it to all processes of the command; the run ends this one, and says so itself."""
    program = "import pathlib, time; print('here', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    process = start(server, program, folder=tmp_path)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


@LINUX
def test_the_server_goes_on_after_a_request_that_breaks_off(server: Path) -> None:
    """Or after a fork that ends with what stands for it."""
    for files, part in (([], b""), ([], b"."), ([0, 1, 2], b"."), ([0, 1, 2], b'.{"argum'), ([0, 1, 2], b".{],\n")):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server))
            socket.send_fds(connection, [part], files) if part else None
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(9) == b""
    shown = start(server, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    child = psutil.Process(int(shown.stdout.readline()))
    shown.kill()
    shown.wait()
    assert until(lambda: processes.has_ended(child))
    assert start(server, "raise SystemExit(5)").wait(60) == 5


@LINUX
def test_an_ended_server_leaves_its_environment_to_no_other() -> None:
    forks.begin([], {"WHOSE": "ended"})
    forks.end()
    process = forks.start(time.sleep, 60)
    assert "WHOSE" not in psutil.Process(process.pid).environ()
    process.kill()
    forks.end()


@LINUX
@pytest.mark.long
def test_what_is_imported_survives_a_fork() -> None:
    """But for the threads of linear algebra, which its library ends and begins itself."""
    modules = (*forks.OF_SIMULATIONS, *forks.OF_RUNS, *OF_REPORTS)
    program = f"""
import importlib, os, sys
import numpy, scipy.linalg
before = len(os.listdir("/proc/self/task"))
for name in {modules!r}: importlib.import_module(name)
print(len(os.listdir("/proc/self/task")) - before, "ray" in sys.modules, sys.modules["torch"].cuda.is_initialized())
"""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | forks.SURROUNDINGS
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout == "0 False False\n", done.stderr


@LINUX
def test_a_server_that_is_not_ready_in_time_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "forks"
    address.touch()  # nobody listens
    monkeypatch.setattr(processes, "START_SECONDS", 0.1)
    with processes.Group(tmp_path, os.environ | {FORK_SERVER: str(address)}) as flower:
        local_superlink.await_forks(flower)
    assert not address.exists()
