"""Which reply is an answer to what was sent."""

import logging
from collections.abc import Iterable

from flwr.app import Message, Metadata

from fedshift_core.errors import FederationError
from fedshift_core.limits import plain
from fedshift_core.wire.names import MACHINE_FAILED, RAISED
from fedshift_strategies.federation.checks import let_go
from fedshift_strategies.federation.nodes import Node

log = logging.getLogger("fedshift")


class Sent:
    """Which message each node was sent last: only an answer to that one counts, and only from that node.

    Flower's SuperLink checks who sends an envelope and what that answers. What a strategy is shown as a reply's sender
    and as the message that it answers is what the node wrote inside (``Message.inflate`` of Flower 1.41), so a node
    could speak for another one, or send what it sent in an earlier round. But it knows the ids of its own messages
    alone: they are digests of what was sent, and when. Old weights in a new answer are not distinguished from new ones.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        # Of each message what Flower writes its id into when it sends it; the content is let go.
        self._metadata: dict[int, Metadata] = {message.metadata.dst_node_id: message.metadata for message in messages}

    def answers(self, replies: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """Divide replies into answers to what was sent, one of each node, and strays."""
        answers: dict[int, Message] = {}
        strays = []
        for reply in replies:
            metadata = reply.metadata
            sent = self._metadata.get(metadata.src_node_id)
            if sent is None or metadata.reply_to_message_id != sent.message_id or metadata.src_node_id in answers:
                strays.append(reply)
            else:
                answers[metadata.src_node_id] = reply
        return list(answers.values()), strays


def let_go_strays(strays: Iterable[Message], nodes: Iterable[Node], server_round: int) -> None:
    """Let go of replies that are no answers, with a line where one calls itself that of a node."""
    strays = list(strays)
    by_id = {node.node_id: node for node in nodes} if strays else {}  # a run may have a hundred thousand nodes
    for stray in strays:
        let_go(stray)
        if node := by_id.get(stray.metadata.src_node_id):
            log.warning(
                "round %d: an answer of %s is not to what it was sent last: dropped",
                server_round,
                node,
                extra=node.fields("stray_answer", round=server_round),
            )


def check_whole(answers: Iterable[Message], nodes: Iterable[Node], server_round: int) -> None:
    """Check that no answer of a simulation was lost on the way, or to a disk.

    What a node's app raises, it tells with a code of its own; any other error is Flower's word for a node whose work
    came to nothing, though nothing is wrong with it. Without the node the run would have other numbers: where its
    disk fails, the run ends and can go on later, as where the server's own writes fail.

    Raises:
        FederationError: With the node, and what Flower says.
    """
    for answer in answers:
        if answer.has_error() and answer.error.code not in (RAISED, MACHINE_FAILED):
            node = next(node for node in nodes if node.node_id == answer.metadata.src_node_id)
            raise FederationError(
                f"round {server_round}: the simulation lost the work of {node}: {plain(answer.error.reason)}"
            )
