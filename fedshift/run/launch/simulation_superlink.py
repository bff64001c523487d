"""The SuperLink of one simulation and its SuperExec, which is forked from it with all imports.

Flower's SuperLink would start ``flower-superexec`` as a program of its own, whose imports take a second and are nearly
all among the SuperLink's. The simulation that SuperExec starts is forked from the run's fork server.

It is a program: ``-m fedshift.run.launch.simulation_superlink PORT``.
"""

import os
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

from fedshift.run.launch import forked, superlink
from fedshift_core.env import TELEMETRY

HOST = "127.0.0.1"
START_RUN = "/start-run"  # of Flower's Control API
LOOK_SECONDS = 0.02


class RingingOwner(superlink.OnlyOwner):
    """Rings for SuperExec after each request that may have begun a run."""

    bell = -1  # the end of a pipe

    async def __call__(self, scope: superlink.Scope, receive: superlink.Receive, send: superlink.Send) -> None:
        """Pass a request on, or refuse it."""
        await super().__call__(scope, receive, send)
        if str(scope.get("path", "")).endswith(START_RUN):
            os.write(self.bell, b".")


def serve(port: int) -> None:
    """Run both until they are stopped."""
    os.environ.setdefault(TELEMETRY, "0")  # before Flower is imported, which reads it then
    from flwr.superlink.cli import flower_superlink as _with_its_imports  # noqa: F401

    from fedshift.run.launch import simulation_superexec

    parent = os.getpid()
    heard, RingingOwner.bell = os.pipe()
    if os.fork() == 0:
        os.close(RingingOwner.bell)
        Path("/proc/self/comm").write_text("flower-superexec")
        try:
            wait_for(port, parent)
            simulation_superexec.run(f"{HOST}:{port}", parent, simulation_program(Path.cwd()), heard)
        except Exception:  # without it nothing is ever started
            os.kill(parent, signal.SIGTERM)
            raise
    else:
        os.close(heard)
        options = ["--insecure", "--simulation", "--isolation", "process", "--host", HOST, "--port", str(port)]
        superlink.serve(options, RingingOwner)


def wait_for(port: int, parent: int) -> None:
    """Wait until somebody listens on a port, at most as long as the parent is there."""
    while os.getppid() == parent:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            time.sleep(LOOK_SECONDS)
        else:
            return


def simulation_program(folder: Path) -> str:
    """Make and return a program for SuperExec that starts a forked simulation: SuperExec gives arguments of its own."""
    program = folder / forked.SIMULATION
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked.command(forked.SIMULATION))} "$@"\n')
    program.chmod(0o700)
    return str(program)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
