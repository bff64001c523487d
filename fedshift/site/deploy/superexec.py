"""A SuperNode's SuperExec: Flower's own, woken when there is work, whose processes run this node's app and no other.

It is a program, run by its path: ``superexec.py EAR SIGNER warm|cold OPTIONS_OF_FLOWER_SUPEREXEC``.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

FORK_SERVER = Path(__file__).with_name("fork_server.py")
START_SECONDS = 120.0  # to import torch, on a machine that does much else
ANSWER_SECONDS = 30.0  # to fork
DEATHS = 3  # of warm processes, after which each message gets a cold one
MOST_BYTES = 65536  # of an answer
SHARED = "FEDSHIFT_WARM"  # as in ``fedshift_core.env``
ONE, NO_SIGNER = "--one", -1  # as in ``fork_server`` and ``fedshift_app.node.node_key``


def passed(signer: int) -> list[int]:
    """Return the open files that a node's processes get."""
    return [] if signer == NO_SIGNER else [signer]


class LostError(Exception):
    """There is no warm process, or it does not answer."""


class Warm(ABC):
    """A fork server with its libraries imported, of which children are requested through a socket.

    Args:
        control: The socket.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control, self._ready = control, False

    @abstractmethod
    def is_running(self) -> bool:
        """Tell whether it is running."""

    @abstractmethod
    def end(self) -> None:
        """End it; the forked processes continue."""

    def wait(self) -> None:
        """Wait until it has finished its imports.

        Raises:
            LostError: If it fails; it is then ended.
        """
        try:
            if not self._ready:
                self._receive(START_SECONDS)
                self._ready = True
        except (OSError, ValueError) as error:
            self.end()
            raise LostError(str(error)) from None

    def start(self, task: dict[str, Any]) -> int:
        """Request a process for a task; return its id.

        Raises:
            LostError: If it fails to fork; it is then ended.
        """
        self.wait()
        try:
            self._control.sendall(json.dumps(task).encode())
            return int(self._receive(ANSWER_SECONDS)["pid"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.end()
            raise LostError(f"{type(error).__name__}: {error}") from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        data = self._control.recv(MOST_BYTES)
        if not data:
            raise OSError("it has ended")
        answer = json.loads(data)
        if refused := answer.get("refused"):
            raise OSError(refused)
        return dict(answer)


class WarmProcess(Warm):
    """A process of its own that runs ``fork_server.py``.

    Args:
        program: The command.
        signer: The socket of the node's signer.
    """

    def __init__(self, program: list[str], signer: int = NO_SIGNER) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*program, str(theirs.fileno()), str(signer)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *passed(signer)],
            )
        super().__init__(control)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Tell whether it is running."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it; the forked processes continue."""
        self._control.close()  # at which it ends by itself, unless it hangs
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SharedWarmProcess(Warm):
    """A fork server that was forked from one which several SuperNodes of this user share (``fork_server.share``)."""

    def __init__(self, address: str, signer: int = NO_SIGNER) -> None:
        """Connect.

        Args:
            address: Of the process.
            signer: The socket of the node's signer.

        Raises:
            OSError: If there is none.
        """
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        request = {
            "origin": [sys.executable, os.environ.get("PYTHONPATH", "")], "environment": dict(os.environ),
            "folder": str(Path.cwd()),
        }  # fmt: skip
        try:
            self._control.connect(address)
            with Path(os.devnull).open() as nothing:
                files = [nothing.fileno(), sys.stdout.fileno(), sys.stderr.fileno(), *passed(signer)]
                socket.send_fds(self._control, [json.dumps(request).encode()], files)
        except OSError:
            self._control.close()
            raise

    def is_running(self) -> bool:
        """Tell whether it is running."""
        try:
            self._control.setblocking(False)
            return bool(self._control.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def end(self) -> None:
        """End it; the forked processes continue."""
        self._control.close()


class NodeExecutor:
    """Flower's ``Executor``: each ClientApp in a process of its own, forked from one that has imported it.

    If that fails, a task gets a newly started process of the same program. No task gets another one.
    """

    def __init__(self, signer: int = NO_SIGNER, *, warm: bool = True, program: list[str] | None = None) -> None:
        self._signer, self._program = signer, program or [sys.executable, "-P", str(FORK_SERVER)]
        self._deaths = 0 if warm else DEATHS
        self._warm: Warm | None = None
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
        try:
            if self._warm is not None and not spec.suppress_output:
                self._warm.start(task)
                return LaunchResult.accepted()
        except LostError as problem:
            self._count(str(problem))
        self._start_cold(task, subprocess.DEVNULL if spec.suppress_output else None)
        return LaunchResult.accepted()

    def _start_cold(self, task: dict[str, Any], output: int | None) -> None:
        """Start a process for one task, which it reads: others may see a command."""
        process = subprocess.Popen(
            [*self._program, ONE, str(self._signer)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=passed(self._signer),
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as given:  # it could not start; Flower notices
            given.write(json.dumps(task).encode())

    def reconcile(self) -> None:
        """Start a warm process if there is none, and wait for it.

        It is called before each request for work: the token of a task is valid for half a minute only.
        """
        if self._warm is not None and not self._warm.is_running():
            self._warm.end()
            self._count("it was ended")
        self._begin()
        try:
            if self._warm is not None:
                self._warm.wait()
        except LostError as problem:
            self._count(str(problem))

    def close(self) -> None:
        """End the warm process."""
        if self._warm is not None:
            self._warm.end()
        self._warm, self._deaths = None, DEATHS

    def _begin(self) -> None:
        if self._warm is None and self._deaths < DEATHS:
            self._warm = self._made()

    def _made(self) -> Warm:
        """Return a warm process, of the shared one where there is one."""
        address = os.environ.get(SHARED, "")
        try:
            if address and not self._deaths:
                return SharedWarmProcess(address, self._signer)
        except OSError as error:
            log(WARNING, "No shared warm process at %s (%s); this node has its own.", address, error.strerror)
        return WarmProcess(self._program, self._signer)

    def _count(self, problem: str) -> None:
        self._warm, self._deaths = None, self._deaths + 1
        then = "another one is started" if self._deaths < DEATHS else "from now on every message gets a new one"
        log(WARNING, "The warm process is lost (%s); %s.", problem, then)


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
