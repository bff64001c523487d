"""What nodes begin from is sent to each once, and again to a node that answers with an error."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from fedshift_core.arrays import digest
from fedshift_core.wire.messages import RunHeader, WorkRequest
from fedshift_core.wire.names import CONFIG, START, START_DIGEST
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.federation.one_time_payload import Start

FROZEN = {"encoder.w": np.arange(6, dtype=np.float32).reshape(2, 3), "encoder.n": np.asarray(4)}
MOVING = {"classifier.w": np.ones(3, np.float32)}


def asked(start: Start, node_id: int) -> RecordDict:
    """Return what a node is sent."""
    digest, record = start.for_node(node_id)
    request = WorkRequest(
        RunHeader("simulation", "{}", start_digest=digest), 1, 0, encode(MOVING), ArrayRecord(), start=record
    )
    content = request.to_record()
    assert WorkRequest.from_record(content) == request
    return content


def answer(node_id: int, *, error: bool = False) -> Any:
    """Return what of a reply is looked at."""
    return SimpleNamespace(metadata=SimpleNamespace(src_node_id=node_id), has_error=lambda: error)


def test_each_node_gets_it_until_it_has_answered() -> None:
    start = Start(FROZEN, frozenset(FROZEN))
    start.record_answers([answer(7)])  # to an earlier question
    first, other = asked(start, 7), asked(start, 8)
    assert first[START] is other[START]  # written once
    arrays = decode(first.array_records[START])
    assert all(np.array_equal(arrays[name], array) for name, array in FROZEN.items())
    start.record_answers([answer(7)])
    assert START not in asked(start, 7)
    for _ in range(2):
        start.record_answers([answer(7, error=True)])  # it no longer has it
        assert START in asked(start, 7)
    assert START in asked(start, 8)
    start.record_answers([answer(7)])
    for content in (first, asked(start, 7)):  # it must say which one still
        assert content.config_records[CONFIG][START_DIGEST] == digest(FROZEN)


def test_frozen_weights_are_taken_out_and_put_back_in_their_order() -> None:
    whole = {"a": np.ones(1, np.float32), "b": np.full(1, 2, np.float32), "c": np.full(1, 3, np.float32)}
    start = Start({"b": whole["b"]}, frozenset({"b"}))
    moving = start.moving(encode(whole))
    assert list(moving) == ["a", "c"]
    merged = start.complete(encode({"a": whole["a"] + 1, "c": whole["c"] + 1}))
    assert [(name, float(array[0])) for name, array in decode(merged).items()] == [("a", 2), ("b", 2), ("c", 4)]


def test_a_digest_goes_by_names_types_shapes_and_numbers() -> None:
    a = {"x": np.arange(6, dtype=np.float32), "y": np.zeros(2)}
    assert digest(a) == digest({"y": np.zeros(4)[::2], "x": np.arange(6, dtype=np.float32)})
    others = [
        {"z": a["x"], "y": a["y"]}, {"x": a["x"].reshape(2, 3), "y": a["y"]}, {"x": a["x"].astype("f8"), "y": a["y"]},
        {"x": a["x"] + 1, "y": a["y"]}, {"x": a["x"]},
    ]  # fmt: skip
    assert len({digest(a), *map(digest, others)}) == 1 + len(others)
