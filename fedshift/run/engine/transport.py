"""Serialises messages for worker processes: an array shared by several messages is sent once per worker.

Both ends are processes of one run and one user, which trust each other: the data are pickled.
"""

import io
import pickle
from collections import Counter
from collections.abc import Iterable
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

    def parcel(self, known: set[int]) -> list[bytes]:
        """Return the parcel, if any, of bytes that a worker lacks or may drop.

        Args:
            known: The numbers that it has; updated to those that it has afterwards.
        """
        held = dict(self._numbers.values())
        new = {number: data for number, data in held.items() if number not in known}
        gone = known - held.keys()
        known.clear()
        known.update(held)
        return [pack(ARRAYS, (gone, new))] if new or gone else []


def job(message: Message, fresh: bool, shared: Shared) -> bytes:
    """Return what a node is to answer, without the shared arrays; ``fresh``: the worker has no state of the node."""
    file = io.BytesIO()
    file.write(bytes([MESSAGE, fresh]))
    own = {"persistent_id": lambda _, thing: shared.number(thing)}  # Python 3.13.0 takes it of a class alone
    type("Pickler", (pickle.Pickler,), own)(file, pickle.HIGHEST_PROTOCOL).dump(message)
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

    def open(self, parcel: bytes) -> tuple[Message, bool]:
        """Read a :func:`job`."""
        own = {"persistent_load": lambda _, number: self._shared[number]}
        unpickler = type("Unpickler", (pickle.Unpickler,), own)(io.BytesIO(memoryview(parcel)[2:]))
        return unpickler.load(), bool(parcel[1])


#: What a worker keeps of a node after its answer: nothing, what is on disk too, or what no other worker can have.
NOTHING, KEPT, BOUND = 0, 1, 2


def pack(kind: int, what: Any = None, kept: int = NOTHING) -> bytes:
    """Return any other parcel as bytes; ``kept`` is the second byte of an answer's."""
    return bytes([kind, kept]) + pickle.dumps(what, pickle.HIGHEST_PROTOCOL)


def read(parcel: bytes) -> Any:
    """Read the content of a :func:`pack`-ed parcel."""
    return pickle.loads(memoryview(parcel)[2:])


def _data(message: Message) -> list[bytes]:
    return [array.data for record in message.content.array_records.values() for array in record.values() if array.data]
