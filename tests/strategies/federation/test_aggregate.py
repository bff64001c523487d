"""Averaging real messages: what it holds in memory, what it lets go, and what it refuses."""

import tracemalloc

import numpy as np
import numpy.ma  # which np.median imports when it is first called, in the midst of what is measured here
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from support import federation, node

from fedshift.run.engine.inline import InlineGrid
from fedshift_core.arrays import Arrays
from fedshift_core.params import Params
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy

FEDERATION = federation(num_classes=2, run_json="")


def answered(records: list[ArrayRecord], start: ArrayRecord) -> tuple[DomainStrategy, list[Message], list[Message]]:
    """Return a strategy, what it asked each of its nodes, and their replies: node i has 10 (i + 1) images."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        place = int(str(context.node_config["partition-id"]))
        metrics = MetricRecord({"num-examples": 10 * (place + 1)})
        content = {"arrays": records[place], "knowledge": ArrayRecord(), "metrics": metrics}
        return Message(RecordDict(content), reply_to=msg)

    grid = InlineGrid(app, len(records))
    strategy = DomainStrategy(FEDERATION, Params(), lambda *fields: None)
    strategy.roster._nodes = {
        node_id: node(i, (10 * (i + 1), 0), node_id=node_id) for i, node_id in enumerate(grid.get_node_ids())
    }
    requests = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    return strategy, requests, list(grid.send_and_receive(requests))


def model(value: float) -> Arrays:
    shapes = {"small": (3,), "large": (256, 512), "other": (128, 512)}
    arrays: Arrays = {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}
    return arrays | {"n": np.array(int(value))}


def test_all_nodes_are_sent_one_record_and_a_reply_that_is_not_what_it_says_is_left_out() -> None:
    good, evil, start = encode(model(1)), encode(model(1)), encode(model(2))
    evil["large"] = Array("float32", (256, 512), "numpy.ndarray", evil["large"].data[:-4])
    strategy, requested, replies = answered([good, evil, good], start)
    assert all(message.content["arrays"] is start for message in requested)
    average, _ = strategy.aggregate_train(1, replies)
    assert average is not None
    assert np.array_equal(decode(average)["large"], model(1)["large"])
    (reason,) = strategy._result.left_out
    assert reason.startswith("node 1 (a): large") and "524284 bytes" in reason and "(256, 512)" in reason


def test_memory_holds_two_models_more_than_the_replies() -> None:
    start = encode(model(10))  # from which no node goes farther than federation.max_update allows
    records = [encode(model(value)) for value in range(20)]
    size = sum(len(array.data) for array in start.values())
    strategy, _, replies = answered(records, start)
    tracemalloc.start()
    average, _ = strategy.aggregate_train(1, replies)
    _, high = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert high < 2.5 * size  # the sums, what travels of them, and an array
    assert average is not None
    # Node i replies i and weighs (i + 1) / 210: the sum of i (i + 1) up to 19 is 2660.
    got = decode(average)
    np.testing.assert_allclose(got["large"], 2660 / 210, rtol=1e-6)
    assert got["n"] == 13
