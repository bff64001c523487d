"""Lets a run find messages and replies soon: Flower looks ten times a second in a simulation, and else every 3 s.

In a simulation Flower also asks its store for the messages of one node after the other, and each time the store checks
everything that it holds: with a thousand nodes this takes most of the simulating process's time. Here one look takes
the next message of every node. The messages, their receivers and the replies stay the same.
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from queue import Queue
from threading import Event
from typing import Any

from flwr.app import Message

from fedshift_app.flower import internals, sources
from fedshift_app.flower.waits import Backoff
from fedshift_core.env import PLAIN_FLOWER

log = logging.getLogger("fedshift")

PLAIN_WAITS = "FEDSHIFT_PLAIN_WAITS"  # 1 in a SuperLink's environment: Flower's own waits (benchmarks/deploy.py)
IN_MEMORY = ("flwr.server.superlink.linkstate", "flwr.superlink.grid.inmemory_grid")
PARTS = "flwr.supercore.inflatable.inflatable_utils"
LOOK_SECONDS, MOST_SECONDS = 0.1, 3.0  # between two polls of a SuperLink, each of which costs it some 5 ms
IN_MEMORY_SECONDS = 0.01
WHOLE_LOOK_SECONDS = 1.0  # between two looks of Flower's own for messages that nobody will answer
FIRST_LOOK_FOR_PARTS = 0.05  # of a message, which follow it; each further wait doubles. Flower's own: 1


def quicken(grid: Any) -> None:
    """Let one of Flower's grids look for replies soon, unless its source is another or a variable forbids it."""
    simulated = internals.is_simulation_grid(grid)
    if os.environ.get(PLAIN_FLOWER if simulated else PLAIN_WAITS):
        return
    if problem := sources.other_source(*(IN_MEMORY if simulated else (sources.GRID, PARTS))):
        log.warning("the server looks for replies as rarely as plain Flower does: %s", problem)
        return
    if not simulated:
        look_sooner_for_parts()
    waits = Backoff(IN_MEMORY_SECONDS, IN_MEMORY_SECONDS) if simulated else Backoff(LOOK_SECONDS, MOST_SECONDS)

    def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting = set(grid.push_messages(messages))
        del messages
        end = None if timeout is None else time.time() + timeout
        waits.restart()
        looked, replies = time.monotonic(), list[Message]()
        while waiting and (end is None or time.time() < end):
            ready = answered(grid.state, waiting) if simulated else waiting
            if time.monotonic() - looked > WHOLE_LOOK_SECONDS:
                ready, looked = waiting, time.monotonic()
            new = list(grid.pull_messages(set(ready))) if ready else []
            replies += new
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            if waiting:
                waits.wait()
        return replies

    grid.send_and_receive = send_and_receive


def look_sooner_for_parts() -> None:
    """Let Flower soon ask again for the missing parts of a message."""
    pull: Any = import_module(PARTS).pull_objects
    pull.__kwdefaults__["initial_backoff"] = FIRST_LOOK_FOR_PARTS


def install() -> None:
    """Let the simulation engine of this process find the messages of all nodes at once, likewise."""
    if os.environ.get(PLAIN_FLOWER) == "1":
        return
    engine: Any = import_module(sources.ENGINE)
    if engine.add_messages_to_queue is hand_out:
        return
    if problem := sources.other_source("flwr.server"):
        log.info("Flower finds messages itself, which is slow with many nodes: %s", problem, extra={"event": "plain"})
        return
    engine.add_messages_to_queue = hand_out


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
        f_stop.wait(IN_MEMORY_SECONDS)


def take(state: Any, nodes_mapping: Mapping[int, int]) -> list[Message]:
    """Return the oldest undelivered message of each node, in the order of the nodes, and mark it as delivered.

    This equals ``state.get_message_ins(node, limit=1)`` for all nodes: the store drops expired messages.
    """
    with state.lock:
        oldest: dict[int, str] = {}
        for message_id, message in state.message_ins_store.items():
            if message.metadata.delivered_at == "" and message.metadata.dst_node_id in nodes_mapping:
                oldest.setdefault(message.metadata.dst_node_id, message_id)
        if not oldest:
            return []
        state._check_stored_messages(set(oldest.values()))
        found = (state.message_ins_store.get(oldest[node]) for node in nodes_mapping if node in oldest)
        taken: list[Message] = [message for message in found if message is not None]
        for message in taken:
            message.metadata.delivered_at = datetime.now(UTC).isoformat()
    return taken


def answered(state: Any, message_ids: set[str]) -> set[str]:
    """Return the ids of those messages that have a reply."""
    with state.lock:
        return {message_id for message_id in message_ids if message_id in state.message_ins_id_to_message_res_id}
