"""Processes that are forked from a fork server are like programs of their own; without one they are those."""

import os
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
from fedshift.run.launch import forked, forks, local_superlink, processes
from fedshift_core.env import FORK_SERVER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")

#: Makes the simulation the program that its first argument is.
LIBRARY = """
import sys
from fedshift.run.launch import forks
forks.PROGRAMS[forks.SIMULATION] = ("its", lambda: exec(sys.argv[1], {"arguments": sys.argv[1:]}))
"""
SERVER = """
import sys
from fedshift.run.launch import fork_server
fork_server.MODULES = {"flwr-simulation": ("numpy", "no_such_package")}
fork_server.main(sys.argv[1], "flwr-simulation", ["its_library"])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the socket of a fork server that is ready."""
    folder = tmp_path_factory.mktemp("s")
    (folder / "its_library.py").write_text(LIBRARY)
    address = folder / "forks"
    env = os.environ | {"WHOSE": "its", "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(address)], cwd=ROOT, env=env)
    assert until(lambda: forked.is_ready(str(address), 30))
    yield address
    process.kill()
    process.wait()


def start(server: Path, program: str, *more: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    """Start a program through the fork server as SuperExec starts a simulation."""
    return subprocess.Popen(
        [*forked.command(forked.SIMULATION), program, *more], cwd=folder, text=True,
        env=os.environ | {FORK_SERVER: str(server), "WHOSE": "ours"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_fork_has_its_own_arguments_environment_folder_and_output(server: Path, tmp_path: Path) -> None:
    program = "import os, sys; print(arguments[1:], os.environ['WHOSE'], os.getcwd()); print('said', file=sys.stderr)"
    out, err = start(server, program, "a", "b c", folder=tmp_path).communicate(timeout=60)
    assert out == f"['a', 'b c'] ours {tmp_path}\n"
    assert err == "said\n"


def test_ctrl_c_does_not_end_it_with_a_traceback(server: Path, tmp_path: Path) -> None:
    """A terminal sends it to all processes of the command; the run ends this one, and says so itself."""
    program = "import pathlib, time; print('here', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    process = start(server, program, folder=tmp_path)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


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


def test_an_ended_server_leaves_its_environment_to_no_other() -> None:
    forks.begin([], {"WHOSE": "ended"})
    forks.end()
    process = forks.start(time.sleep, 60)
    assert "WHOSE" not in psutil.Process(process.pid).environ()
    process.kill()
    forks.end()


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


def test_a_server_that_is_not_ready_in_time_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "forks"
    address.touch()  # nobody listens
    monkeypatch.setattr(processes, "START_SECONDS", 0.1)
    with processes.group(tmp_path, os.environ | {FORK_SERVER: str(address)}) as flower:
        local_superlink.await_forks(flower)
    assert not address.exists()
