"""Memory of a node's client between messages: on the node's disk, and in ``context.state`` of a simulated node."""

import logging

import numpy as np
from flwr.app import ConfigRecord, Context

from fedshift_app.node.state_store import StateStore
from fedshift_core.arrays import Arrays, check_kept
from fedshift_core.errors import NotFiniteError
from fedshift_core.limits import largest
from fedshift_core.wire.names import SERVER_ROUND
from fedshift_core.wire.records import array_record, decode, encode

log = logging.getLogger("fedshift")

MEMORY = "memory"  # the record of context.state that holds a simulated node's private arrays
MEMORY_OF = "memory-of"  # the record of context.state that says in which round the node trained last


def recall(store: StateStore, context: Context, before: int | None, domain: str) -> Arrays | None:
    """Return what a node has kept; None where what it must have kept is gone.

    Args:
        store: Where it is kept.
        context: The node's.
        before: The round that the node is about to train in; None for a score.
        domain: The node's, for its log.
    """
    record = array_record(context.state, MEMORY)
    kept_in = -1 if record is None else int(str(context.state.config_records[MEMORY_OF][SERVER_ROUND]))
    if store.own or record is None or kept_in < store.expected:  # of a simulated node: another process had it
        kept_in, memory = store.recall(before)
        if memory and store.own and MEMORY_OF not in context.state:
            log.warning("the private parts of this node are back from its disk: its SuperNode was started again")
    else:
        memory = decode(record)
    if kept_in < store.expected:
        log.warning("this node (%s) has no private parts of round %d: it starts without them", domain, store.expected)
        return None
    return memory


def keep(store: StateStore, context: Context, server_round: int, memory: Arrays) -> None:
    """Keep what a node remembers of its training in a round.

    Raises:
        NotFiniteError: If it holds numbers that would keep the node out of all later rounds.
    """
    check_kept(memory, "self.memory")
    for name, array in memory.items():
        if not np.isfinite(largest(array)):
            raise NotFiniteError(f"{name} holds numbers that are not finite (training diverged? try a lower train.lr)")
    store.remember(server_round, memory)
    if not store.own:  # a real node has them on its disk; its SuperNode would keep those of all runs
        context.state[MEMORY] = encode(memory)
    context.state[MEMORY_OF] = ConfigRecord({SERVER_ROUND: server_round})
