"""The program that stands for a process forked from a fork server: ``forked.py PROGRAM ARGUMENTS``.

It lives as long as that process, and its exit code is the same. Without a fork it becomes the program itself. As one of
these starts for each of Ray's workers, it imports little, and nothing of FedShift's. Ray gives its arguments alone.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

FORK_SERVER = "FEDSHIFT_FORK_SERVER"  # as in ``fedshift_core.env``
SIMULATION, FLWR, RAY, RUN = "flwr-simulation", "flwr", "ray", "fedshift-run"
FILES = (0, 1, 2)  # standard input, output and error


def command(program: str) -> list[str]:
    """Return the command that stands for a program."""
    return [sys.executable, "-I", "-S", __file__, program]


def ask(address: str, arguments: list[str], seconds: float | None = None) -> int | None:
    """Have a process forked and return its exit code, 1 where the server has ended; None if there is no server.

    A server answers once it has imported what it imports.

    Args:
        address: The server's socket.
        arguments: Of the process, which without any does nothing.
        seconds: Wait at most so long.
    """
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(seconds)
        try:
            server.connect(address)
        except OSError:
            return None
        try:
            socket.send_fds(server, [b"."], FILES)
            server.sendall(json.dumps(request).encode() + b"\n")
            return int(server.recv(20) or 1)
        except OSError:
            return 1


def run_command(arguments: list[str]) -> list[str]:
    """Return the command of ``fedshift run``. The working folder's modules must not come first."""
    return [sys.executable, "-P", "-m", "fedshift", "run", *arguments]


def plain(program: str, arguments: list[str]) -> list[str]:
    """Return the command of the program itself."""
    if program == RAY:
        return [sys.executable, "-m", "ray._private.workers.default_worker", *arguments]
    return [str(Path(sys.executable).with_name(program)), *arguments]


def main() -> None:
    """Follow a fork, or become the program."""
    program, *arguments = sys.argv[1:] if sys.argv[1] in (SIMULATION, FLWR) else [RAY, *sys.argv[1:]]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the run ends this process, and says so itself
    code = ask(os.environ.get(FORK_SERVER, ""), [program, *arguments])
    if code is None:
        signal.signal(signal.SIGINT, before)  # what is ignored stays so in the program
        command = plain(program, arguments)
        os.execv(command[0], command)
    if code < 0:  # ended by a signal: so does this one
        if -code != signal.SIGKILL:  # which has no other handling
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
