"""The inline engine in several processes: the same two apps with the same bits, on all cores.

A node with state belongs to the worker that holds the state; any other goes to the next idle worker. An idle
worker takes over another's node if the node also keeps its state in the run folder, as after the death of a worker,
unless a feature keeps something of the node that must not be on any disk.
"""

import contextlib
import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable
from multiprocessing import connection

from flwr.app import Message

from fedshift.run.engine.inline import BOUND, NOTHING, LocalGrid, index_of
from fedshift.run.engine.worker import LINE, READY, REPLY, serve
from fedshift.run.launch import forks
from fedshift_app.flower.simulating import TRIES
from fedshift_core.errors import FederationError
from fedshift_core.plural import plural
from fedshift_core.wire.names import CONFIG, KEPT_IN

log = logging.getLogger("fedshift")

STOP_SECONDS = 5.0
#: While more than so many messages per worker wait, each worker gets a second one: it never waits for the server.
PLENTY = 4


class Worker:
    """A worker process, from the run's side.

    Attributes:
        jobs: The positions of its messages, in order.
        ready: It has said that it can work.
    """

    def __init__(self, num_nodes: int) -> None:
        self.jobs: deque[int] = deque()
        self.ready = False
        self.connection, theirs = forks.context.Pipe()
        self._process = forks.start(serve, theirs, num_nodes, dict(os.environ), name="fedshift-worker")
        theirs.close()

    def send(self, message: Message, fresh: bool) -> None:
        """Send a message, of a node without state if ``fresh``; a worker that is gone is noticed by its end."""
        with contextlib.suppress(OSError):
            self.connection.send((message, fresh))

    def end(self) -> str:
        """End it if it is running, and return how it ended."""
        self.connection.close()
        self._process.join(STOP_SECONDS)
        self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        if code >= 0:
            return f"ended with code {code}"
        return f"was ended by {signal.Signals(-code).name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"


class _Work:
    """The messages of one call, with their replies.

    Attributes:
        waiting: The positions of those that no worker has, in order.
        replies: The answers, by position.
        deaths: The number of workers that died of a message, by position.
    """

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.waiting = deque(range(len(messages)))
        self.replies: dict[int, Message] = {}
        self.deaths: Counter[int] = Counter()

    def node(self, place: int) -> int:
        """Return the id of the node that is to answer."""
        return self.messages[place].metadata.dst_node_id

    def is_kept(self, place: int) -> bool:
        """Tell whether the node keeps its state on disk."""
        records = self.messages[place].content.config_records
        return CONFIG in records and KEPT_IN in records[CONFIG]


class WorkersGrid(LocalGrid):
    """A Grid whose nodes are played by worker processes; they are started with the first messages.

    Attributes:
        on_replies: Called with the ids of nodes as their answers arrive.
    """

    def __init__(self, num_nodes: int, workers: int) -> None:
        """Make a grid with at most so many workers."""
        super().__init__(num_nodes)
        self.on_replies: Callable[[list[int]], None] = lambda node_ids: None
        self._number = min(workers, num_nodes)
        self._workers: list[Worker] = []
        self._homes: dict[int, tuple[Worker, int]] = {}  # by node: the worker that holds its state, and how it is kept

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Let the workers answer; the answers are in the order of the messages. ``timeout`` has no meaning here.

        Raises:
            FederationError: If a worker cannot start, or a message is what workers die of.
        """
        work = _Work(list(messages))
        try:
            while len(work.replies) < len(work.messages):
                self._hand_out(work)
                by_connection = {worker.connection: worker for worker in self._workers}
                for ready in connection.wait(list(by_connection)):
                    self._receive(by_connection[ready], work)  # type: ignore[index]
        except BaseException:
            self.close()  # late answers to these messages must not reach the next call
            raise
        return [work.replies[place] for place in range(len(work.messages))]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.connection.close()  # all at once, then wait
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._homes.clear()

    def _hand_out(self, work: _Work) -> None:
        """Give each idle worker its next message, and a second one while many messages wait."""
        busy = sum(bool(worker.jobs) for worker in self._workers)
        while len(self._workers) < min(self._number, busy + len(work.waiting)):
            self._workers.append(Worker(self.num_nodes))
        for most in (1, 2):
            for worker in self._workers:
                if most == 2 and len(work.waiting) <= PLENTY * self._number:
                    return
                if len(worker.jobs) < most and (place := self._next(worker, work)) is not None:
                    self._give(worker, place, work)

    def _next(self, worker: Worker, work: _Work) -> int | None:
        """Take the next message for a worker: of its own or a free node, else the last it may take over."""
        homes = {at: self._homes.get(work.node(at), (worker, NOTHING)) for at in work.waiting}
        place = next((at for at, (home, _) in homes.items() if home is worker), None)
        if place is None and not worker.jobs:
            theirs = (at for at in reversed(homes) if homes[at][1] != BOUND)
            place = next(filter(work.is_kept, theirs), None)
        if place is not None:
            work.waiting.remove(place)
        return place

    def _give(self, worker: Worker, place: int, work: _Work) -> None:
        home, _ = self._homes.get(work.node(place), (None, NOTHING))
        worker.jobs.append(place)
        worker.send(work.messages[place], fresh=home is not worker)

    def _receive(self, worker: Worker, work: _Work) -> None:
        """Handle what a worker says, or its end."""
        try:
            kind, what = worker.connection.recv()
        except (EOFError, OSError):
            self._reassign(worker, work)
            return
        if kind == REPLY:
            place = worker.jobs.popleft()
            self._homes.pop(work.node(place), None)
            work.replies[place], kept = what
            if kept:
                self._homes[work.node(place)] = worker, kept
            self._hand_out(work)
            self.on_replies([work.node(place)])
        elif kind == LINE:
            logger = logging.getLogger(what.name)
            if logger.isEnabledFor(what.levelno):
                logger.handle(what)
        elif kind == READY:
            worker.ready = True
        else:
            raise FederationError(f"a worker process cannot {'work' if worker.ready else 'start'}: {what}")

    def _reassign(self, worker: Worker, work: _Work) -> None:
        """Give the work of a dead worker to others. Nodes say themselves what they no longer have (secure sums)."""
        self._workers.remove(worker)
        gone = [node for node, (home, _) in self._homes.items() if home is worker]
        lost = sum(self._homes.pop(node)[1] == BOUND for node in gone)
        how = worker.end()
        if not worker.ready:
            raise FederationError(f"a worker process {how} before it could work")
        then = f"; what {plural(lost, 'node')} had in its memory alone is lost" if lost else ""
        log.warning("a worker process %s; another one repeats its work%s", how, then, extra={"event": "worker_died"})
        if worker.jobs:
            first = worker.jobs[0]
            work.deaths[first] += 1
            if work.deaths[first] == TRIES:
                raise FederationError(
                    f"node {index_of(work.node(first))}: {TRIES} worker processes died on its work; the last one {how}"
                )
        work.waiting.extendleft(reversed(worker.jobs))
