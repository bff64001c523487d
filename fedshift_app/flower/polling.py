"""Short waits in the place of Flower's fixed ones: ``fedshift supernode``, and the ServerApp's look for replies.

Flower's SuperNode sleeps three seconds when there is no message, its SuperExec asks for work once a second, its grid
looks for replies every three seconds, and who finds a message a moment before its parts are there (they are pushed
after it) asks for them again a second later. Where another version is found, or one that sleeps elsewhere, nothing is
changed and a line says so: the numbers are the same, only later.
"""

import contextlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.serverapp import Grid

from fedshift_app.flower.backoff import Backoff, OtherPopen, OtherSleep
from fedshift_app.flower.internals import HTTP_GRID, path_with_flower
from fedshift_app.flower.keeper import Keeper
from fedshift_app.flower.versions import unread

log = logging.getLogger("fedshift")

PLAIN_WAITS = "FEDSHIFT_PLAIN_WAITS"  # in the ServerApp's environment: Flower's own waits (benchmarks/deploy.py)
NODE = "flwr.supernode.start_client_internal"
EXECUTOR = "flower-superexec"
SUPEREXEC = Path(__file__).with_name("superexec.py")
#: What each function must hold for its waits to be ours: the calls that are replaced, as they are written.
SHAPES = {
    (NODE, "start_client_internal"): ("time.sleep(3)", 'command = ["flower-superexec"]', "subprocess.Popen(command)"),
    (NODE, "_push_messages"): ("time.sleep(0.5)", "state.get_messages_legacy(is_reply=True)"),
    (NODE, "_pull_and_store_message"): ("state.create_task(", "state.store_message(message)", "= pull_objects("),
    (NODE, "pull_objects"): ("initial_backoff: float =", "delay = min(delay * 2, backoff_cap)"),
    (HTTP_GRID, "HttpGrid"): ("time.sleep(3)", "self.pull_messages(msg_ids)", "= pull_objects("),
    (HTTP_GRID, "pull_objects"): ("initial_backoff: float =", "delay = min(delay * 2, backoff_cap)"),
}
#: Seconds between two looks at the SuperLink; Flower's own are 3. A look costs it some 5 ms of computing.
LEAST, MOST = 0.1, 3.0
LEAST_REPLY, MOST_REPLY = 0.01, 0.5  # between two looks at the own memory for the ClientApp's reply; Flower's: 0.5
FIRST_LOOK_FOR_PARTS = 0.05  # seconds; each further one after twice the time. Flower's: 1
POLITENESS = 4.0  # a node spends at most a fifth of its time on asking
#: Seconds that a ClientApp has, after its reply, to hand over its state; Flower's own waits leave it about 1.5.
LAST_WORDS = 10.0
REMIND = 1.0  # seconds after which the SuperExec looks again in any case, as Flower's does


def unknown(module: str) -> str:
    """Return why the waits of a module of Flower's are left as they are; empty if they are the ones known here."""
    from flwr.supercore.version import package_version

    if problem := unread(package_version):
        return problem
    found = import_module(module)
    if getattr(found, "time", None) is not time:
        return f"{module} does not sleep by the module time"
    for (place, name), parts in SHAPES.items():
        if place == module:
            text = inspect.getsource(getattr(found, name)) if hasattr(found, name) else ""
            for part in parts:
                if part not in text:
                    return f"{module}.{name} does not hold {part}"
    return ""


def quicken_grid(grid: Grid) -> None:
    """Let the grid of a real deployment look for replies sooner; other grids do not wait.

    Called once, before the first message.
    """
    if type(grid).__module__ != HTTP_GRID or os.environ.get(PLAIN_WAITS):
        return
    if problem := unknown(HTTP_GRID):
        log.warning("the server looks for replies as seldom as plain Flower does: %s", problem)
        return
    backoff = Backoff(LEAST, MOST)
    send = grid.send_and_receive

    def sent(*messages: Any, **options: Any) -> Any:
        backoff.restart()
        return send(*messages, **options)

    grid.send_and_receive = sent  # type: ignore[method-assign]
    look_sooner_for_parts(sys.modules[HTTP_GRID])
    sys.modules[HTTP_GRID].time = OtherSleep(lambda _seconds: backoff.wait())  # type: ignore[attr-defined]


def look_sooner_for_parts(module: ModuleType) -> None:
    """Let what a module of Flower's pulls be asked for again soon if it is not there yet."""
    changed: Any = module
    pull = changed.pull_objects

    @wraps(pull)
    def pulled(*given: Any, **options: Any) -> Any:
        return pull(*given, **{"initial_backoff": FIRST_LOOK_FOR_PARTS} | options)

    changed.pull_objects = pulled


def run_supernode(options: list[str], *, warm: bool) -> None:
    """Run ``flower-supernode`` in this process, with short waits; what it starts for messages is warm if asked."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    if problem := unknown(NODE):
        log.warning("this SuperNode waits and starts processes as `flower-supernode` does: %s", problem)
    else:
        quicken_node(import_module(NODE), warm=warm)
    os.environ["PATH"] = path_with_flower()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Flower has no other; the command's would wait for its threads
    sys.argv = ["flower-supernode", *options]
    flower_supernode()


def quicken_node(module: ModuleType, *, warm: bool) -> None:
    """Put short waits, and a SuperExec that is woken and kept running, into Flower's module that runs a SuperNode."""
    bell = Bell()
    idle = Backoff(LEAST, MOST, politeness=POLITENESS)
    reply = Backoff(LEAST_REPLY, MOST_REPLY)
    keeper = Keeper(lambda command, **more: start_superexec(command, bell, warm, **more))
    pull, push = module._pull_and_store_message, module._push_messages

    def pulled(**given: Any) -> Any:
        run_id = pull(**given)
        if run_id is not None:
            bell.ring()  # not before: the message must be there when its process asks for it
            reply.restart()
        return run_id

    def pushed(**given: Any) -> None:
        push(**given)
        wait_for_state(given["state"])
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

    look_sooner_for_parts(module)
    changed: Any = module
    changed._pull_and_store_message, changed._push_messages = pulled, pushed
    changed.time = OtherSleep(sleep)
    changed.subprocess = OtherPopen(subprocess, start)


def wait_for_state(
    state: Any, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the ClientApp whose reply is out has handed over its context.

    It does so after its reply. The next message may be here sooner than that, and would find the context of before.
    """
    from flwr.common.constant import Status

    began = clock()
    while state.get_tasks(statuses=[Status.STARTING, Status.RUNNING]):
        if clock() - began > LAST_WORDS:
            log.warning("a ClientApp has not ended %.0f s after its reply; the next message is taken", LAST_WORDS)
            return
        sleep(LEAST_REPLY)


class Bell:
    """What wakes this SuperNode's SuperExec: a pipe, so that nobody has to ask whether there is work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ear, self._hammer = os.pipe()
        os.set_blocking(self._hammer, False)
        self._clock, self._rung = clock, clock()

    def ring(self) -> None:
        """Let the SuperExec look."""
        self._rung = self._clock()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it has enough to wake up to, or is gone
            os.write(self._hammer, b".")

    def remind(self) -> None:
        """Let it look again if it was not told for a while: work that nobody took up in time is offered once more."""
        if self._clock() - self._rung >= REMIND:
            self.ring()


def start_superexec(command: list[str], bell: Bell, warm: bool, **options: Any) -> "subprocess.Popen[bytes]":
    """Start Flower's SuperExec as ours; it sees the pipe and nothing else of this process."""
    ours = [sys.executable, "-P", str(SUPEREXEC), str(bell.ear), "warm" if warm else "cold"]
    return subprocess.Popen([*ours, *command[1:]], pass_fds=[bell.ear], **options)
