"""Lets Flower's simulation engine find the messages of all nodes at once.

Flower asks its store for the messages of one node after the other, and each time the store checks everything that it
holds: with a thousand nodes this takes most of the simulating process's time. It also polls for messages and replies
only ten times a second. Here one poll takes the next message of every node, a hundred times a second.

The messages, their receivers, and the replies stay the same.
"""

import hashlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from queue import Queue
from threading import Event
from typing import Any

from flwr.app import Message

from fedshift_app.flower.versions import RELEASES_TEXT, unread
from fedshift_core.env import PLAIN_FLOWER

log = logging.getLogger("fedshift")

PLAIN = PLAIN_FLOWER  # environment variable: 1 keeps Flower's own code
LOOK_SECONDS = 0.01
WHOLE_LOOK_SECONDS = 1.0  # interval of Flower's own checks for messages that nobody will answer
#: Functions that are replaced or relied on, each with the start of the SHA-256 of its source.
READ = {
    "add_messages_to_queue": "953f4bd41a931a77",
    "InMemoryGrid.send_and_receive": "0229edfa5741b928",
    "InMemoryGrid.pull_messages": "71c93f1988c54741",
    "InMemoryLinkState.get_message_ins": "6547c8dcbc62e12f",
    "InMemoryLinkState.get_message_res": "3e91c65629fc5b48",
    "InMemoryLinkState.store_message_res": "52a4f7ccc70e8908",
    "InMemoryLinkState._check_stored_messages": "2be47567d2478a58",
}


def install() -> None:
    """Patch the engine in this process, unless its source differs or ``PLAIN`` forbids it."""
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.superlink.grid import InMemoryGrid

    if vce_api.add_messages_to_queue is hand_out:
        return
    reason = why_not()
    if reason:
        log.info("Flower finds messages itself, which is slow with many nodes: %s", reason, extra={"event": "plain"})
        return
    vce_api.add_messages_to_queue = hand_out
    InMemoryGrid.send_and_receive = send_and_receive  # type: ignore[method-assign]


def why_not() -> str:
    """Return the reason to keep Flower's own code; empty if there is none."""
    if os.environ.get(PLAIN) == "1":
        return f"{PLAIN}=1"
    if reason := unread(version("flwr")):
        return reason
    changed = [name for name, function in _functions().items() if _mark(function) != READ[name]]
    return f"not as in Flower {RELEASES_TEXT}: {', '.join(changed)}" if changed else ""


def _functions() -> dict[str, Callable[..., Any] | None]:
    """Return the functions that ``READ`` names; None for a missing one."""
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
    from flwr.superlink.grid import InMemoryGrid

    places = {"InMemoryGrid": InMemoryGrid, "InMemoryLinkState": InMemoryLinkState}
    functions = {}
    for name in READ:
        where, _, attribute = name.rpartition(".")
        functions[name] = getattr(places.get(where, vce_api), attribute, None)
    return functions


def _mark(function: Callable[..., Any] | None) -> str:
    """Return the start of the SHA-256 of a function's source; empty if there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def hand_out(state: Any, queue: "Queue[Message]", nodes_mapping: Mapping[int, int], f_stop: Event) -> None:
    """Put the nodes' messages into the workers' queue until the run is over.

    Replaces ``vce_api.add_messages_to_queue``.

    Args:
        state: The ``InMemoryLinkState``.
        queue: The queue that the workers take messages from.
        nodes_mapping: The partition id of each node.
        f_stop: Set when the run is over.
    """
    while not f_stop.is_set():
        for message in take(state, nodes_mapping):
            queue.put(message)
        f_stop.wait(LOOK_SECONDS)


def take(state: Any, nodes_mapping: Mapping[int, int]) -> list[Message]:
    """Return the oldest undelivered message of each node, in the order of the nodes, and mark it as delivered.

    This equals ``state.get_message_ins(node, limit=1)`` for all nodes: the store drops expired messages.
    """
    from flwr.supercore.date import now

    with state.lock:
        oldest: dict[int, str] = {}
        for message_id, message in state.message_ins_store.items():
            if message.metadata.delivered_at == "" and message.metadata.dst_node_id in nodes_mapping:
                oldest.setdefault(message.metadata.dst_node_id, message_id)
        if not oldest:
            return []
        state._check_stored_messages(set(oldest.values()))
        ids = [oldest[node] for node in nodes_mapping if node in oldest]
        taken: list[Message] = [
            state.message_ins_store[message_id] for message_id in ids if message_id in state.message_ins_store
        ]
        delivered_at = now().isoformat()
        for message in taken:
            message.metadata.delivered_at = delivered_at
    return taken


def send_and_receive(self: Any, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
    """Send messages and return the replies: all of them, or those that came within ``timeout`` seconds.

    Replaces ``InMemoryGrid.send_and_receive``; ``self`` is the grid. It asks the store only for existing replies.
    """
    waiting = set(self.push_messages(messages))
    del messages
    end = None if timeout is None else time.time() + timeout
    looked = time.monotonic()
    replies: list[Message] = []
    while end is None or time.time() < end:
        ready = answered(self.state, waiting)
        if time.monotonic() - looked > WHOLE_LOOK_SECONDS:
            ready, looked = set(waiting), time.monotonic()
        if ready:
            new = list(self.pull_messages(ready))
            replies.extend(new)
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
        if not waiting:
            break
        time.sleep(LOOK_SECONDS)
    return replies


def answered(state: Any, message_ids: set[str]) -> set[str]:
    """Return the ids of those messages that have a reply."""
    with state.lock:
        return {message_id for message_id in message_ids if message_id in state.message_ins_id_to_message_res_id}
