"""Forks the programs of a simulation: Flower's simulation, each of Ray's workers, and ``flwr run``.

They import the same modules, up to four seconds of a processor each. Instead of one, ``forked.py`` is started, which
asks this program for a process with its arguments, environment and open files, and lives as long as that process.
"""

import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from fedshift.run.launch import forks
from fedshift.run.launch.forked import FILES

WAITING = 64  # connections


def serve(listener: socket.socket) -> None:
    """Start a process for each caller, send it the exit code, and end the process of one that has gone."""
    running: dict[socket.socket, ForkServerProcess] = {}
    while True:
        ends = {process.sentinel: caller for caller, process in running.items()}
        ready: Any
        for ready in wait([listener, *ends, *running]):
            if ready is listener:
                _answer(listener.accept()[0], running)
            elif ready in ends and (caller := ends[ready]) in running:
                process = running.pop(caller)
                process.join()
                with caller, contextlib.suppress(OSError):  # it has gone, too
                    caller.sendall(str(process.exitcode).encode())
            elif ready in running:
                running.pop(ready).terminate()


def _answer(caller: socket.socket, running: dict[socket.socket, ForkServerProcess]) -> None:
    with contextlib.suppress(OSError, ValueError):  # it was stopped: its connection ends with this call
        files = [forks.File(file) for file in socket.recv_fds(caller, 1, len(FILES))[1]]
        request = json.loads(caller.makefile().readline())
        running[caller] = forks.start(forks.be, request["arguments"], request["environment"], request["folder"], files)


def main(address: str, libraries: Sequence[str]) -> None:
    """Import what a simulation's processes need, and these packages where they are there; serve on this socket."""
    tempfile.tempdir = str(Path(address).parent)  # short enough for a socket
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(WAITING)
        forks.begin([*forks.OF_SIMULATIONS, *libraries])
        serve(listener)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
