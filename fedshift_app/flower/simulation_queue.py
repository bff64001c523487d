"""How Flower's simulation engine finds messages, mended: once for all nodes, instead of once for each.

Flower asks its store for the message of one node after the other, and each time the store goes through all that it
holds and checks it: with a thousand nodes that is most of what the simulating process does. And it looks for messages
and for replies ten times a second only. Here one look takes the next message of every node, a hundred times a second.

Which messages are handed out, to whom, each once, and which replies come back stay as they are.
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

from fedshift_app.flower.versions import TOLD, unread

log = logging.getLogger("fedshift")

PLAIN = "FEDSHIFT_PLAIN_FLOWER"  # in the environment: 1 leaves Flower's own way
LOOK_SECONDS = 0.01
WHOLE_LOOK_SECONDS = 1.0  # as often it is looked for messages that nobody will answer, with Flower's own checks
#: What is replaced, and what is relied on to mean what it means, with the start of the SHA-256 of its source.
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
    """Mend the engine in this process, unless it is not the one that was read, or ``PLAIN`` says no."""
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.superlink.grid import InMemoryGrid

    if vce_api.add_messages_to_queue is hand_out:
        return
    reason = why_not()
    if reason:
        log.info("Flower's own way of finding messages, slow with many nodes: %s", reason, extra={"event": "plain"})
        return
    vce_api.add_messages_to_queue = hand_out
    InMemoryGrid.send_and_receive = send_and_receive  # type: ignore[method-assign]


def why_not() -> str:
    """Return why Flower's own way stays; empty if nothing speaks for it."""
    if os.environ.get(PLAIN) == "1":
        return f"{PLAIN}=1"
    if reason := unread(version("flwr")):
        return reason
    strange = [name for name, function in _functions().items() if _mark(function) != READ[name]]
    return f"not as Flower {TOLD} have it: {', '.join(strange)}" if strange else ""


def _functions() -> dict[str, Callable[..., Any] | None]:
    """Return what ``READ`` names."""
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
    from flwr.superlink.grid import InMemoryGrid

    places = {"InMemoryGrid": InMemoryGrid, "InMemoryLinkState": InMemoryLinkState}
    found = {}
    for name in READ:
        where, _, attribute = name.rpartition(".")
        found[name] = getattr(places.get(where, vce_api), attribute, None)
    return found


def _mark(function: Callable[..., Any] | None) -> str:
    """Return the start of the SHA-256 of a function's source; empty where there is none to be read."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def hand_out(state: Any, queue: "Queue[Message]", nodes_mapping: Mapping[int, int], f_stop: Event) -> None:
    """Put the nodes' messages into the workers' queue until the run is over.

    Takes the place of ``vce_api.add_messages_to_queue``.

    Args:
        state: The ``InMemoryLinkState``.
        queue: What the workers take messages from.
        nodes_mapping: The partition id of each node.
        f_stop: Set when the run is over.
    """
    while not f_stop.is_set():
        for message in take(state, nodes_mapping):
            queue.put(message)
        f_stop.wait(LOOK_SECONDS)


def take(state: Any, nodes_mapping: Mapping[int, int]) -> list[Message]:
    """Return, in the order of the nodes, the oldest message of each that was not handed out yet; now they are.

    As ``state.get_message_ins(node, limit=1)`` of all nodes together: an expired one goes out of the store.
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
        asked = [oldest[node] for node in nodes_mapping if node in oldest]
        taken: list[Message] = [state.message_ins_store[one] for one in asked if one in state.message_ins_store]
        delivered_at = now().isoformat()
        for message in taken:
            message.metadata.delivered_at = delivered_at
    return taken


def send_and_receive(self: Any, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
    """Send messages and return the replies: all of them, or those that came in ``timeout`` seconds.

    Takes the place of ``InMemoryGrid.send_and_receive``; ``self`` is the grid. It asks the store for what is there.
    """
    waiting = set(self.push_messages(messages))
    del messages
    end = None if timeout is None else time.time() + timeout
    looked = time.monotonic()
    replies: list[Message] = []
    while end is None or time.time() < end:
        here = answered(self.state, waiting)
        if time.monotonic() - looked > WHOLE_LOOK_SECONDS:
            here, looked = set(waiting), time.monotonic()
        if here:
            found = list(self.pull_messages(here))
            replies.extend(found)
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
        if not waiting:
            break
        time.sleep(LOOK_SECONDS)
    return replies


def answered(state: Any, message_ids: set[str]) -> set[str]:
    """Return those of some messages that a reply has come to."""
    with state.lock:
        return {one for one in message_ids if one in state.message_ins_id_to_message_res_id}
