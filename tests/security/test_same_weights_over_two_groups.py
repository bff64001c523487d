"""A server has the same weights summed over four nodes, then over three of them: the difference is the fourth's own."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from own_sites import CLASSES
from refusals import refused
from secure_sites import FOUR, MakeSites
from support import InlineRun, listening

from fedshift_app.features.secure_sums.server import SecureSums
from fedshift_app.flower.internals import make_context
from fedshift_app.node import answered
from fedshift_app.node.answered import DIGEST, noted
from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.wire import names
from fedshift_core.wire.records import encode

REFUSED = "refused: the same weights were summed over other nodes before"


@pytest.mark.parametrize("stage", ["", MessageType.TRAIN, "shares"])
def test_a_server_that_sends_the_weights_again_gets_no_second_sum(
    stage: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server throws the update of round 1 away and trains from the same weights, without one node."""
    update = SecureSums._update

    def thrown_away(*given: Any) -> Any:
        return replace(update(*given), record=encode(given[3].arrays))

    def lose(message: Any, reply: Any) -> Any:
        """Lose what the last node says at the stage of round 2."""
        config = message.content.config_records["config"]
        at = config.get(names.SECURE_STAGE, message.metadata.message_type)
        return None if (config.get(names.SERVER_ROUND), at, config.get(names.NODE_INDEX)) == (2, stage, 3) else reply

    monkeypatch.setattr(SecureSums, "_update", thrown_away)
    given = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 evaluate.figures=false"
    given += " federation.secure_sums=on"
    again = partial(run_inline, rounds=2, grid=listening(lose), set=given)
    if not stage:  # the same nodes: the same sum
        assert [line["nodes"] for line in again().rounds] == [[0, 1, 2, 3]] * 2
        return
    with pytest.raises(FederationError, match=f"(?s)round 2: .*0 nodes gave a right share of node 0.*{REFUSED}"):
        again()


def test_a_second_run_of_fewer_nodes_or_by_other_weights_is_refused_after_a_restart(
    sites: MakeSites,
) -> None:
    """Of 20, 30, 30 and 30 images: the sum with equal weights less 1.5 times that by images is the first node's."""
    four = sites(FOUR, {"north": CLASSES[:2]})
    for given in ({}, {"method": "fedavg", "more": ""}):
        for _ in range(2):  # nodes are started anew for each run; what they remember is on their disks
            four.run(1, **given)
    with pytest.raises(FederationError, match=f"(?s)^round 1: .*{REFUSED}.*another seed"):
        four.run(1, sites=FOUR[1:])
    with pytest.raises(FederationError, match=REFUSED):
        four.run(1, method="fedavg", more="aggregation.weights=equal")
    assert four.run(1, sites=FOUR[1:], seed=1).rounds[0]["nodes"] == [1, 2, 3]


def test_the_list_is_private_bounded_and_nothing_is_answered_where_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answered, "MOST", 3)
    once = answered.once(make_context(7, {"domain": "north", "data-dir": "images", "partition-id": 0}, {}))
    digests = [bytes([number]) * DIGEST for number in range(5)]
    assert not any(once([one], digests[0]) for one in digests[:3])
    assert once([digests[2]], digests[0]) is None
    assert once([digests[3], digests[1], digests[2]], digests[4]) == digests[1]  # nor is the first of them noted
    file = tmp_path / "state" / "node-0" / answered.FILE
    assert once([digests[3]], digests[0]) is once([digests[0]], digests[1]) is None  # the oldest ones are forgotten
    assert file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size == 3 * 2 * DIGEST
    file.write_bytes(b"short")
    with refused(FedShiftError):
        once([digests[4]], digests[0])
    file.unlink()
    file.mkdir()
    with refused(FedShiftError):
        once([digests[4]], digests[0])


def test_entries_are_told_apart_by_all_their_bytes() -> None:
    rng = np.random.default_rng(0)
    kept, pairs = b"", [(rng.bytes(DIGEST), rng.bytes(DIGEST)) for _ in range(50)]
    for what, over in pairs:
        _, kept = noted(kept, [what], over)
    for what, over in pairs:
        assert noted(kept, [what], over) == (None, kept)
        assert noted(kept, [what], over[:-1] + bytes([over[-1] ^ 1]))[0] == what
