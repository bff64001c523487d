"""Processes that are forked from a fork server are like programs of their own; without one they are those."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import ROOT, until

from fedshift.run.launch import fork_server, forked, local_superlink, processes
from fedshift_core.env import FORK_SERVER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")

#: A server whose simulation and whose run are the program that its first argument is; it imports nothing else at first.
SERVER = """
import sys, types
import numpy
from fedshift.run.launch import fork_server
fork_server.import_libraries = lambda first, more: None
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: False))
fork_server.simulation = fork_server.run = lambda arguments: lambda: exec(arguments[0], {"arguments": arguments})
fork_server.main()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """Yield the socket of a fork server that is ready."""
    address = tmp_path / "forks"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(address), forked.SIMULATION], cwd=ROOT, env=os.environ | {"WHOSE": "its"}
    )
    assert until(lambda: forked.is_ready(str(address), 30))
    yield address
    process.kill()
    process.wait()


def start(
    server: Path, program: str, *more: str, folder: Path = ROOT, kind: str = forked.SIMULATION
) -> subprocess.Popen[str]:
    """Start a program through the fork server as SuperExec starts a simulation."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", forked.__file__, kind, program, *more], cwd=folder, text=True,
        env=os.environ | {FORK_SERVER: str(server), "WHOSE": "ours"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_fork_has_its_own_arguments_environment_folder_and_output(server: Path, tmp_path: Path) -> None:
    program = "import os, sys; print(arguments[1:], os.environ['WHOSE'], os.getcwd()); print('told', file=sys.stderr)"
    out, err = start(server, program, "a", "b c", folder=tmp_path).communicate(timeout=60)
    assert out == f"['a', 'b c'] ours {tmp_path}\n"
    assert err == "told\n"


def test_ctrl_c_does_not_end_it_with_a_traceback(server: Path, tmp_path: Path) -> None:
    """A terminal sends it to all processes of the command; the run ends this one, and says so itself."""
    program = "import pathlib, time; print('here', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    process = start(server, program, folder=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_its_exit_code_is_passed_on(server: Path) -> None:
    assert start(server, "raise SystemExit(7)").wait(60) == 7
    assert start(server, "pass").wait(60) == 0
    assert start(server, "import os; os.kill(os.getpid(), 9)").wait(60) == -signal.SIGKILL
    failed = start(server, "1 / 0")
    assert "ZeroDivisionError" in failed.communicate(timeout=60)[1]
    assert failed.returncode == 1


def test_forks_draw_numbers_of_their_own(server: Path) -> None:
    program = "import random, numpy; print(random.random(), numpy.random.random())"
    drawn = {start(server, program).communicate(timeout=60)[0] for _ in range(3)}
    assert len(drawn) == 3


def test_the_server_goes_on_after_a_request_that_breaks_off(server: Path) -> None:
    whole = forked.LENGTH.pack(9) + b'{"argum'
    for part in (b"", whole[:2], whole):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server))
            connection.sendall(part)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server))
        connection.sendall(forked.LENGTH.pack(3) + b"{],")
        assert connection.recv(9) == b""
    assert start(server, "raise SystemExit(5)").wait(60) == 5


def test_the_packages_of_a_runs_network_are_imported_where_they_are_there() -> None:
    program = "\n".join([
        "import sys", "from fedshift.run.launch import fork_server",
        "fork_server.LIBRARIES = {fork_server.RUN: ('torch',)}",
        "fork_server.import_libraries(fork_server.RUN, ['no_such_package', 'colorsys'])",
        "print('colorsys' in sys.modules)",
    ])  # fmt: skip
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True).stdout == "True\n"


SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_a_fork_ends_with_what_stands_for_it(server: Path) -> None:
    shown = start(server, SLEEPS)
    assert shown.stdout is not None
    child = psutil.Process(int(shown.stdout.readline()))
    shown.kill()
    shown.wait()
    assert until(lambda: processes.has_ended(child))
    assert start(server, "raise SystemExit(3)").wait(60) == 3  # the server goes on


ENDS_IN_ORDER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: (time.sleep(1), print("in order", flush=True), sys.exit(143)))
print("here", flush=True)
time.sleep(600)
"""


def test_a_run_that_is_asked_to_end_ends_in_order(server: Path) -> None:
    """What stands for it waits until then: a sweep starts the next attempt in the same folder."""
    shown = start(server, ENDS_IN_ORDER, kind=forked.RUN)
    assert shown.stdout is not None
    assert shown.stdout.readline() == "here\n"
    shown.terminate()
    assert shown.communicate(timeout=60) == ("in order\n", "")
    assert shown.returncode == 143


def test_a_library_that_starts_a_thread_ends_the_forks_and_no_run(tmp_path: Path) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import pathlib, threading, time\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    address = tmp_path / "forks"
    program = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'end')!r}).exists(): time.sleep(0.01)"
    with fork_server.listening(str(address)) as listener:
        first = start(address, program, kind=forked.RUN)
        assert select.select([listener], [], [], 60)[0]  # it has come before anything is imported
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(listener.fileno()), forked.RUN, "--", "starts_a_thread"],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, text=True, stderr=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )  # fmt: skip
    try:
        assert until(lambda: bool(psutil.Process(server.pid).children()))
        (tmp_path / "go").touch()
        assert server.stderr is not None
        line = server.stderr.readline()
        assert line.startswith("no further forks, because of starts_a_thread: 2 threads run after the imports"), line
        later = start(address, "--help", kind=forked.RUN)  # is the real command now
        assert "Run an experiment" in later.communicate(timeout=120)[0]
        assert first.poll() is None
        (tmp_path / "end").touch()
        assert first.wait(60) == 0
    finally:
        server.kill()
        server.communicate()


def test_a_fork_ends_with_its_server(server: Path) -> None:
    shown = start(server, SLEEPS)
    assert shown.stdout is not None
    child = psutil.Process(int(shown.stdout.readline()))
    child.parent().kill()  # type: ignore[union-attr]
    assert shown.wait(60) == 1
    assert until(lambda: processes.has_ended(child))


def test_without_a_server_it_becomes_the_program(tmp_path: Path) -> None:
    out, err = start(tmp_path / "none", "--help").communicate(timeout=120)
    assert "Run a Flower Simulation" in out, err


def test_a_worker_of_rays_becomes_rays_own() -> None:
    command = forked.plain([forked.RAY, "--node-ip-address=127.0.0.2"])
    assert Path(command[1]).is_file()
    assert Path(command[1]).name == "default_worker.py"
    assert command[2:] == ["--node-ip-address=127.0.0.2"]


def test_a_server_that_is_not_ready_in_time_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "forks"
    address.touch()  # nobody listens
    monkeypatch.setattr(processes, "START_SECONDS", 0.1)
    with processes.group(tmp_path, os.environ | {FORK_SERVER: str(address)}) as flower:
        local_superlink.await_forks(flower)
    assert not address.exists()


def imported(first: str) -> str:
    """Return whether a process may be forked from after its imports, and if not, the reason."""
    program = f"""
from fedshift.run.launch import fork_server as f
{first}
try:
    f.import_libraries()
except f.UnsafeError as error:
    print(error)
else:
    print("safe")
"""
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_process_with_ray_or_threads_is_not_forked_from() -> None:
    assert imported("import ray") == "it has imported Ray\n"
    begun = """
import threading, time, types
begin = lambda name: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
f.importlib = types.SimpleNamespace(import_module=begin)
"""
    assert "threads run after the imports" in imported(begun)


@pytest.mark.parametrize("program", [forked.SIMULATION, forked.RUN])
def test_what_is_imported_survives_a_fork(program: str) -> None:
    """Also what draws reports, with as many threads of linear algebra as there are cores."""
    later = f"""
import os
from fedshift.lab.grid.sweep.forks import OF_REPORTS
os.environ.pop("OMP_NUM_THREADS", None)
first = {program!r}
f.LIBRARIES[f.SIMULATION] = (*f.LIBRARIES[first], *(OF_REPORTS if first == f.RUN else ()))
f.THREADED[f.SIMULATION] = f.THREADED[first]
"""
    assert imported(later) == "safe\n"


def test_the_program_reads_the_variable_that_is_set() -> None:
    assert forked.FORK_SERVER == FORK_SERVER
