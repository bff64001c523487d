"""The inline engine: ServerApp and ClientApp without Flower's runtime, in one process, message by message.

For debuggers, profilers, tests, and a machine without Ray. No parallelism, no faults, no network. In several
processes: ``fedshift.engine.workers``.
"""

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedshift_app.flower.internals import identify_process, make_context

NAME = "inline"  # of the engine, whatever the number of its processes
_FIRST_ID = 1000  # of a node


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
        return list(range(_FIRST_ID, _FIRST_ID + self.num_nodes))

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message; Flower's own constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not supported: messages are answered as they are sent."""
        raise RuntimeError("the inline engine has no message queue; use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not supported; see :meth:`push_messages`."""
        raise RuntimeError("the inline engine has no message queue; use send_and_receive")

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Not supported: an inline run is not registered anywhere."""
        raise RuntimeError("the inline engine has no Run")


class InlineGrid(LocalGrid):
    """A Grid whose nodes are contexts in this process."""

    def __init__(self, client_app: ClientApp, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self._app = client_app
        self._contexts: dict[int, Context] = {
            node_id: new_context(node_id, num_nodes) for node_id in self.get_node_ids()
        }

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message at once; ``timeout`` has no meaning here."""
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]


def index_of(node_id: int) -> int:
    """Return the position of a node."""
    return node_id - _FIRST_ID


def new_context(node_id: int, num_nodes: int) -> Context:
    """Return the context of a node before its first message."""
    return make_context(node_id, {"partition-id": index_of(node_id), "num-partitions": num_nodes}, {})
