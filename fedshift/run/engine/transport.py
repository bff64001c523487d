"""Serialises messages for worker processes: an array shared by several messages is sent once per worker.

Both ends are processes of one run and one user, which trust each other: the data are pickled.
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
    """The bytes of arrays that several pending messages share, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, bytes]] = {}  # with the bytes, which keeps their ids unique
        self._next = 0

    def renew(self, messages: Iterable[Message]) -> None:
        """Keep the shared bytes of these messages only; known bytes keep their number."""
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
        """Return the parcel of bytes that a worker lacks or may drop; None if there are none.

        Args:
            known: The numbers that it has; updated to those that it has afterwards.
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
        fresh: The worker has no state of the node, or an outdated one.
    """

    message: Message
    fresh: bool

    def parcel(self, shared: Shared) -> bytes:
        """Return it as bytes, without the shared arrays."""
        file = io.BytesIO()
        file.write(bytes([MESSAGE, self.fresh]))
        pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = shared.number  # type: ignore[method-assign]
        pickler.dump(self.message)
        return file.getvalue()


class Opener:
    """The worker's end: keeps shared bytes and inserts them where a message refers to them."""

    def __init__(self) -> None:
        self._shared: dict[int, bytes] = {}

    def take(self, parcel: bytes) -> None:
        """Read a parcel of arrays."""
        gone, new = read(parcel)
        for number in gone:
            del self._shared[number]
        self._shared |= new

    def open(self, parcel: bytes) -> Job:
        """Read a message."""
        unpickler = pickle.Unpickler(io.BytesIO(memoryview(parcel)[2:]))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        return Job(unpickler.load(), bool(parcel[1]))


#: What a worker keeps of a node after its answer: nothing, what is on disk too, or what no other worker can have.
NOTHING, KEPT, BOUND = 0, 1, 2


def reply(answer: Message, *, remembers: int) -> bytes:
    """Return an answer as bytes; ``remembers`` tells what the worker keeps of the node."""
    return bytes([REPLY, remembers]) + pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)


def read_reply(parcel: bytes) -> Message:
    """Read an answer; its flag is the second byte."""
    answer: Message = pickle.loads(memoryview(parcel)[2:])
    return answer


def pack(kind: int, what: Any = None) -> bytes:
    """Return any other message as bytes."""
    return bytes([kind]) + pickle.dumps(what, pickle.HIGHEST_PROTOCOL)


def read(parcel: bytes) -> Any:
    """Read the content of a :func:`pack`-ed message."""
    return pickle.loads(memoryview(parcel)[1:])


def _data(message: Message) -> list[bytes]:
    return [array.data for record in message.content.array_records.values() for array in record.values() if array.data]
