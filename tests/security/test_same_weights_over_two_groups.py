"""A server has the same weights summed over four nodes, then over three of them: the difference is the fourth's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from own_sites import CLASSES
from secure_sites import FOUR, Sites, real_nodes
from support import InlineRun, ListeningGrid

from fedshift_app.features.secure_sums.server import SecureSums
from fedshift_app.node import answered, state_folder
from fedshift_app.node.answered import DIGEST, noted
from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.wire import names
from fedshift_core.wire.records import encode

REFUSED = "refused: the same weights were summed over other nodes before"
REMEDY = "take all nodes of then, another checkpoint or another seed"


@pytest.fixture
def sites(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sites:
    real_nodes(monkeypatch, tmp_path)
    return Sites(tmp_path, run_inline, FOUR, {"north": CLASSES[:2]})


def losing(server_round: int, stage: str) -> type[ListeningGrid]:
    """Return a grid that loses what the last node says at a stage of a round."""

    class Grid(ListeningGrid):
        def pass_on(self, message: Any, reply: Any) -> Any:
            config = message.content.config_records["config"]
            at = config.get(names.SECURE_STAGE, message.metadata.message_type)
            last = config[names.NODE_INDEX] == 3 if names.NODE_INDEX in config else False
            return None if (config.get(names.SERVER_ROUND), at) == (server_round, stage) and last else reply

    return Grid


@pytest.mark.parametrize("stage", ["", MessageType.TRAIN, "shares"])
def test_a_server_that_sends_the_weights_again_gets_no_second_sum(
    stage: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server throws the update of round 1 away and trains from the same weights, without one node."""
    update = SecureSums._update
    monkeypatch.setattr(
        SecureSums, "_update",
        lambda self, sums, arrived, sent, exchange: _without(update(self, sums, arrived, sent, exchange), sent),
    )  # fmt: skip
    given = "train.epochs=1 allocation.share=0.05 evaluate.figures=false federation.secure_sums=on"
    if not stage:  # the same nodes: the same sum
        whole = run_inline(rounds=2, set=given)
        assert [line["nodes"] for line in whole.rounds] == [[0, 1, 2, 3]] * 2
        return
    with pytest.raises(FederationError) as caught:
        run_inline(rounds=2, grid=losing(2, stage), set=given)
    text = str(caught.value)
    assert "round 2: secure sums: 0 nodes gave a right share of node 0, 3 are needed" in text
    assert REFUSED in text and REMEDY in text


def _without(update: Any, sent: Any) -> Any:
    return replace(update, record=encode(sent.arrays))


def test_a_second_run_with_the_same_seed_and_a_node_less_is_refused_after_a_restart(sites: Sites) -> None:
    """Nodes are started anew for each run; what they remember is on their disks."""
    sites.run(1)
    sites.run(1)
    with pytest.raises(FederationError) as caught:
        sites.run(1, sites=FOUR[1:])
    text = str(caught.value)
    assert text.startswith("round 1: secure sums: 0 nodes gave a right share") and REFUSED in text and REMEDY in text
    assert sites.run(1, sites=FOUR[1:], seed=1).rounds[0]["nodes"] == [1, 2, 3]


def test_the_same_nodes_by_other_weights_are_another_sum(sites: Sites) -> None:
    """Of 40, 60, 60 and 60 images: the sum with equal weights less 1.5 times that by images is the first node's."""
    sites.run(1, method="fedavg", more="")
    with pytest.raises(FederationError) as caught:
        sites.run(1, method="fedavg", more="aggregation.weights=equal")
    assert REFUSED in str(caught.value)


def test_the_list_is_private_bounded_and_nothing_is_answered_where_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path))
    monkeypatch.setattr(answered, "MOST", 3)
    from fedshift_app.flower.internals import make_context

    once = answered.once(make_context(7, {"domain": "north", "data-dir": "images", "partition-id": 0}, {}))
    digests = [bytes([number]) * DIGEST for number in range(5)]
    assert all(once(one, digests[0]) for one in digests[:3])
    assert once(digests[2], digests[0]) and not once(digests[2], digests[1])
    file = tmp_path / "node-0" / answered.FILE
    assert file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size == 3 * 2 * DIGEST
    assert once(digests[3], digests[0]) and once(digests[0], digests[1])  # the oldest ones are forgotten
    assert file.stat().st_size == 3 * 2 * DIGEST
    for damage in (lambda: file.write_bytes(b"short"), lambda: (file.unlink(), file.mkdir())):
        damage()  # type: ignore[no-untyped-call]
        with pytest.raises(FedShiftError) as caught:
            once(digests[4], digests[0])
        assert str(caught.value) == "refused: this node's list of sums that it has answered cannot be kept"


def test_entries_are_told_apart_by_all_their_bytes() -> None:
    rng = np.random.default_rng(0)
    kept, pairs = b"", [(rng.bytes(DIGEST), rng.bytes(DIGEST)) for _ in range(50)]
    for what, over in pairs:
        after = noted(kept, what, over)
        assert after is not None
        kept = after
    for what, over in pairs:
        assert noted(kept, what, over) == kept and noted(kept, what, over[:-1] + bytes([over[-1] ^ 1])) is None
