"""One node of several says a loss of its choice, where losses decide how much each node weighs (afl, ga)."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord, MessageType
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support import InlineRun, Run, listening, node, server_feature

from fedshift_app.config.sections import AggregationConfig
from fedshift_app.features.afl import server as afl
from fedshift_app.features.ga import server as ga
from fedshift_core.limits import MOST_LOSS
from fedshift_core.wire.names import LOCAL_RECEIVED, LOCAL_TRAINED, RECEIVED_LOSS
from fedshift_strategies.federation.update_norms import LARGEST_LOSS, capped
from fedshift_strategies.federation.updates import Update

NODES, LIAR = 5, 1
HUGE = 0.99 * MOST_LOSS
STEPS = ["exponential", "projected"]


def updates_of(*names: str, losses: Sequence[float]) -> list[Update]:
    """Return updates of as many images each, which say these losses under each of the names."""
    return [
        Update(node(i, counts=(10, 0, 0)), ArrayRecord(), {}, 10, dict.fromkeys(names, loss))
        for i, loss in enumerate(losses)
    ]


def afl_weights(losses: Sequence[float], groups: int = 1, **rule: Any) -> dict[int, float]:
    """Return the weights of groups of so many nodes each."""
    group_of = {i: i // groups for i in range(len(losses))}
    updates = updates_of(RECEIVED_LOSS, losses=losses)
    return afl.weigh(AggregationConfig(weights="afl", **rule), updates, group_of, {})[1]


@pytest.mark.parametrize("step", STEPS)
def test_one_lie_does_not_take_all_weight_of_a_round(step: str) -> None:
    """Without a cap the weights of the others would be 0 from the first lie on."""
    q = afl_weights([1.0, HUGE, 2.0, 1.5, 1.2], afl_update=step, afl_groups="node")
    assert q[LIAR] <= 1 / NODES + (0.5 if step == "projected" else 0.3)
    assert sum(q.values()) == pytest.approx(1) and min(q.values()) > 0
    # A domain's loss is a mean over its nodes' images, which one of a hundred would decide alone.
    assert afl_weights([1.0, HUGE, *[1.0] * 198], groups=100)[0] < 0.51


@given(st.lists(st.floats(0, 10), min_size=2, max_size=8), st.floats(0, HUGE))
def test_a_lie_counts_as_ten_times_the_median_at_most_and_what_honest_nodes_say_as_it_is(
    honest: list[float], lie: float
) -> None:
    """Up to ten times a median of 1 or more no bit of an honest run is another one."""
    assert capped(honest) == honest
    assert capped([lie, *honest])[0] <= LARGEST_LOSS * max(1.0, *honest)


def test_a_gap_of_a_lie_leaves_the_gaps_of_others_their_weight() -> None:
    """Gaps are divided by the largest; a lie of 1e9 made all others 0."""
    feature = server_feature(ga.GeneralisationAdjustment, aggregation=AggregationConfig(weights="ga"), rounds=10)
    for server_round, losses in enumerate(([1.0] * NODES, [1.0, HUGE, 1.0, 3.0, 1.0]), 1):
        updates = updates_of(LOCAL_RECEIVED, LOCAL_TRAINED, losses=losses)
        training = SimpleNamespace(all_nodes=[update.node for update in updates], server_round=server_round)
        weights = feature.weights(updates, training, lambda _: [])
    assert weights[3] - weights[0] > 0.1 * (weights[LIAR] - weights[0]) > 0


def lied(run_inline: InlineRun, name: str, value: float, rounds: int, given: str) -> Run:
    """Return a run in which one node says this number in each round."""

    def lies(request: Any, reply: Any) -> Any:
        if request.metadata.message_type == MessageType.TRAIN and request.metadata.dst_node_id == 1000 + LIAR:
            numbers = reply.content.metric_records["metrics"]
            assert name in numbers
            numbers[name] = value
        return reply

    more = "train.epochs=1 dataset.domains=[scan]"
    return run_inline(f"nodes={NODES} rounds={rounds} {more} {given}", grid=listening(lies))


def test_a_run_with_a_lying_loss_still_learns_from_the_others(run_inline: InlineRun) -> None:
    run = lied(run_inline, RECEIVED_LOSS, HUGE, 2, "aggregation.weights=afl aggregation.afl_groups=node")
    assert [line["nodes"] for line in run.rounds] == [[*range(NODES)]] * 2
    kept = load_file(run.folder / "checkpoint" / "moments-00002.safetensors")
    weights = dict(zip(kept[afl.GROUPS].tolist(), kept[afl.WEIGHTS].tolist(), strict=True))
    assert weights[LIAR] < 0.95 and all(weight > 0.01 for weight in weights.values())


def test_an_accuracy_above_one_is_refused(run_inline: InlineRun) -> None:
    run = lied(run_inline, LOCAL_RECEIVED, 1e6, 1, "aggregation.weights=ga aggregation.gap=accuracy")
    assert LIAR not in run.rounds[0]["nodes"]
