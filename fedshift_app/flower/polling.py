"""Short waits in the place of Flower's fixed ones: the ServerApp's look for replies, and what nodes share with it.

Flower's SuperNode sleeps three seconds when there is no message, its SuperExec asks for work once a second, its grid
looks for replies every three seconds, and who finds a message a moment before its parts are there (they are pushed
after it) asks for them again a second later. Where another version is found, or one that sleeps elsewhere, nothing is
changed and a line says so: the numbers are the same, only later.
"""

import inspect
import logging
import os
import sys
import time
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from flwr.serverapp import Grid

from fedshift_app.flower.backoff import Backoff, OtherSleep
from fedshift_app.flower.internals import HTTP_GRID
from fedshift_app.flower.versions import unread

log = logging.getLogger("fedshift")

PLAIN_WAITS = "FEDSHIFT_PLAIN_WAITS"  # in the ServerApp's environment: Flower's own waits (benchmarks/deploy.py)
NODE = "flwr.supernode.start_client_internal"
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
FIRST_LOOK_FOR_PARTS = 0.05  # seconds; each further one after twice the time. Flower's: 1


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
