"""How messages go to worker processes and back: arrays that several messages hold as one object go once a worker.

Both ends are processes of one run and one user, which trust each other: what goes between them is pickled.
"""

import io
import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

#: The first byte of a parcel.
ARRAYS, MESSAGE = b"AM"  # to a worker
READY, REPLY, LINE, BROKEN = b"YRLB"  # from it: it can work; an answer; a log record; why it cannot go on


class Shared:
    """The bytes of arrays that several of the messages on their way hold as one object, by a number of their own."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, bytes]] = {}  # with the bytes: while they are held, no others have their id
        self._next = 0

    def renew(self, messages: Iterable[Message]) -> None:
        """Hold those of these messages and no others; what was held already keeps its number."""
        held = [data for message in messages for data in _data(message)]
        times = Counter(map(id, held))
        before, self._numbers = self._numbers, {}
        for data in held:
            if times[id(data)] > 1 and id(data) not in self._numbers:
                self._numbers[id(data)] = before.get(id(data)) or (self._next, data)
                self._next += 1

    def number(self, thing: object) -> int | None:
        """Return the number of some bytes; None for anything else."""
        held = self._numbers.get(id(thing))
        return None if held is None else held[0]

    def parcel(self, known: set[int]) -> bytes | None:
        """Return what a worker is still to be sent of them, and which it may let go; None for nothing.

        Args:
            known: The numbers that it has; those that it has then are put in their place.
        """
        held = dict(self._numbers.values())
        new = {number: data for number, data in held.items() if number not in known}
        gone = known - held.keys()
        if not new and not gone:
            return None
        known.clear()
        known.update(held)
        return pack(ARRAYS, (gone, new))


@dataclass(frozen=True)
class Job:
    """A message on its way to a worker.

    Attributes:
        message: What the node is to answer.
        fresh: The worker has nothing of what the node remembers, or what it has counts no longer.
    """

    message: Message
    fresh: bool

    def parcel(self, shared: Shared) -> bytes:
        """Return it as it travels, without the arrays that are shared."""
        file = io.BytesIO()
        file.write(bytes([MESSAGE, self.fresh]))
        pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = shared.number  # type: ignore[method-assign]
        pickler.dump(self.message)
        return file.getvalue()


class Opener:
    """The worker's end: holds what is shared, and puts it where a message refers to it."""

    def __init__(self) -> None:
        self._shared: dict[int, bytes] = {}

    def take(self, parcel: bytes) -> None:
        """Take in a parcel of arrays."""
        gone, new = read(parcel)
        for number in gone:
            del self._shared[number]
        self._shared |= new

    def open(self, parcel: bytes) -> Job:
        """Read a message."""
        unpickler = pickle.Unpickler(io.BytesIO(memoryview(parcel)[2:]))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        return Job(unpickler.load(), bool(parcel[1]))


def reply(answer: Message, *, remembers: bool) -> bytes:
    """Return an answer as it travels; ``remembers`` if the worker keeps something of the node's."""
    return bytes([REPLY, remembers]) + pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)


def read_reply(parcel: bytes) -> Message:
    """Read an answer; its flag is the second byte."""
    answer: Message = pickle.loads(memoryview(parcel)[2:])
    return answer


def pack(kind: int, what: Any = None) -> bytes:
    """Return anything else as it travels."""
    return bytes([kind]) + pickle.dumps(what, pickle.HIGHEST_PROTOCOL)


def read(parcel: bytes) -> Any:
    """Read what was :func:`told`."""
    return pickle.loads(memoryview(parcel)[1:])


def _data(message: Message) -> list[bytes]:
    return [array.data for record in message.content.array_records.values() for array in record.values() if array.data]
