"""Nodes that do not answer: who they are, since when, and questions to them for which no round waits.

A real node may be connected and yet never answer: its process hangs, its disk does not, its executor has died. A phase
that waits for it once has waited long enough. From then on no phase sends it work; it is asked in the background what
it is, after pauses that double, and takes part again once it answers. A node that answers that question and then again
not the work that it is sent rests for a number of rounds, which doubles too: 0, 1, 3, 7, ...
"""

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 1920.0  # seconds between two questions in the background
LOOK_SECONDS = 1.0  # between two looks for answers to them
MOST_PENDING = 8  # questions to a node whose answers are still looked for
MOST_REST = 127  # rounds

Clock = Callable[[], float]


@dataclass
class _Silent:
    """A node that did not answer.

    Attributes:
        since: When that was noticed, in seconds since 1970.
        due: When it is asked again, by the clock that does not jump.
        pause: Seconds from then to the question after that.
        rest: The first round in which it may take part again.
        pending: Ids of the questions in the background that it has not answered.
        answered: It has answered one of them.
        asked: When it was asked last, by the clock that does not jump.
        away: It was not connected at the last look.
    """

    since: float
    due: float
    rest: int
    pause: float = FIRST_PAUSE
    pending: list[str] = field(default_factory=list)
    answered: bool = False
    asked: float = -math.inf
    away: bool = False


class Silence:
    """What all phases of a run know of nodes that do not answer; real nodes only.

    Args:
        clock: Seconds of a clock that does not jump.
        now: Seconds since 1970, for people.
    """

    def __init__(self, clock: Clock = time.monotonic, now: Clock = time.time) -> None:
        self._clock, self._now = clock, now
        self._silent: dict[int, _Silent] = {}  # by node id
        self._missed: dict[int, tuple[str, int]] = {}  # by node id: what it did not answer last, how often in a row
        self._round, self._looked = 0, -LOOK_SECONDS

    def next_round(self) -> None:
        """Count a round."""
        self._round += 1

    def miss(self, node_id: int, kind: str) -> None:
        """Note that a node has not answered a message of this type in time."""
        if node_id in self._silent:
            return
        times = min(self._missed.get(node_id, ("", 0))[1] + 1, MOST_REST)
        if kind != MessageType.QUERY:
            self._missed[node_id] = kind, times
        rest = self._round + (min(2 ** (times - 1), MOST_REST + 1) if times > 1 else 0)
        self._silent[node_id] = _Silent(self._now(), self._clock(), rest)

    def record_answers(self, node_ids: Iterable[int], kind: str) -> None:
        """Note that nodes have answered a message of this type. Who did not before is as good as any other again."""
        for node_id in node_ids:
            if self._missed.get(node_id, ("", 0))[0] == kind:
                del self._missed[node_id]

    def forget(self, node_id: int) -> None:
        """Forget a node id that nobody has any more, or that has said what it is."""
        self._silent.pop(node_id, None)

    def has(self, node_id: int) -> bool:
        """Tell whether a node is silent, or rests."""
        return node_id in self._silent

    def since(self) -> dict[int, float]:
        """Return by node id when each silent node, or one that rests, was noticed, in seconds since 1970."""
        return {node_id: silent.since for node_id, silent in self._silent.items()}

    def is_awaited(self, connected: Collection[int], seconds: float) -> bool:
        """Tell whether one of the connected nodes was asked less than so long ago and has not answered yet."""
        now = self._clock()
        return any(i in connected and not s.answered and now - s.asked < seconds for i, s in self._silent.items())

    def look(self, grid: Grid, connected: Collection[int], question: Callable[[int], Message]) -> list[Message]:
        """Take in answers to questions in the background, ask who is due, and return the answers; waits for nobody.

        Args:
            grid: With the nodes.
            connected: Ids of the nodes that are connected; others are not asked.
            question: Returns the message that asks a node what it is.
        """
        now = self._clock()
        if not self._silent or now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        answers = self._pull(grid)
        for node_id, silent in self._silent.items():
            if silent.away and node_id in connected:  # started anew: it is asked at once, and need not rest
                silent.due, silent.pause, silent.rest = now, FIRST_PAUSE, self._round
                self._missed.pop(node_id, None)
            silent.away = node_id not in connected
        due = [i for i, s in self._silent.items() if i in connected and not s.answered and now >= s.due]
        if due:
            ids = list(grid.push_messages([question(node_id) for node_id in due]))
            for node_id, message_id in zip(due, ids, strict=False):
                silent = self._silent[node_id]
                silent.pending = [*silent.pending, *([message_id] if message_id else [])][-MOST_PENDING:]
                silent.asked, silent.due = now, now + silent.pause
                silent.pause = min(2 * silent.pause, LONGEST_PAUSE)
        return answers

    def back(self, *, also_resting: bool = False) -> list[int]:
        """Return the ids of nodes that have answered and whose rest is over, and forget that they were silent.

        Args:
            also_resting: Those whose rest is not over, too: there is nobody else.
        """
        answered = [i for i, s in self._silent.items() if s.answered and (also_resting or s.rest <= self._round)]
        for node_id in answered:
            del self._silent[node_id]
        return answered

    def _pull(self, grid: Grid) -> list[Message]:
        """Return the answers that are here: of each node those to a question that it was asked."""
        node_of = {message_id: node_id for node_id, silent in self._silent.items() for message_id in silent.pending}
        answers = []
        for reply in grid.pull_messages(list(node_of)) if node_of else ():
            message_id = reply.metadata.reply_to_message_id
            if message_id not in node_of:
                continue
            silent = self._silent[node_of[message_id]]
            silent.pending = [pending for pending in silent.pending if pending != message_id]
            if reply.metadata.src_node_id == node_of[message_id]:  # else it is the SuperLink's word for it
                silent.answered = True
                answers.append(reply)
        return answers
