"""The program that stands for a process forked from a fork server: ``forked.py PROGRAM ARGUMENTS``.

It lives as long as that process, and its exit code is the same. Without a fork it becomes the program itself. As one of
these starts for each of Ray's workers, it imports little, and nothing of FedShift's. Ray gives its arguments alone.
"""

import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

FORK_SERVER = "FEDSHIFT_FORK_SERVER"  # as in ``fedshift_core.env``
LIFELINE = "FEDSHIFT_LIFELINE"  # likewise
SIMULATION, FLWR, RAY, RUN = "flwr-simulation", "flwr", "ray", "fedshift-run"
PACKAGE, COMMAND = "fedshift", "fedshift.cli"  # what a run's process is started by, what a fork of it calls
LENGTH = struct.Struct("!i")
MOST_BYTES = 65536  # at once
FILES = 3  # standard input, output and error


def command(program: str) -> list[str]:
    """Return the command that stands for a program."""
    return [sys.executable, "-I", "-S", __file__, program]


def send(connection: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """Send a request with open files."""
    content = json.dumps(request).encode()
    socket.send_fds(connection, [LENGTH.pack(len(content))], files)
    connection.sendall(content)


def receive(connection: socket.socket, most: int) -> tuple[dict[str, Any], list[int]]:
    """Return a request and its open files.

    Raises:
        OSError: If the other end has gone.
        ValueError: If it is no request.
    """
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, most)
    try:
        content = b"" if len(head) == LENGTH.size else None
        while content is not None and len(content) < LENGTH.unpack(head)[0]:
            part = connection.recv(MOST_BYTES)
            content = content + part if part else None
        if content is None:
            raise OSError("the other end has gone")
        return json.loads(content), files
    except BaseException:
        for file in files:
            os.close(file)
        raise


def follow(address: str, arguments: list[str]) -> int | None:
    """Have a process forked, wait for its end and return its exit code; None if there was no fork.

    A run is asked to end, and ends in order; other programs end as soon as what stands for them does.
    """
    surroundings = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
            send(connection, surroundings, [*range(FILES), *lifeline()])
            (child,) = answer(connection)
        except (OSError, struct.error):
            return None
        if arguments[0] == RUN:
            signal.signal(signal.SIGTERM, lambda _number, _frame: os.kill(child, signal.SIGTERM))
        try:
            return int(answer(connection)[0])
        except (OSError, struct.error):  # the server was killed
            os.kill(child, signal.SIGTERM)
            return 1


def lifeline() -> list[int]:
    """Return the file that the process has to keep open as long as it lives, if there is one."""
    number = os.environ.get(LIFELINE)
    return [int(number)] if number else []


def answer(connection: socket.socket) -> tuple[int, ...]:
    """Return the number that the server sends: first the child's process id, then its exit code."""
    return LENGTH.unpack(connection.recv(LENGTH.size))


def is_ready(address: str, seconds: float) -> bool:
    """Wait until a fork server has imported what it imports; return False if it has ended or takes longer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(address)
            send(connection, {"arguments": []}, [])
            return bool(answer(connection))
        except (OSError, struct.error):
            return False


def run_command(arguments: list[str]) -> list[str]:
    """Return the command of ``fedshift run``. The working folder's modules must not come first."""
    return [sys.executable, "-P", "-m", PACKAGE, "run", *arguments]


def plain(arguments: list[str]) -> list[str]:
    """Return the command of the program itself."""
    program, *rest = arguments
    if program == RUN:
        return run_command(rest)
    if program != RAY:
        return [str(Path(sys.executable).with_name(program)), *rest]
    from importlib.util import find_spec

    ray = find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    return [sys.executable, str(Path(ray.origin).with_name("_private") / "workers" / "default_worker.py"), *rest]


def main() -> None:
    """Follow a fork, or become the program."""
    arguments = sys.argv[1:] if sys.argv[1] in (SIMULATION, FLWR, RUN) else [RAY, *sys.argv[1:]]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the run ends this process, and says so itself
    code = follow(os.environ.get(FORK_SERVER, ""), arguments)
    if code is None:
        signal.signal(signal.SIGINT, before)  # what is ignored stays so in the program
        command = plain(arguments)
        os.execv(command[0], command)
    if code < 0:  # ended by a signal: so does this one
        if -code != signal.SIGKILL:  # which has no other handling
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
