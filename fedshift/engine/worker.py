"""The program of a worker process: answers the messages that :class:`fedshift.engine.workers.WorkersGrid` sends.

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

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from fedshift.engine import inline, transport
from fedshift_app.flower.internals import identify_process


def serve(connection: "Connection[Any, Any]", num_nodes: int, environment: Mapping[str, str]) -> None:
    """Answer messages until the connection is gone.

    Args:
        connection: To the run.
        num_nodes: How many nodes the run has.
        environment: Of the run's process: this one's is older.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's, which ends this by closing the connection
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # all workers are forked from one process; nothing of ours draws from it, a library might
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, arrived), daemon=True).start()
    outbox = _Outbox(connection)
    try:
        from fedshift_app import client_app  # what is wrong with it is told, not raised on the way here

        outbox.take_log_lines()
        outbox.send(transport.pack(transport.READY))
        _work(client_app.app, arrived, outbox, num_nodes)
    except Exception as error:
        outbox.send(transport.pack(transport.BROKEN, f"{type(error).__name__}: {error}"))


def _receive(connection: "Connection[Any, Any]", arrived: "queue.SimpleQueue[bytes]") -> None:
    """Take in what comes; end the process when nothing can come any more."""
    try:
        while True:
            arrived.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _work(app: ClientApp, arrived: "queue.SimpleQueue[bytes]", outbox: "_Outbox", num_nodes: int) -> None:
    identify_process()
    opener = transport.Opener()
    contexts: dict[int, Context] = {}
    while True:
        parcel = arrived.get()
        if parcel[0] == transport.ARRAYS:
            opener.take(parcel)
            continue
        job = opener.open(parcel)
        node_id = job.message.metadata.dst_node_id
        context = None if job.fresh else contexts.get(node_id)
        context = context or inline.new_context(node_id, num_nodes)
        answer = app(job.message, context)
        remembers = any(context.state.array_records.values())
        if remembers:
            contexts[node_id] = context
        else:
            contexts.pop(node_id, None)
        sys.stdout.flush()  # what a method prints; this process may end without
        outbox.send(transport.reply(answer, remembers=remembers))


class _Outbox(QueueHandler):
    """Sends parcels, and log records among them, which the run's process shows and writes as its own."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        super().__init__(queue.SimpleQueue())  # not used
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, parcel: bytes) -> None:
        """Send one; also from another thread that logs. Where nobody takes it any more the process ends."""
        with self._sending:
            try:
                self._connection.send_bytes(parcel)
            except OSError:
                os._exit(0)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record, which has been made fit for it."""
        self.send(transport.pack(transport.LINE, record))

    def take_log_lines(self) -> None:
        """Be the one handler of FedShift's log and of all that reach the root."""
        logging.getLogger().handlers = [self]
        own = logging.getLogger("fedshift")
        own.handlers, own.propagate = [self], False
        own.setLevel(logging.INFO)
        logging.getLogger("flwr").setLevel(logging.WARNING)  # as in the process of the run (console.quiet_flower)
