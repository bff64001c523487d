"""All that a server received from each node, as lines of ``received.jsonl`` in the run folder.

One line for each reply, and one for each array, number and text in it: whose, of which round, to which message, its
name, type, shape, norm and SHA-256. The bytes behind a hash are those of the node's own log of what left it
(:mod:`fedshift_app.node.out_log`), so that both can be compared line by line. The numbers themselves are not in it, but
that of a single one is its norm, without its sign.

A node is not trusted to send what can be read: what cannot has no norm, or a line of the kind ``unreadable``.
"""

import json
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedshift_app.flower.internals import engine_name
from fedshift_app.node import out_log
from fedshift_app.node.chained_log import stamp
from fedshift_core import atomic_io
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.wire.names import CONFIG, NODE_INDEX, SERVER_ROUND

RECEIVED_FILE = "received.jsonl"
UNREADABLE = "unreadable"  # the kind of a line of what is neither array nor number nor text


class ReceivedLog:
    """Writes down what comes in by a grid. Until there is a run folder, lines wait in memory.

    Args:
        grid: Of the run; looked at from now on.
    """

    def __init__(self, grid: Any) -> None:
        self._lines: list[str] = []
        self._path: Path | None = None
        self._sent: dict[int, tuple[int | None, int]] = {}  # by node id: its index, and the round of its last message
        # A grid that answers messages as they are sent has one call, Flower's have a queue.
        own = bool(engine_name(grid))
        sends, gives = ("send_and_receive", "send_and_receive") if own else ("push_messages", "pull_messages")
        send = getattr(grid, sends)
        setattr(grid, sends, lambda messages, **options: send(self._noted(messages), **options))
        give = getattr(grid, gives)
        setattr(grid, gives, lambda *args, **options: self._taken(list(give(*args, **options))))

    def open(self, folder: Path) -> None:
        """Write to the run folder from now on, what came before first.

        Raises:
            DiskError: If it cannot be written.
        """
        self._path = folder / RECEIVED_FILE
        self._taken([])

    def _noted(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Pass messages on, and note what each node was sent last."""
        for message in messages:
            config: Mapping[str, Any] = message.content.config_records.get(CONFIG, {})
            node_id = message.metadata.dst_node_id
            index = config.get(NODE_INDEX, self._sent.get(node_id, (None, 0))[0])
            self._sent[node_id] = index, config.get(SERVER_ROUND, 0)
            yield message

    def _taken(self, replies: list[Message]) -> list[Message]:
        for reply in replies:
            node_id = reply.metadata.src_node_id
            index, number = self._sent.get(node_id, (None, 0))
            about = {
                "time": stamp(time.time()),
                "round": number,
                "node": index,
                "node_id": node_id,
                "message": plain(reply.metadata.message_type, MOST_NAME),
            }
            self._lines += [json.dumps({**about, **entry}) for entry in out_log.reply_lines([*_entries(reply)])]
        if self._lines and self._path is not None:
            atomic_io.append_line(self._path, "\n".join(self._lines))
            self._lines = []
        return replies


def _entries(reply: Message) -> Iterator[dict[str, Any]]:
    """Yield what the log says of each part of a reply; of an error, of its text."""
    if reply.has_error():
        yield out_log.item(out_log.REFUSAL, str(reply.error.reason))
        return
    for record_name, content in reply.content.items():
        for name, value in content.items():
            shown = plain(f"{record_name}/{name}", 2 * MOST_NAME)
            try:
                yield out_log.item(shown, value)
            except (FedShiftError, ArithmeticError, TypeError, ValueError, struct.error):  # a node may send anything
                yield {"kind": UNREADABLE, "name": shown, "bytes": 0}
