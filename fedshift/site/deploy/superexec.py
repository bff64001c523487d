"""A SuperNode's SuperExec: Flower's own, woken when there is work, whose processes run this node's app and no other.

It is a program, run by its path: ``superexec.py EAR SIGNER warm|cold OPTIONS_OF_FLOWER_SUPEREXEC``.
"""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from logging import WARNING
from typing import Any

from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

from fedshift.run.launch import forks
from fedshift.site.deploy import fork_server
from fedshift_core.errors import FedShiftError

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
        self, signer: int = NO_SIGNER, *, warm: bool = True, modules: Sequence[str] = WARM,
        program: Sequence[str] = (sys.executable, "-P", fork_server.__file__),
    ) -> None:  # fmt: skip
        self._signer, self._modules, self._program = signer, modules, program
        self._deaths = 0 if warm else DEATHS
        self._ready = False
        self._begin()

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **_options: Any
    ) -> tuple[set[TaskType], set[str]]:
        """Return all task types: one that nobody took would not be answered."""
        return supported_task_types, set()

    def wait_for_capacity(self, task_type: TaskType | None = None, **_options: Any) -> None:
        """Return at once."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a task."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"this node runs its own ClientApp alone, not {spec.task_type}")
        task = {
            "address": spec.runtime_api_address, "token": spec.token, "insecure": spec.insecure,
            "certificates": spec.root_certificates_path, "parent": spec.parent_pid,
        }  # fmt: skip
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
        log(WARNING, "No process can be forked (%s: %s); %s.", type(problem).__name__, problem, then)


class Ear:
    """Replaces the module ``time`` of Flower's SuperExec; its ``sleep`` returns when the SuperNode rings."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sleep(self, seconds: float) -> None:
        """Wait for work, or for ``seconds`` once the SuperNode is gone, until Flower notices."""
        if not os.read(self._descriptor, 4096):
            time.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main() -> None:
    """Run ``flower-superexec``."""
    from flwr.supercore.cli.flower_superexec import flower_superexec

    ear, signer, kind, *options = sys.argv[1:]
    flower: Any = run_superexec
    flower.time = Ear(int(ear))
    warm = kind == "warm" and sys.platform == "linux"  # the only one that tells a process's threads and a child's end
    flower.get_executor = lambda *_given, **_options: NodeExecutor(int(signer), warm=warm)
    sys.argv = ["flower-superexec", *options]
    flower_superexec()


if __name__ == "__main__":
    main()
