"""The program of a worker process: answers the messages that :class:`fedshift.run.engine.workers.WorkersGrid` sends.

It ends as soon as the other end of its pipe is gone, whatever it is doing: nothing outlives a run that was killed.
"""

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedshift.run.engine import inline
from fedshift.run.launch import forks
from fedshift_app.flower.internals import identify_process

READY, REPLY, LINE, BROKEN = "ready", "reply", "line", "broken"  # what a worker says, each with what belongs to it


def serve(connection: "Connection[Any, Any]", num_nodes: int, environment: Mapping[str, str]) -> None:
    """Answer messages until the connection is closed.

    Args:
        connection: To the run.
        num_nodes: How many nodes the run has.
        environment: That of the run's process; this process has an older one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the run closes the connection, which ends this process
    forks.adopt(environment)
    arrived: queue.SimpleQueue[tuple[Message, bool]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, arrived), daemon=True).start()
    outbox = _Outbox(connection)
    try:
        from fedshift_app import client_app  # an error of the import is reported to the run

        outbox.take_log_lines()
        outbox.send(READY)
        _work(client_app.app, arrived, outbox, num_nodes)
    except Exception as error:
        outbox.send(BROKEN, f"{type(error).__name__}: {error}")


def _receive(connection: "Connection[Any, Any]", arrived: "queue.SimpleQueue[tuple[Message, bool]]") -> None:
    """Queue incoming messages; end the process when the connection is closed."""
    try:
        while True:
            arrived.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def _work(
    app: ClientApp, arrived: "queue.SimpleQueue[tuple[Message, bool]]", outbox: "_Outbox", num_nodes: int
) -> None:
    identify_process()
    contexts: dict[int, Context] = {}
    while True:
        message, fresh = arrived.get()
        node_id = message.metadata.dst_node_id
        context = None if fresh else contexts.get(node_id)
        context = context or inline.new_context(node_id, num_nodes)
        answer = app(message, context)
        kept = inline.state_of(context)
        contexts.pop(node_id, None)
        if kept:
            contexts[node_id] = context
        sys.stdout.flush()  # output that a method printed; this process may end without a flush
        outbox.send(REPLY, (answer, kept))


class _Outbox(QueueHandler):
    """Sends answers and log records, which the run's process handles as its own."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        super().__init__(queue.SimpleQueue())  # not used
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, kind: str, what: Any = None) -> None:
        """Send something, from any thread; end the process if the connection is closed."""
        with self._sending:
            try:
                self._connection.send((kind, what))
            except OSError:
                os._exit(0)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a prepared record."""
        self.send(LINE, record)

    def take_log_lines(self) -> None:
        """Install this as the only handler of FedShift's logger and of the root logger."""
        logging.getLogger().handlers = [self]
        own = logging.getLogger("fedshift")
        own.handlers, own.propagate = [self], False
        own.setLevel(logging.INFO)
        logging.getLogger("flwr").setLevel(logging.WARNING)  # as in the process of the run (console.quiet_flower)
