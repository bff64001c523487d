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
from types import ModuleType
from typing import Any, NoReturn

from fedshift.site.deploy.keeper import Keeper
from fedshift.site.deploy.superexec import passed
from fedshift_app.flower import middlewares, polling, round_trips
from fedshift_app.flower.backoff import Backoff
from fedshift_app.flower.long_poll import NODE_SECONDS
from fedshift_app.flower.patches import Other
from fedshift_app.node import node_key, own_code
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import plain
from fedshift_core.paths import path_with_flower

log = logging.getLogger("fedshift")

EXECUTOR = "flower-superexec"
SUPEREXEC = Path(__file__).with_name("superexec.py")
LEAST_REPLY, MOST_REPLY = 0.01, 0.5  # between two polls of local memory for the ClientApp's reply; Flower's: 0.5
POLITENESS = 4.0  # a node spends at most a fifth of its time on asking
KEPT = 0.9 * NODE_SECONDS  # seconds after which an answer that there is nothing was kept, see ``long_poll``
#: Seconds after its reply in which a ClientApp's state may come. Flower ends the process 5 s after it began to hand the
#: state over; on a machine that does much else it begins late.
LAST_WORDS = 10.0
HEARTBEAT = 10  # seconds; the least that a SuperLink takes, which misses a node after two. Flower's: 30
HELD, MOST_HELD = 2, 70  # seconds between two attempts to become active, and of all
REMIND = 1.0  # seconds after which the SuperExec polls in any case, as Flower's does


def run_supernode(options: list[str], *, warm: bool, key: Path | None = None) -> NoReturn:
    """Run ``flower-supernode`` in this process with this node's own code and, on request, warm processes.

    Args:
        options: Of ``flower-supernode``.
        warm: Fork the process of each message from one that has imported the app.
        key: The file of the node's private key.

    Raises:
        SystemExit: When it is stopped.
        FedShiftError: When it cannot start or go on. No thread of Flower's then keeps this process alive.
    """
    if problem := polling.unknown(polling.NODE, polling.CONNECTION, polling.HANDLERS, polling.CLIENT_APP):
        raise FedShiftError(f"this Flower would run the code that a run brings: {problem}")
    from flwr.supernode.cli.flower_supernode import flower_supernode

    quicken_node(import_module(polling.NODE), warm=warm, signer=node_key.serve(key).detach() if key else node_key.NONE)
    keep_bundles(import_module(polling.NODE), import_module(polling.HANDLERS))
    keep_heartbeats(import_module(polling.CONNECTION))
    keep_place(import_module(polling.CONNECTION))
    middlewares.shorten()
    round_trips.spare_node()
    os.environ["PATH"] = path_with_flower()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Flower has no other; the command's would wait for its threads
    sys.argv = ["flower-supernode", *options]
    try:
        flower_supernode()  # returns after an answer of the SuperLink that Flower logs and does not ask for again
        problem = "the SuperNode has lost its SuperLink, for the reason above; start it again"
    except Exception as error:  # any: Flower lets through what its libraries raise
        problem = f"the SuperNode cannot go on: {type(error).__name__}: {error}"
    stop_threads()
    raise FedShiftError(problem)


def stop_threads() -> None:
    """Run Flower's exit handlers, which end the SuperNode's server of its own processes.

    Its thread would keep this process, which no longer asks for messages, alive until it is killed.
    """
    from flwr.supercore.exit.exit_handler import trigger_exit_handlers

    for before in (True, False):
        trigger_exit_handlers(run_before_force_exit=before)


def keep_heartbeats(module: ModuleType) -> None:
    """Let Flower's connection of a SuperNode send heartbeats also after one that failed.

    Flower's thread of heartbeats ends at an answer such as 500. The SuperLink then takes the node, which goes on
    asking for messages, for one that is offline.
    """
    from flwr.supercore.heartbeat import HeartbeatFailure, HeartbeatSender

    def kept(send: Callable[[], bool]) -> HeartbeatSender:
        def sent() -> bool:
            try:
                return send()
            except Exception as error:  # any: what the HTTP client raises, or that the SuperLink does not know the node
                log.warning("a heartbeat of this SuperNode has failed, it is sent again: %s", plain(str(error)))
                raise HeartbeatFailure from error

        return HeartbeatSender(sent)

    changed: Any = module
    changed.HeartbeatSender = kept


def keep_place(module: ModuleType, sleep: Callable[[float], None] = time.sleep) -> None:
    """Let the SuperLink miss this node soon after its end, and let a node that is started anew wait for its place.

    Flower holds the place of a killed node for two heartbeats, a minute, in which rounds wait for its answer and the
    same key is refused.
    """
    import httpx

    heartbeat: Any = import_module("flwr.supercore.heartbeat")
    changed: Any = module
    changed.HEARTBEAT_DEFAULT_INTERVAL = heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    client = changed.FleetHttpClient

    class Patient(client):  # type: ignore[misc, valid-type]
        def ActivateNode(self, request: Any) -> Any:  # noqa: N802 (Flower's name)
            for waited in range(0, MOST_HELD, HELD):
                try:
                    return super().ActivateNode(request)
                except httpx.HTTPStatusError as error:
                    if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                        raise
                if not waited:
                    log.info("the SuperLink does not let this node in: a process with its key may have been killed "
                             "less than a minute ago; it asks again for %d s", MOST_HELD)  # fmt: skip
                sleep(HELD)
            return super().ActivateNode(request)

    changed.FleetHttpClient = Patient


def quicken_node(module: ModuleType, *, warm: bool, signer: int = node_key.NONE) -> None:
    """Patch Flower's SuperNode module: short waits, and a SuperExec that is woken and kept running."""
    bell = Bell()
    idle = Backoff(polling.LEAST, polling.MOST, politeness=POLITENESS, kept=KEPT)
    reply = Backoff(LEAST_REPLY, MOST_REPLY)
    keeper = Keeper(lambda command, **more: start_superexec(command, bell, warm, signer, **more))
    handover = watch_handover(import_module(polling.HANDLERS))
    confirmations, parts = round_trips.Confirmations(), round_trips.LastParts()
    pull, push = module._pull_and_store_message, module._push_messages

    def pulled(confirm_message_received: Callable[..., None], pull_object: Callable[..., bytes], **given: Any) -> Any:
        run_id = pull(
            confirm_message_received=confirmations.later(confirm_message_received),
            pull_object=parts.before_pull(pull_object), **given,
        )  # fmt: skip
        parts.after_pull()
        if run_id is not None:
            bell.ring()  # not before: the message must be there when its process asks for it
            reply.restart()
        return run_id

    def pushed(send: Callable[..., Any], **given: Any) -> None:
        def sent(*reply: Any) -> Any:
            confirmations.wait()
            return send(*reply)

        push(send=sent, **given)
        wait_for_state(given["state"], handover)
        idle.restart()

    def start(command: list[str], **more: Any) -> "subprocess.Popen[bytes]":
        kept = command[:1] == [EXECUTOR]
        return keeper.start(command, **more) if kept else subprocess.Popen(command, **more)

    def sleep(seconds: float) -> None:
        keeper.look()
        if seconds != 0.5:
            idle.wait()
            return
        bell.remind()
        reply.wait()

    polling.look_sooner_for_parts(module)
    changed: Any = module
    changed._pull_and_store_message, changed._push_messages = pulled, pushed
    changed.time = Other(time, sleep=sleep)
    changed.subprocess = Other(subprocess, Popen=start)


def keep_bundles(module: ModuleType, handlers: ModuleType) -> None:
    """Keep the bundles of runs in this process: its others get a note of name, version and hash in their place."""
    changed: Any = handlers
    to_proto = changed.fab_to_proto
    changed.fab_to_proto = lambda fab: to_proto(replace(fab, content=own_code.note(fab.content)))
    changed = module
    changed.get_fused_config_from_fab = lambda _content, _run: {}  # this node's app reads the message alone


def watch_handover(module: ModuleType) -> threading.Lock:
    """Return a lock that is held while a ClientApp hands over its state.

    Flower's handler first ends the ClientApp's task, and then keeps the state.
    """
    lock = threading.Lock()
    changed: Any = module
    push = changed.push_task_output

    @wraps(push)
    def pushed(*given: Any, **named: Any) -> Any:
        with lock:
            return push(*given, **named)

    changed.push_task_output = pushed
    return lock


def wait_for_state(
    state: Any,
    handover: threading.Lock,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the ClientApp has handed over its context.

    It does so after its reply. The next message may arrive sooner, and would get the previous context.

    Args:
        state: Flower's, of the node.
        handover: Is held while a context is handed over, from before its task ends.
        clock: Seconds of a clock that does not jump.
        sleep: Function that waits.
    """
    from flwr.common.constant import Status

    began = clock()
    while state.get_tasks(statuses=[Status.STARTING, Status.RUNNING]) or handover.locked():  # in this order
        if clock() - began > LAST_WORDS:
            log.warning("a ClientApp has not ended %.0f s after its reply; the node takes the next message", LAST_WORDS)
            return
        sleep(LEAST_REPLY)


class Bell:
    """Wakes this SuperNode's SuperExec through a pipe, so that it need not poll for work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ear, self._hammer = os.pipe()
        os.set_blocking(self._hammer, False)
        self._clock, self._rung = clock, clock()

    def ring(self) -> None:
        """Wake the SuperExec."""
        self._rung = self._clock()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the pipe is full, or the SuperExec is gone
            os.write(self._hammer, b".")

    def remind(self) -> None:
        """Wake it if it was not woken for a while: work that nobody took in time is offered again."""
        if self._clock() - self._rung >= REMIND:
            self.ring()


def start_superexec(
    command: list[str], bell: Bell, warm: bool, signer: int, **options: Any
) -> "subprocess.Popen[bytes]":
    """Start our SuperExec in place of Flower's; of this process it inherits only the pipe, and the signer's socket."""
    ours = [sys.executable, "-P", str(SUPEREXEC), str(bell.ear), str(signer), "warm" if warm else "cold"]
    return subprocess.Popen([*ours, *command[1:]], pass_fds=[bell.ear, *passed(signer)], **options)
