"""Flower's own SuperNode, as ``fedshift supernode`` runs it.

It answers with the app that is installed here: a run's bundle stays in this process, unread but for its name, version
and hash. Besides: short waits, a kept, warm executor, and a clear end.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from fedshift.site.deploy.superexec import passed
from fedshift_app.flower import quick_grid, sources
from fedshift_app.flower.waits import Backoff, Time
from fedshift_app.node import node_key, own_code
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import plain
from fedshift_core.paths import path_with_flower

log = logging.getLogger("fedshift")

Process = subprocess.Popen[bytes]

CONNECTION, HEARTBEATS = "flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"
EXECUTOR = "flower-superexec"
SUPEREXEC = Path(__file__).with_name("superexec.py")
REPLY_SLEEP = 0.5  # seconds that Flower sleeps between two looks for the ClientApp's reply, in its own memory
LEAST_REPLY, MOST_REPLY = 0.01, 0.5  # ours
POLITENESS = 4.0  # a node spends at most a fifth of its time on asking
#: Seconds after its reply in which a ClientApp's state may come. Flower ends the process 5 s after it began to hand the
#: state over; on a machine that does much else it begins late.
LAST_WORDS = 10.0
HEARTBEAT = 10  # seconds; the least that a SuperLink takes, which misses a node after two. Flower's: 30
HELD, MOST_HELD = 2, 70  # seconds between two attempts to become active, and of all
PAUSE = 5.0  # seconds from the end of an executor to the next start
REMIND = 1.0  # seconds after which the SuperExec polls in any case, as Flower's does


def run_supernode(options: list[str], *, warm: bool, key: Path | None = None) -> NoReturn:
    """Run ``flower-supernode`` in this process with this node's own code and, on request, warm processes.

    Args:
        options: Of ``flower-supernode``.
        warm: Fork the process of each message from one that has imported the app.
        key: The file of the node's private key.

    Raises:
        SystemExit: When it is stopped, or cannot go on.
        FedShiftError: When it cannot start.
    """
    if problem := sources.other_source("flwr.supernode.", "flwr.supercore.superexec."):
        raise FedShiftError(f"this Flower would run the code that a run brings: {problem}")
    flower_supernode = sources.program("flower-supernode")
    module, connection = import_module(sources.NODE), import_module(CONNECTION)
    quicken_node(module, warm=warm, signer=node_key.serve(key).detach() if key else node_key.NONE)
    keep_bundles(module, import_module(sources.HANDLERS))
    keep_place(connection)
    os.environ["PATH"] = path_with_flower()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Flower has no other; the command's would wait for its threads
    sys.argv = ["flower-supernode", *options]
    try:
        flower_supernode()  # returns after an answer of the SuperLink that Flower logs and does not ask for again
        problem = "the SuperNode has lost its SuperLink, for the reason above; start it again"
    except Exception as error:  # any: Flower lets through what its libraries raise
        problem = f"the SuperNode cannot go on: {type(error).__name__}: {error}"
    give_up(problem)


def give_up(problem: str) -> NoReturn:
    """End this process at once: a thread of Flower's, which serves the node's own processes, would keep it alive."""
    print(f"error: {problem}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def keep_place(module: ModuleType, sleep: Callable[[float], None] = time.sleep) -> None:
    """Let the SuperLink miss this node soon after its end and not before, and a node started anew wait for its place.

    Flower holds the place of a killed node for two heartbeats, a minute, in which rounds wait for its answer and the
    same key is refused. Its thread of heartbeats ends at an answer such as 500, and the SuperLink then takes a node
    that goes on asking for messages for one that is offline.
    """
    import httpx

    changed: Any = module
    if (heartbeat := sources.found(HEARTBEATS)) is not None:
        heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    client = changed.FleetHttpClient

    class Patient(client):  # type: ignore[misc, valid-type]
        def ActivateNode(self, request: Any) -> Any:  # noqa: N802 (Flower's name)
            request.heartbeat_interval = HEARTBEAT
            for waited in range(0, MOST_HELD, HELD):
                try:
                    return super().ActivateNode(request)
                except httpx.HTTPStatusError as error:
                    if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                        raise
                if not waited:
                    log.info(
                        "the SuperLink does not let this node in: a process with its key may have been killed less "
                        "than a minute ago; it asks again for %d s",
                        MOST_HELD,
                    )
                sleep(HELD)
            return super().ActivateNode(request)

        def SendNodeHeartbeat(self, request: Any) -> Any:  # noqa: N802
            request.heartbeat_interval = HEARTBEAT
            try:
                answer = super().SendNodeHeartbeat(request)
                if answer.success:
                    return answer
                problem = "the SuperLink does not know this node"
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    raise
                problem = str(error)
            log.warning("a heartbeat of this SuperNode has failed, it is sent again: %s", plain(problem))
            raise httpx.TransportError(problem)  # at which Flower sends another

    changed.FleetHttpClient = Patient


def quicken_node(module: ModuleType, *, warm: bool, signer: int = node_key.NONE) -> None:
    """Patch Flower's SuperNode module: short waits, and a SuperExec that is woken and kept running."""
    bell = Bell()
    idle = Backoff(quick_grid.LOOK_SECONDS, quick_grid.MOST_SECONDS, politeness=POLITENESS)
    reply = Backoff(LEAST_REPLY, MOST_REPLY)
    keeper = Keeper(lambda command, **more: start_superexec(command, bell, warm, signer, **more))
    over = watch_handover(import_module(sources.HANDLERS))
    changed: Any = module
    pull = changed._pull_and_store_message

    def pulled(**given: Any) -> Any:
        if not over.wait(LAST_WORDS):
            log.warning("a ClientApp has not ended %.0f s after its reply; the node takes the next message", LAST_WORDS)
        over.clear()
        run_id = pull(**given)
        if run_id is None:
            over.set()
        else:
            bell.ring()  # not before: the message must be there when its process asks for it
            reply.restart()
            idle.restart()
        return run_id

    def start(command: list[str], **more: Any) -> Process:
        kept = command[:1] == [EXECUTOR]
        return keeper.start(command, **more) if kept else subprocess.Popen(command, **more)

    def sleep(seconds: float) -> None:
        keeper.look()
        if seconds == REPLY_SLEEP:
            bell.remind()
            reply.wait()
            idle.restart()
        else:
            idle.wait()

    quick_grid.look_sooner_for_parts()
    changed._pull_and_store_message, changed.time = pulled, Time(sleep)
    changed.subprocess = SimpleNamespace(Popen=start)


def keep_bundles(module: ModuleType, handlers: ModuleType) -> None:
    """Keep the bundles of runs in this process: its others get a note of name, version and hash in their place."""
    changed: Any = handlers
    to_proto = changed.fab_to_proto
    changed.fab_to_proto = lambda fab: to_proto(replace(fab, content=own_code.note(fab.content)))
    changed = module
    changed.get_fused_config_from_fab = lambda _content, _run: {}  # this node's app reads the message alone


def watch_handover(module: ModuleType) -> threading.Event:
    """Return what is set once a ClientApp has handed over its state, which it does after its reply.

    The next message may arrive sooner, and would get the state of before.
    """
    over = threading.Event()
    over.set()
    changed: Any = module
    push = changed.push_task_output

    @wraps(push)
    def pushed(*given: Any, **named: Any) -> Any:
        try:
            return push(*given, **named)
        finally:
            over.set()

    changed.push_task_output = pushed
    return over


class Keeper:
    """Starts an executor, and restarts it when it has ended, after a pause.

    Without an executor the SuperNode stays connected, takes messages and never answers.

    Args:
        start: Starts an executor.
        clock: Seconds of a clock that does not jump.
    """

    def __init__(self, start: Callable[..., Process], clock: Callable[[], float] = time.monotonic) -> None:
        self._start, self._clock = start, clock
        self._again: Callable[[], Process] | None = None
        self._process: Process | None = None
        self._due: float | None = None  # when it is started again; None while it runs

    def start(self, command: list[str], **options: Any) -> Process:
        """Start the executor in place of Flower, and keep it running."""
        self._again = lambda: self._start(command, **options)
        self._process = self._again()
        return self._process

    def look(self) -> None:
        """Restart it if it has ended and its pause is over; the SuperNode calls this between its polls."""
        now = self._clock()
        if self._process is None or self._again is None:
            return
        if self._due is None and (code := self._process.poll()) is not None:
            how = f"by signal {-code}" if code < 0 else f"exit code {code}"
            self._wait(now, f"the executor of this SuperNode has ended ({how}): messages wait; it starts again in")
        if self._due is None or now < self._due:
            return
        try:
            self._process = self._again()
        except OSError as error:  # no memory, no processes
            self._wait(now, f"the executor cannot be started ({error.strerror}): next try in")
            return
        self._due = None
        log.warning("the executor of this SuperNode has started again, process %d", self._process.pid)

    def _wait(self, now: float, why: str) -> None:
        log.warning("%s %.0f s", why, PAUSE)
        self._due = now + PAUSE


class Bell:
    """Wakes this SuperNode's SuperExec through a pipe, so that it need not poll for work."""

    def __init__(self) -> None:
        self.ear, self._hammer = os.pipe()
        os.set_blocking(self._hammer, False)
        self._rung = time.monotonic()

    def ring(self) -> None:
        """Wake the SuperExec."""
        self._rung = time.monotonic()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the pipe is full, or the SuperExec is gone
            os.write(self._hammer, b".")

    def remind(self) -> None:
        """Wake it if it was not woken for a while: work that nobody took in time is offered again."""
        if time.monotonic() - self._rung >= REMIND:
            self.ring()


def start_superexec(command: list[str], bell: Bell, warm: bool, signer: int, **options: Any) -> Process:
    """Start our SuperExec in place of Flower's; of this process it inherits only the pipe, and the signer's socket."""
    ours = [sys.executable, "-P", str(SUPEREXEC), str(bell.ear), str(signer), "warm" if warm else "cold"]
    return subprocess.Popen([*ours, *command[1:]], pass_fds=[bell.ear, *passed(signer)], **options)
