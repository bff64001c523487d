"""The inline engine in one process: what stays in memory of nodes that have answered."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedshift.run.engine import inline


def answering(message: Message, context: Context) -> Message:
    """Answer as a node of which every tenth keeps an array."""
    if inline.index_of(message.metadata.dst_node_id) % 10 == 0:
        context.state["memory"] = ArrayRecord({"a": Array(np.zeros(1))})
    return Message(RecordDict(), reply_to=message)


def test_nodes_that_keep_nothing_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MOST_CONTEXTS", 5)
    app: Any = answering
    grid = inline.InlineGrid(app, 100)
    ids = list(grid.get_node_ids())
    assert len(ids) == len(set(ids)) == 100
    replies = list(grid.send_and_receive([Message(RecordDict(), node_id, "query") for node_id in ids]))
    assert [reply.metadata.src_node_id for reply in replies] == ids
    assert sorted(map(inline.index_of, grid._contexts)) == [*range(5), *range(10, 100, 10)]
    kept = grid.context_of(ids[0])
    assert inline.keeps_state(kept)
    assert kept is grid.context_of(ids[0])
    assert not inline.keeps_state(grid.context_of(ids[1]))
