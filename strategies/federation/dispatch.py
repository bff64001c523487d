"""Long work first, so that no core waits long for a last node at the end of a round.

Flower's simulation gives its actors the messages by the order of nodes, not by that of sending (``vce_api.py``
of Flower 1.41); but it looks for new messages ten times a second and queues what it finds. So the long work
is sent first, and the rest once that is queued, which Flower writes down as the time of delivery.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message

from strategies.federation.roster import Node

#: Times the mean: where no node has so much work, the order hardly matters and nothing waits.
UNEVEN = 1.5
LOOK_SECONDS = 0.01
#: Above this nobody waits for Flower to queue the long work: the order changes no number.
GIVE_UP_SECONDS = 2.0


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
