"""Grids of runs in this process in which some answers are changed, lost or noted."""

from collections.abc import Callable, Collection
from typing import Any

from flwr.app import Error, Message
from support import ListeningGrid, listening

Pair = tuple[Message, Message]


def changing(
    change: Callable[[Message, Message], Any], kind: str = "", nodes: Collection[int] = (), rounds: Collection[int] = ()
) -> type[ListeningGrid]:
    """Return a grid in which ``change`` gives the answers to a kind of message, of some nodes, in some rounds."""

    def pass_on(message: Message, reply: Message) -> Message | None:
        of = (message.metadata.dst_node_id - 1000, asked(message).get("server-round"))
        concerned = all(not some or one in some for one, some in zip(of, (nodes, rounds), strict=True))
        return change(message, reply) if concerned and kind in ("", message.metadata.message_type) else reply

    return listening(pass_on)


def noting(seen: list[Pair], kind: str = "") -> type[ListeningGrid]:
    """Return a grid that notes the messages of a kind, each with its answer."""
    return changing(lambda message, reply: seen.append((message, reply)) or reply, kind)  # type: ignore[func-returns-value]


def asked(message: Message) -> dict[str, Any]:
    """Return the keys of a message."""
    return dict(message.content.config_records.get("config", {}))


def numbers(message: Message) -> dict[str, Any]:
    """Return the numbers of an answer."""
    return dict(message.content.metric_records["metrics"])


def lost(message: Message, reply: Message) -> None:
    """Lose an answer."""


def failed(reason: str, code: int = 2) -> Callable[[Message, Message], Message]:
    """Return what answers with an error in place of what the node said."""
    return lambda message, reply: Message(Error(code=code, reason=reason), reply_to=message)
