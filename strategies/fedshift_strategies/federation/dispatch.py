"""How messages leave. What is the same for all is written once; long work goes first, so that no core waits at the end.

Flower's simulation gives its actors the messages by the order of nodes, not by that of sending (``vce_api.py``
of Flower 1.41); but it looks for new messages ten times a second and queues what it finds. So the long work
is sent first, and the rest once that is queued, which Flower writes down as the time of delivery.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import encode_array
from fedshift_strategies.federation.roster import Node

#: Times the mean: where no node has so much work, the order hardly matters and nothing waits.
UNEVEN = 1.5
LOOK_SECONDS = 0.01
#: Above this nobody waits for Flower to queue the long work: the order changes no number.
GIVE_UP_SECONDS = 2.0


class Encoder:
    """Writes arrays for many messages: one that goes to several nodes as the same object is written once."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, int], tuple[NDArray[Any], Array]] = {}

    def record(self, arrays: Arrays) -> ArrayRecord:
        """Return named arrays as they travel.

        Raises:
            RecordError: If an array holds anything but booleans and numbers.
        """
        return ArrayRecord({name: self._write(name, array) for name, array in arrays.items()})

    def _write(self, name: str, array: NDArray[Any]) -> Array:
        # With the array itself: while it is held, no other can have its id.
        held = self._written.get((name, id(array)))
        if held is None:
            held = self._written[name, id(array)] = array, encode_array(name, array)
        return held[1]


def longest_first(work: Mapping[Node, int]) -> list[Node]:
    """Return nodes by their amount of work, most first; then by index."""
    return sorted(work, key=lambda node: (-work[node], node.index))


def in_waves(messages: Sequence[Message], work: Sequence[int]) -> Iterator[Message]:
    """Yield messages with more work than the mean, wait until Flower has queued them, and yield the others.

    Args:
        messages: Longest first.
        work: The amount of work behind each message, above 0.
    """
    mean = sum(work) / max(len(work), 1)
    long = sum(amount > mean for amount in work) if max(work, default=0) >= UNEVEN * mean else 0
    yield from messages[:long]
    until = time.monotonic() + GIVE_UP_SECONDS
    while not all(message.metadata.delivered_at for message in messages[:long]) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    yield from messages[long:]
