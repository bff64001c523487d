"""What nodes begin from in addition to the weights of each round.

These are frozen weights, and private parts out of a file.

It is sent to a node once, with the first message that asks it for work, and kept there. A node that does not have it
any more answers with an error, and so is sent it again.
"""

from collections.abc import Iterable

from flwr.app import Array, ArrayRecord, Message

from fedshift_core.arrays import Arrays, digest
from fedshift_core.wire.records import encode


class Start:
    """Hands out what nodes begin from, and keeps what is frozen apart from what is averaged.

    Args:
        arrays: By state-dict name; empty where nodes need nothing.
        frozen: Names of shared weights that never change; their values are in ``arrays``.

    Attributes:
        on_disk: All nodes find it on their disk: those of a simulation that goes on, in the run folder.
    """

    def __init__(self, arrays: Arrays, frozen: frozenset[str]) -> None:
        self.on_disk = False
        self._arrays, self._frozen = arrays, frozen
        self._digest = digest(arrays) if arrays else ""
        self._record: ArrayRecord | None = None
        self._sent: set[int] = set()  # nodes whose last message had it
        self._given: set[int] = set()  # nodes that have answered to it
        self._still: dict[str, Array] = {}
        self._order: list[str] = []

    def for_node(self, node_id: int) -> tuple[str, ArrayRecord | None]:
        """Return the digest of what a node must begin from, and the arrays unless it has them."""
        if not self._digest:
            return "", None
        self._sent.discard(node_id)
        if node_id in self._given or self.on_disk:
            return self._digest, None
        if self._record is None:
            self._record = encode(self._arrays)
        self._sent.add(node_id)
        return self._digest, self._record

    def record_answers(self, answers: Iterable[Message]) -> None:
        """Note who has it: who answered, and not with an error."""
        for answer in answers if self._digest else ():
            node_id = answer.metadata.src_node_id
            if answer.has_error():
                self._given.discard(node_id)
            elif node_id in self._sent:
                self._given.add(node_id)

    def moving(self, shared: ArrayRecord) -> ArrayRecord:
        """Return the shared weights without those that are frozen, which are kept for :meth:`complete`."""
        if not self._frozen:
            return shared
        self._order = list(shared)
        self._still = {name: array for name, array in shared.items() if name in self._frozen}
        return ArrayRecord({name: array for name, array in shared.items() if name not in self._frozen})

    def complete(self, moving: ArrayRecord) -> ArrayRecord:
        """Return all shared weights in their order."""
        if not self._frozen:
            return moving
        return ArrayRecord({name: self._still.get(name) or moving[name] for name in self._order})
