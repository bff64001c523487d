"""What a SuperNode may send instead of a message of Flower's."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.superlink.grid import http_grid

from fedshift_app.flower import internals
from fedshift_core.wire import packing
from fedshift_core.wire.names import RAISED
from fedshift_core.wire.records import decode, encode


@pytest.mark.parametrize(
    "inflate",
    [
        lambda *_: 1 / 0, lambda *_: b"".decode("nonsense"), lambda _, contents: contents["gone"],
        lambda *_: ArrayRecord(), lambda *_: None,
    ],
)  # fmt: skip
def test_what_is_no_message_is_an_answer_to_nothing(inflate: Any) -> None:
    message = internals.dropping_malformed(inflate)("id", {})
    assert message.has_error()
    assert (message.metadata.reply_to_message_id, message.metadata.src_node_id) == ("", 0)
    message.metadata.__dict__["_message_id"] = "id"  # as the grid does with every message


def test_flowers_own_grid_is_guarded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_grid, "inflate_object_from_contents", http_grid.inflate_object_from_contents)
    internals.keep_out_malformed_replies()
    guarded: Any = http_grid.inflate_object_from_contents
    internals.keep_out_malformed_replies()
    assert guarded.guarded and http_grid.inflate_object_from_contents is guarded
    assert guarded("id", {"id": b"nonsense"}).has_error()


def test_replies_of_flowers_grid_are_heard_as_they_come() -> None:
    internals.identify_process()
    grid: Any = SimpleNamespace(pull_messages=lambda _ids: [Message(RecordDict(), 7, "train")])
    (reply,), heard = grid.pull_messages([]), list[int]()
    internals.watch_replies(grid, heard.extend)
    assert [one.metadata.dst_node_id for one in grid.pull_messages(["id"])] == [7]
    assert heard == [reply.metadata.src_node_id]


def test_messages_are_packed_on_their_way_only_and_replies_unpacked() -> None:
    internals.identify_process()
    arrays = encode({"w": np.arange(3), "b": np.zeros(1)})
    content = RecordDict({"arrays": arrays})
    seen: list[RecordDict] = []
    reply, broken = Message(packing.packed(content), 1, "train"), Message(content, 2, "train")
    broken.content = RecordDict({packing.PACKED: ConfigRecord({"arrays": b"nonsense"})})
    grid: Any = SimpleNamespace(
        push_messages=lambda messages: seen.extend(message.content for message in messages) or ["id"],
        pull_messages=lambda _ids: [reply, broken],
    )
    internals.pack_messages(grid)
    question = Message(content, 7, "train")
    assert grid.push_messages([question]) == ["id"]
    assert packing.has_packed(seen[0]) and question.content is content
    good, bad = grid.pull_messages(["id"])
    assert decode(good.content.array_records["arrays"])["w"].tolist() == [0, 1, 2]
    assert bad.error.code == RAISED


def test_what_cannot_be_sent_is_whole_again() -> None:
    internals.identify_process()
    content = RecordDict({"arrays": encode({"w": np.ones(2)})})

    def fails(messages: list[Message]) -> None:
        raise ConnectionError

    grid: Any = SimpleNamespace(push_messages=fails, pull_messages=None)
    internals.pack_messages(grid)
    question = Message(content, 7, "train")
    with pytest.raises(ConnectionError):
        grid.push_messages([question])
    assert question.content is content
