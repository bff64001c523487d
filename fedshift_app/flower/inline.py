"""The inline engine: ServerApp and ClientApp in one process, one message after another.

For debuggers, profilers, tests, and a machine without Ray. No parallelism, no faults, no network.
"""

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedshift_app.flower.internals import identify_process, make_context


class InlineGrid(Grid):
    """A Grid whose nodes are contexts of this process; a message is a call."""

    def __init__(self, client_app: ClientApp, num_nodes: int) -> None:
        identify_process()
        self._app = client_app
        self._contexts: dict[int, Context] = {
            1000 + i: make_context(1000 + i, {"partition-id": i, "num-partitions": num_nodes}, {})
            for i in range(num_nodes)
        }

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message at once; ``timeout`` has no meaning here."""
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]

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
