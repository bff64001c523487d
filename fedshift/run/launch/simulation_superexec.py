"""Runs Flower's SuperExec for one simulation in this process; it is rung for when there is a run."""

import os
import select
import sys
import time
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec import run_superexec

LONGEST_SECONDS = 10.0  # between two requests for work
MOST_RINGS = 4096  # bytes


class Bell:
    """Replaces the module ``time`` of Flower's SuperExec; its ``sleep`` returns when somebody writes to a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sleep(self, _seconds: float) -> None:
        """Wait for work."""
        if select.select([self._descriptor], [], [], LONGEST_SECONDS)[0] and not os.read(self._descriptor, MOST_RINGS):
            time.sleep(LONGEST_SECONDS)  # the SuperLink has gone, as Flower notices itself

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def run(address: str, parent: int, simulation: str, bell: int) -> None:
    """Run ``flower-superexec`` until it is stopped.

    Args:
        address: The SuperLink's ``HOST:PORT``.
        parent: The process with which it ends.
        simulation: The program that it starts for a simulation.
        bell: The end of a pipe to which is written when there is a run.
    """
    flower: Any = run_superexec
    flower.time = Bell(bell)
    TASK_TYPE_TO_COMMAND[TaskType.SIMULATION] = simulation
    sys.argv = ["flower-superexec", "--insecure", "--runtime-api-address", address, "--parent-pid", str(parent)]
    flower_superexec()
