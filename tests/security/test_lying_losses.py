"""One node of several says a loss of its choice, where losses decide how much each node weighs (afl, ga)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MessageType
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid, node

from fedshift_app.config.sections import AggregationConfig
from fedshift_app.features.afl import server as afl
from fedshift_app.features.ga import server as ga
from fedshift_core.limits import MOST_LOSS
from fedshift_core.wire.names import LOCAL_RECEIVED, LOCAL_TRAINED, RECEIVED_LOSS
from fedshift_strategies.federation.update_norms import LARGEST_LOSS, capped
from fedshift_strategies.federation.updates import Update

NODES = 5
LIAR = 1
HUGE = 0.99 * MOST_LOSS


def updates_of(*names: str, losses: Sequence[float]) -> list[Update]:
    """Return updates of as many images each, which say these losses under each of the names."""
    return [
        Update(node(i, counts=(10, 0, 0)), ArrayRecord(), {}, 10, dict.fromkeys(names, loss))
        for i, loss in enumerate(losses)
    ]


@pytest.mark.parametrize("step", ["exponential", "projected"])
def test_one_lie_does_not_take_all_weight_of_a_round(step: Any) -> None:
    """Without a cap the weights of the others would be 0 from the first lie on."""
    rule = AggregationConfig(weights="afl", afl_update=step, afl_groups="node")
    losses = [1.0, HUGE, 2.0, 1.5, 1.2]
    _, q = afl.weigh(rule, updates_of(RECEIVED_LOSS, losses=losses), {i: i for i in range(NODES)}, {})
    assert q[LIAR] <= 1 / NODES + (0.5 if step == "projected" else 0.3)
    assert sum(q.values()) == pytest.approx(1)
    assert min(q.values()) > 0


def test_one_lie_among_the_nodes_of_a_domain_does_not_speak_for_all_of_it() -> None:
    """A domain's loss is a mean over its nodes' images, which one of a hundred would decide alone."""
    rule = AggregationConfig(weights="afl")
    group_of = {i: i // 100 for i in range(200)}
    losses = [1.0] * 200
    losses[LIAR] = HUGE
    _, q = afl.weigh(rule, updates_of(RECEIVED_LOSS, losses=losses), group_of, {})
    assert q[0] < 0.51


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=8),
    st.sampled_from(["exponential", "projected"]),
)
def test_what_honest_nodes_say_counts_as_it_is(losses: list[float], step: Any) -> None:
    """Up to ten times a median of 1 or more no bit of an honest run is another one."""
    assert capped(losses) == losses
    rule = AggregationConfig(weights="afl", afl_update=step, afl_groups="node", afl_step=0.05)
    groups = {i: i for i in range(len(losses))}
    _, q = afl.weigh(rule, updates_of(RECEIVED_LOSS, losses=losses), groups, {})
    before = np.array([1 / len(losses)] * len(losses))
    assert list(q.values()) == pytest.approx(afl.moved(before, np.array(losses), 0.05, step).tolist(), abs=1e-12)


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=8), st.floats(0, HUGE))
def test_a_lie_counts_as_ten_times_the_median_at_most(honest: list[float], lie: float) -> None:
    """One liar among two honest nodes or more lies above their median at the most."""
    said = capped([lie, *honest])[0]
    assert said <= LARGEST_LOSS * max(1.0, max(honest))


def test_a_gap_of_a_lie_leaves_the_gaps_of_others_their_weight() -> None:
    """Gaps are divided by the largest; a lie of 1e9 made all others 0."""
    rule = AggregationConfig(weights="ga")
    nodes = range(NODES)
    first = updates_of(LOCAL_RECEIVED, LOCAL_TRAINED, losses=[1.0] * NODES)
    _, kept = ga.weigh(rule, first, nodes, {}, 1, 10)
    losses = [1.0, HUGE, 1.0, 3.0, 1.0]
    weights, _ = ga.weigh(rule, updates_of(LOCAL_RECEIVED, LOCAL_TRAINED, losses=losses), nodes, kept, 2, 10)
    assert weights[3] - weights[0] > 0.1 * (weights[LIAR] - weights[0]) > 0


def lying(name: str, value: float) -> type[ListeningGrid]:
    """Return a grid in which one node says this number in each round."""

    class Grid(ListeningGrid):
        def pass_on(self, request: Message, reply: Message) -> Message:
            if request.metadata.message_type == MessageType.TRAIN and request.metadata.dst_node_id == 1000 + LIAR:
                numbers = reply.content.metric_records["metrics"]
                assert name in numbers
                numbers[name] = value
            return reply

    return Grid


def test_a_run_with_a_lying_loss_still_learns_from_the_others(run_inline: InlineRun) -> None:
    given = "aggregation.weights=afl aggregation.afl_groups=node train.epochs=1 dataset.domains=[scan]"
    run = run_inline(nodes=NODES, rounds=2, set=given, grid=lying(RECEIVED_LOSS, HUGE))
    assert [line["nodes"] for line in run.rounds] == [[*range(NODES)]] * 2
    kept = load_file(run.folder / "checkpoint" / "moments-00002.safetensors")
    weights = dict(zip(kept[afl.GROUPS].tolist(), kept[afl.WEIGHTS].tolist(), strict=True))
    assert weights[LIAR] < 0.95 and all(weight > 0.01 for weight in weights.values())


def test_an_accuracy_above_one_is_refused(run_inline: InlineRun) -> None:
    given = "aggregation.weights=ga aggregation.gap=accuracy train.epochs=1 dataset.domains=[scan]"
    run = run_inline(nodes=NODES, rounds=1, set=given, grid=lying(LOCAL_RECEIVED, 1e6))
    assert LIAR not in run.rounds[0]["nodes"]
