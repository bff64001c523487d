"""Replaces Flower's fixed waits by short ones, for the ServerApp's replies and for nodes.

Flower's SuperNode sleeps three seconds without a message, its SuperExec asks for work once a second, and its grid polls
for replies every three seconds. The parts of a message are pushed after it; a process that finds a message too early
asks for its parts again a second later. With another version of Flower, or one that sleeps elsewhere, nothing changes
and a log line says so: the numbers stay the same, but come later.
"""

import logging
import os
import sys
import time
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from flwr.serverapp import Grid

from fedshift_app.flower.backoff import Backoff
from fedshift_app.flower.internals import HTTP_GRID
from fedshift_app.flower.patches import Other, missing
from fedshift_app.flower.versions import unread
from fedshift_core.env import LONG_POLL

log = logging.getLogger("fedshift")

#: In the environment of a SuperLink and its ServerApps: Flower's own waits and ways of requests (benchmarks/deploy.py).
PLAIN_WAITS = "FEDSHIFT_PLAIN_WAITS"
NODE = "flwr.supernode.start_client_internal"
CONNECTION = "flwr.supernode.fleet_http_connection"  # of a node with its SuperLink
HANDLERS = "flwr.supernode.servicer.runtime.runtime_handlers"  # of what a ClientApp tells its node
CLIENT_APP = "flwr.supernode.runtime.run_clientapp"
#: Source text that each function must contain before its waits are replaced.
SHAPES = {
    (NODE, "start_client_internal"): ("time.sleep(3)", 'command = ["flower-superexec"]', "subprocess.Popen(command)"),
    (NODE, "_push_messages"): (
        "time.sleep(0.5)", "state.get_messages_legacy(is_reply=True)", "= send(message, object_tree, clientapp",
    ),
    (NODE, "_pull_and_store_message"): (
        "state.create_task(", "state.store_message(message)", "= pull_objects(", "pull_object(run_id, obj_id)",
        "confirm_message_received(run_id, message.metadata.message_id)",
        "get_fused_config_from_fab(fab.content, run_info)",
    ),
    (NODE, "pull_objects"): ("initial_backoff: float =", "delay = min(delay * 2, backoff_cap)"),
    (CONNECTION, "http_request_response"): (
        "heartbeat_sender = HeartbeatSender(send_node_heartbeat)", "heartbeat_sender.start()",
        "heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL", "with FleetHttpClient.from_server_address(",
        "client.ActivateNode,",
    ),
    (HANDLERS, "pull_task_input"): ("state.get_fab(run.fab_hash)", "fab=fab_to_proto(fab)"),
    (CLIENT_APP, "run_clientapp"): (
        "install_from_fab(fab.content, skip_prompt=True)", "load_client_app_fn = get_load_client_app_fn(",
        "client_app: ClientApp = load_client_app_fn(", "client_app(message=message, context=context)",
    ),
    (HANDLERS, "push_task_output"): ("if state.finish_task(", "state.set_run_series_context("),
    (HTTP_GRID, "HttpGrid"): ("time.sleep(3)", "self.pull_messages(msg_ids)", "= pull_objects("),
    (HTTP_GRID, "pull_objects"): ("initial_backoff: float =", "delay = min(delay * 2, backoff_cap)"),
}  # fmt: skip
#: Seconds between two polls of the SuperLink; Flower's own are 3. A poll costs it some 5 ms of computing.
LEAST, MOST = 0.1, 3.0
KEPT = 0.01  # between two questions that the SuperLink keeps (``long_poll``)
FIRST_LOOK_FOR_PARTS = 0.05  # seconds; each further wait doubles. Flower's own: 1


def unknown(module: str, *others: str) -> str:
    """Return the reason to leave the waits of a Flower module, and ``others``, unchanged; empty if all is as expected.

    Args:
        module: It sleeps with the module ``time``.
        others: Modules that are changed with it.
    """
    from flwr.supercore.version import package_version

    if problem := unread(package_version):
        return problem
    imported = import_module(module)
    if getattr(imported, "time", None) is not time:
        return f"{module} does not sleep with the module time"
    lacks = missing(SHAPES, module, *others)
    return "" if lacks is None else "{} does not contain {}".format(*lacks)


def quicken_grid(grid: Grid) -> None:
    """Let the grid of a real deployment poll for replies sooner; other grids do not wait.

    Call it once, before the first message.
    """
    if type(grid).__module__ != HTTP_GRID or os.environ.get(PLAIN_WAITS):
        return
    if problem := unknown(HTTP_GRID):
        log.warning("the server polls for replies as rarely as plain Flower does: %s", problem)
        return
    backoff = Backoff(KEPT, KEPT) if os.environ.get(LONG_POLL) else Backoff(LEAST, MOST)
    send = grid.send_and_receive

    def sent(*messages: Any, **options: Any) -> Any:
        backoff.restart()
        return send(*messages, **options)

    grid.send_and_receive = sent  # type: ignore[method-assign]
    look_sooner_for_parts(sys.modules[HTTP_GRID])
    sys.modules[HTTP_GRID].time = Other(time, sleep=lambda _seconds: backoff.wait())  # type: ignore[attr-defined]


def look_sooner_for_parts(module: ModuleType) -> None:
    """Let a Flower module soon ask again for missing parts of a message."""
    changed: Any = module
    pull = changed.pull_objects

    @wraps(pull)
    def pulled(*given: Any, **options: Any) -> Any:
        return pull(*given, **{"initial_backoff": FIRST_LOOK_FOR_PARTS} | options)

    changed.pull_objects = pulled
