"""The inline engine: ServerApp and ClientApp without Flower's runtime, in one process, message by message.

For debuggers, profilers, tests, and a machine without Ray. No parallelism, no faults, no network. In several
processes: ``fedshift.run.engine.workers``.
"""

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedshift.run.engine import NAME as NAME
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node import feature_state
from fedshift_core.wire.records import array_records

_FIRST_ID = 1000  # of a node
MOST_CONTEXTS = 1000
#: What a node keeps: nothing, what is on disk too, or what no other process can have.
NOTHING, ARRAYS, BOUND = 0, 1, 2


class LocalGrid(Grid):
    """A Grid that answers messages by calls on this machine; node ids are the nodes' positions.

    Attributes:
        num_nodes: How many there are.
        engine_name: The engine of the run, as the ServerApp reads it.
    """

    engine_name = NAME

    def __init__(self, num_nodes: int) -> None:
        identify_process()
        self.num_nodes = num_nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return range(_FIRST_ID, _FIRST_ID + self.num_nodes)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message; Flower's own constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def _unknown(self, *_given: Any, **_named: Any) -> Any:
        raise RuntimeError("the inline engine has no Run and no message queue; use send_and_receive")

    push_messages = pull_messages = _unknown
    run = property(_unknown)

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""


class InlineGrid(LocalGrid):
    """A Grid whose nodes are contexts in this process; beyond ``MOST_CONTEXTS`` only those that keep something stay."""

    def __init__(self, client_app: ClientApp, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self._app = client_app
        self._contexts: dict[int, Context] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message at once; ``timeout`` has no meaning here."""
        return [self._answer(message) for message in messages]

    def context_of(self, node_id: int) -> Context:
        """Return the context of a node."""
        return self._contexts.setdefault(node_id, new_context(node_id, self.num_nodes))

    def _answer(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        context = self.context_of(node_id)
        answer = self._app(message, context)
        if len(self._contexts) > MOST_CONTEXTS and state_of(context) == NOTHING:
            del self._contexts[node_id]
        return answer


def state_of(context: Context) -> int:
    """Return what a node keeps for its next message: nothing, arrays, or what a feature keeps for it alone."""
    if feature_state.holds(context):
        return BOUND
    return ARRAYS if any(array_records(context.state).values()) else NOTHING


def index_of(node_id: int) -> int:
    """Return the position of a node."""
    return node_id - _FIRST_ID


def new_context(node_id: int, num_nodes: int) -> Context:
    """Return the context of a node before its first message."""
    return make_context(node_id, {"partition-id": index_of(node_id), "num-partitions": num_nodes}, {})
