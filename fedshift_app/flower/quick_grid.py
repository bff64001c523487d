"""Lets the ServerApp of a deployment find replies soon: Flower looks every 3 s, and a second later for a late part."""

import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from fedshift_app.flower import sources
from fedshift_app.flower.internals import engine_name
from fedshift_app.flower.waits import Backoff

log = logging.getLogger("fedshift")

PLAIN_WAITS = "FEDSHIFT_PLAIN_WAITS"  # 1 in a SuperLink's environment: Flower's own waits (benchmarks/deploy.py)
PARTS = "flwr.supercore.inflatable.inflatable_utils"
LOOK_SECONDS, MOST_SECONDS = 0.1, 3.0  # between two polls of a SuperLink, each of which costs it some 5 ms
FIRST_LOOK_FOR_PARTS = 0.05  # of a message, which follow it; each further wait doubles. Flower's own: 1


def quicken(grid: Any) -> None:
    """Let Flower's grid look for replies soon, unless its source is another or a variable forbids it."""
    if os.environ.get(PLAIN_WAITS) or engine_name(grid):
        return
    if problem := sources.other_source(sources.GRID, PARTS):
        log.warning("the server looks for replies as rarely as plain Flower does: %s", problem)
        return
    look_sooner_for_parts()
    waits = Backoff(LOOK_SECONDS, MOST_SECONDS)

    def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting, replies = set(grid.push_messages(messages)), list[Message]()
        del messages
        end = None if timeout is None else time.time() + timeout
        waits.restart()
        while waiting and (end is None or time.time() < end):
            new = list(grid.pull_messages(set(waiting)))
            replies += new
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            if waiting:
                waits.wait()
        return replies

    grid.send_and_receive = send_and_receive


def look_sooner_for_parts() -> None:
    """Let Flower soon ask again for the missing parts of a message."""
    if not sources.other_source(PARTS):
        sources.found(f"{PARTS}:pull_objects").__kwdefaults__["initial_backoff"] = FIRST_LOOK_FOR_PARTS
