"""A SuperNode's SuperExec: Flower's own, woken when there is work, whose processes run this node's app and no other.

It is a program, run by its path: ``superexec.py EAR SIGNER warm|cold OPTIONS_OF_FLOWER_SUPEREXEC``.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from flwr.supercore.superexec.executor import LaunchResult

from fedshift.run.launch import forks
from fedshift.site.deploy import fork_server
from fedshift_app.flower import sources
from fedshift_app.flower.waits import Time
from fedshift_core.errors import FedShiftError

log = logging.getLogger("flwr")

CLIENT_APP = "flwr-clientapp"  # a type of task
DEATHS = 3  # failures to fork, after which each message gets a cold process
NO_SIGNER = -1  # as in ``fedshift_app.node.node_key``
WARM = ("fedshift.site.deploy.warm",)


def passed(signer: int) -> list[int]:
    """Return the open files that a node's processes get."""
    return [] if signer == NO_SIGNER else [signer]


class NodeExecutor:
    """Flower's ``Executor``: each ClientApp in a process of its own, forked from one that has imported it.

    If that fails, a task gets a newly started process of the same program. No task gets another one.

    Args:
        signer: The socket of the node's signer.
        warm: Fork.
        modules: What the process imports from which others are forked.
        program: The command of a newly started process.
    """

    def __init__(
        self,
        signer: int = NO_SIGNER,
        *,
        warm: bool = True,
        modules: Sequence[str] = WARM,
        program: Sequence[str] = (sys.executable, "-P", fork_server.__file__),
    ) -> None:
        self._signer, self._modules, self._program = signer, modules, program
        self._deaths = 0 if warm else DEATHS
        self._ready = False
        self._begin()

    def get_eligible_capacity(self, supported_task_types: set[Any], **_options: Any) -> tuple[set[Any], set[str]]:
        """Return all task types: one that nobody took would not be answered."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_given: Any, **_options: Any) -> None:
        """Return at once."""

    def launch(self, spec: Any) -> LaunchResult:
        """Start the process of a task."""
        if spec.task_type != CLIENT_APP:
            return LaunchResult.failed(f"this node runs its own ClientApp alone, not {spec.task_type}")
        task = {
            "address": spec.runtime_api_address,
            "token": spec.token,
            "insecure": spec.insecure,
            "certificates": spec.root_certificates_path,
            "parent": spec.parent_pid,
        }
        if self._deaths < DEATHS and not spec.suppress_output:
            try:
                signer = [forks.File(os.dup(number)) for number in passed(self._signer)]
                forks.start(fork_server.forked, task, *signer, name="flwr-clientapp")
                return LaunchResult.accepted()
            except (OSError, EOFError) as problem:
                self._count(problem)
        self._start_cold(task, subprocess.DEVNULL if spec.suppress_output else None)
        return LaunchResult.accepted()

    def _start_cold(self, task: dict[str, Any], output: int | None) -> None:
        """Start a process for one task, which it reads: others may see a command."""
        process = subprocess.Popen(
            [*self._program, str(self._signer)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=passed(self._signer),
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as given:  # it could not start; Flower notices
            given.write(json.dumps(task).encode())

    def reconcile(self) -> None:
        """Start the process that others are forked from if there is none, and wait for its imports once.

        It is called before each request for work: the token of a task is valid for half a minute only.
        """
        self._begin()
        try:
            if self._deaths < DEATHS and not self._ready:
                forks.start(int).join()
                self._ready = True
        except (OSError, EOFError) as problem:
            self._count(problem)

    def close(self) -> None:
        """End the processes that work on messages, whose SuperExec ends: it would wait for them."""
        for child in multiprocessing.active_children():
            child.terminate()
        self._deaths = DEATHS

    def _begin(self) -> None:
        try:
            if self._deaths < DEATHS:
                forks.begin(self._modules, {fork_server.BLAS_THREADS: os.environ.get(fork_server.BLAS_THREADS, "1")})
        except (OSError, FedShiftError) as problem:
            self._count(problem)

    def _count(self, problem: Exception) -> None:
        self._deaths += 1
        then = "it is tried again" if self._deaths < DEATHS else "from now on every message gets a new process"
        log.warning("No process can be forked (%s: %s); %s.", type(problem).__name__, problem, then)


def sleeping(ear: int) -> Time:
    """Return what replaces the module ``time`` of Flower's SuperExec; its ``sleep`` ends when the SuperNode rings."""

    def sleep(seconds: float) -> None:
        if not os.read(ear, 4096):  # the SuperNode is gone, as Flower notices itself
            time.sleep(seconds)

    return Time(sleep)


def main() -> None:
    """Run ``flower-superexec``."""
    ear, signer, kind, *options = sys.argv[1:]
    flower: Any = import_module(sources.SUPEREXEC)
    flower.time = sleeping(int(ear))
    warm = kind == "warm" and sys.platform == "linux"  # the only one that tells a process's threads and a child's end
    flower.get_executor = lambda *_given, **_options: NodeExecutor(int(signer), warm=warm)
    sys.argv = ["flower-superexec", *options]
    sources.program("flower-superexec")()


if __name__ == "__main__":
    main()
