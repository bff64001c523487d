"""FedMD on the server: windows of the public set, the mean of the scores, and who is sent what."""

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support import ask, check_knowledge, new_strategy, node

from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedmd import FedMDStrategy, window

PUBLIC = 7
NODES = [node(i, num_public=PUBLIC, public="a" * 64) for i in range(3)]


@pytest.fixture(autouse=True)
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "nodes", property(lambda self: NODES))


def in_round(server_round: int, **params: int) -> FedMDStrategy:
    server = new_strategy(FedMDStrategy, **params)
    server._result = RoundResult(server_round)
    return server


def sent_by(of: Node, scores: np.ndarray, images: int = 3) -> Update:
    return Update(of, ArrayRecord(), {"scores": scores.astype(np.float32)}, images, {})


@pytest.mark.parametrize(("number", "most"), [(7, 3), (7, 7), (7, 100), (12, 4), (1, 1), (10, 3)])
def test_windows_take_all_images_in_turn_and_differ_by_one_at_most(number: int, most: int) -> None:
    turns = -(-number // most)
    parts = [window(number, most, server_round) for server_round in range(1, turns + 1)]
    assert [place for start, stop in parts for place in range(start, stop)] == list(range(number))
    sizes = [stop - start for start, stop in parts]
    assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
    assert window(number, most, turns + 1) == parts[0]


def test_scores_are_averaged_plainly_and_kept_with_their_window() -> None:
    server, rng = in_round(2, public_images=3), np.random.default_rng(0)
    start, stop = window(PUBLIC, 3, 3)
    scores = rng.normal(size=(2, stop - start, 3)).astype(np.float32)
    check_knowledge(server, {"scores": scores[0]})
    server.merge_knowledge([sent_by(NODES[0], scores[0]), sent_by(NODES[2], scores[1], images=300)])
    np.testing.assert_allclose(server.knowledge["scores"], scores.mean(axis=0, dtype=np.float64), rtol=1e-6)
    assert server.knowledge["scores"].dtype == np.float32
    assert server.knowledge["window"].tolist() == [start, stop]


def test_who_trains_is_sent_the_scores_and_the_next_window_and_who_is_tested_nothing() -> None:
    server = in_round(1, public_images=3)
    server.merge_knowledge([sent_by(NODES[0], np.ones((3, 3)))])
    assert set(server.knowledge_for(NODES[1], ask(2))) == {"scores", "window"}
    assert server.tell(NODES[1], ask(2)) == dict(zip(("start", "stop"), window(PUBLIC, 3, 3), strict=True))
    assert server.knowledge_for(NODES[1], ask(2, trains=False)) == {}
    assert server.tell(NODES[1], ask(2, trains=False)) == {}
