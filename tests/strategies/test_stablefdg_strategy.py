"""StableFDG on the server: whose style a node gets, and what is kept of whom."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from refusals import worded
from support import ask, check_knowledge, new_strategy, node

from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.stablefdg import StableFDGStrategy

S = 3


def server(**params: Any) -> StableFDGStrategy:
    return new_strategy(StableFDGStrategy, **params)


def sent_by(index: int, server_round: int = 1, channels: int = S) -> Update:
    style = np.full((2, 2, channels), index + server_round / 10, np.float32)
    return Update(node(index), ArrayRecord(), {"style": style}, 3, {})


def got(made: StableFDGStrategy, index: int, server_round: int) -> float | None:
    sent = made.knowledge_for(node(index), ask(server_round))
    return float(sent["style"][0, 0, 0]) if sent else None


def test_each_node_gets_the_style_of_another_and_each_style_goes_to_one() -> None:
    made = server()
    assert got(made, 0, 1) is None
    made.merge_knowledge([sent_by(index) for index in (0, 1, 3, 4)])
    seen = set()
    for server_round in range(2, 12):
        given = {index: got(made, index, server_round) for index in (0, 1, 3, 4)}
        assert all(style != pytest.approx(index + 0.1) for index, style in given.items())
        assert len(set(given.values())) == 4
        assert got(made, 2, server_round) in given.values()  # its own is not known yet
        seen.add(tuple(given.values()))
    assert len(seen) > 2
    assert made.knowledge_for(node(0), ask(2, trains=False)) == {}
    assert made.knowledge == {}  # what is no node's business stays in the state


def test_who_did_not_train_keeps_its_style_and_who_tells_none_is_nobodys() -> None:
    made = server()
    made.merge_knowledge([sent_by(0), sent_by(2, channels=0)])
    assert got(made, 0, 2) is None
    made.merge_knowledge([sent_by(1)])
    made.merge_knowledge([sent_by(1, 2)])
    assert made.state["nodes"].tolist() == [0, 1]
    assert made.state["styles"][:, 0, 0, 0] == pytest.approx([0.1, 1.2])


def test_a_style_of_another_width_is_left_out() -> None:
    made = server()
    check_knowledge(made, sent_by(0).knowledge)
    made.merge_knowledge([sent_by(0), sent_by(1), sent_by(2, channels=S + 1)])
    assert made.state["nodes"].tolist() == [0, 1]
    worded(made._result.left_out[0], "4 channels")


def test_only_shifts_need_each_node_alone() -> None:
    assert StableFDGStrategy.needs_single(server(shift=0).params) == ""
    assert "style" in StableFDGStrategy.needs_single(server().params)
