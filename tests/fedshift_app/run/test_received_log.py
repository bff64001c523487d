"""What a server writes down of all that it receives (``federation.log_received``), and what secure sums leave of it."""

import hashlib
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from support import ROOT, InlineRun, Run, json_lines, listening

from fedshift_app.flower.internals import identify_process, pack_messages
from fedshift_app.node import out_log
from fedshift_app.run.received_log import RECEIVED_FILE, ReceivedLog
from fedshift_core.wire.packing import packed
from fedshift_core.wire.records import encode

SHORT = (
    "train.epochs=1 allocation.share=0.05 evaluate.figures=false train.precision=float32 federation.log_received=true"
)


def lines_of(run: Run) -> list[dict[str, Any]]:
    return json_lines(run.folder / RECEIVED_FILE)


def names_of(lines: list[dict[str, Any]], message: str) -> set[str]:
    return {line["name"] for line in lines if line["message"] == message and line["kind"] != "reply"}


def test_the_log_has_each_array_number_and_text_of_each_reply(run_inline: InlineRun) -> None:
    heard: list[list[Any]] = []

    def listen(message: Message, reply: Message) -> Message:
        entries = out_log.items(reply.content)
        heard.append([(entry["name"], entry["bytes"], entry["sha256"]) for entry in entries])
        return reply

    run = run_inline(f"method=fedproto rounds=1 {SHORT}", grid=listening(listen))
    replies: list[list[Any]] = []
    for line in lines_of(run):
        if line["kind"] == "reply":
            replies.append([])
            continue
        replies[-1].append((line["name"], line["bytes"], line["sha256"]))
    assert sorted(replies) == sorted(heard) and len(replies) == 3 * 4
    places = {(line["message"], line["node"], line["round"]) for line in lines_of(run)}
    assert {("query", None), *((kind, node) for kind in ("train", "evaluate") for node in range(4))} == {
        place[:2] for place in places
    }
    assert {place[2] for place in places if place[0] == "train"} == {1}
    assert {"knowledge/prototypes", "knowledge/counts", "metrics/loss"} <= names_of(lines_of(run), "train")


def visible() -> list[str]:
    """Return the names that the page on secure sums says are visible."""
    page = (ROOT / "docs" / "deploy" / "secure-sums.md").read_text()
    table = page.split("What the server receives of a single node", 1)[1].split("[Noise]", 1)[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")][2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_with_secure_sums_the_log_has_what_the_page_says_is_visible_and_nothing_else(run_inline: InlineRun) -> None:
    more = "federation.secure_sums=on model.name=cnn_bn evaluate.bn=[averaged,retaken] evaluate.figures=true"
    run = run_inline(f"method=fedproc rounds=1 {SHORT} {more} allocation.validation_fraction=0.2 profile=true")
    lines, allowed = lines_of(run), visible()
    names = {line["name"] for line in lines if line["kind"] != "reply"}
    assert len(allowed) > 20 and {name for name in names if not any(fnmatchcase(name, one) for one in allowed)} == set()
    assert "knowledge/masked" in names_of(lines, "evaluate")
    assert names_of(lines, "train") == {"arrays/masked", "metrics/num-examples"} | {
        name for name in names if name.startswith(("metrics/seconds/", "metrics/process"))
    }
    masked = [line for line in lines if line.get("name") == "arrays/masked"]
    assert len(masked) == 4 and len({line["sha256"] for line in masked}) == 4
    for line in masked:  # uniform on 0 to 2^32 - 1
        size = line["shape"][0]
        assert line["dtype"] == "uint32" and line["norm"] == pytest.approx(2**32 * (size / 3) ** 0.5, rel=0.05)


class Queue:
    """A grid as Flower's are: messages are pushed, replies pulled."""

    def __init__(self, replies: list[Message]) -> None:
        self.replies = replies
        self.order: list[str] = []

    def push_messages(self, messages: Any) -> list[str]:
        return [self.order.append("queued") or f"id-{message.metadata.dst_node_id}" for message in messages]

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return [self.replies.pop() for _ in message_ids if self.replies]


def asked(node_id: int, **config: Any) -> Message:
    identify_process()
    return Message(RecordDict({"config": ConfigRecord({"server-round": 2, **config})}), node_id, "train")


def test_packed_replies_of_a_queue_are_logged_as_they_left_and_whatever_they_hold(tmp_path: Path) -> None:
    content = RecordDict({
        "arrays": encode({"w": np.ones((2, 3))}), "metrics": MetricRecord({"n": [3, 4]}),
        "config": ConfigRecord({"keys": [b"xy", b"z"]}),
    })  # fmt: skip
    wild = RecordDict({
        "arrays": ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"no array")}),
        "metrics": MetricRecord({"huge": 2**64 - 1, "nan": float("nan")}),
    })  # fmt: skip
    requests = [asked(7, **{"node-index": 0}), asked(8, **{"node-index": 1}), asked(9)]
    error = Message(Error(code=2, reason="out of memory"), reply_to=requests[2])
    grid: Any = Queue([error, Message(wild, reply_to=requests[1]), Message(packed(content), reply_to=requests[0])])
    pack_messages(grid)
    log = ReceivedLog(grid)
    grid.pull_messages(grid.push_messages(requests))
    assert not list(tmp_path.iterdir())
    log.open(tmp_path)
    lines = json_lines(tmp_path / RECEIVED_FILE)
    by_node = {(7, 0): ["array", "number", "text"], (8, 1): ["number", "unreadable", "unreadable"], (9, None): ["text"]}
    for (node_id, index), kinds in by_node.items():
        (reply, *rest) = [line for line in lines if line["node_id"] == node_id]
        assert {(line["node"], line["round"]) for line in (reply, *rest)} == {(index, 2)}
        assert (reply["kind"], sorted(line["kind"] for line in rest)) == ("reply", kinds)
        if node_id == 7:
            assert {line["sha256"] for line in rest} == {entry["sha256"] for entry in out_log.items(content)}
    assert [line["norm"] for line in lines if line["kind"] == "number"] == [5.0, None]
    assert lines[-1]["sha256"] == hashlib.sha256(b"out of memory").hexdigest()
