"""What the log says left is what left: the reply is opened and hashed again. What cannot be logged does not leave."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from real_node import RUN_ID, SHORT, AppOfNode
from support import InlineRun, json_lines

from fedshift.site import log
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_app.node import chained_log, out_log, state_folder
from fedshift_app.node.chained_log import LOG_FILE
from fedshift_core.disclosure import WORDS
from fedshift_core.wire.packing import packed, unpacked
from fedshift_core.wire.records import decode, encode

DP = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=8"


@pytest.fixture
def folder(folders: list[NodeFolder]) -> NodeFolder:
    return folders[0]


def where() -> Path:
    """Return the folder of the node's log."""
    (path,) = state_folder.state_dir().glob(f"*/{LOG_FILE}")
    return path.parent


def lines() -> list[dict[str, Any]]:
    return json_lines(where() / LOG_FILE)


def hashed(value: Any) -> tuple[int, str]:
    """Return bytes and hash of what is in a reply, worked out by the words of the log's page."""
    if isinstance(value, Array):
        data = value.data
    elif isinstance(value, str):
        data = value.encode("utf-8")
    else:
        numbers = value if isinstance(value, list) else [value]
        data = b"".join(
            number.to_bytes(8, "little", signed=True) if isinstance(number, int) else struct.pack("<d", number)
            for number in numbers
        )
    return len(data), hashlib.sha256(data).hexdigest()


def logged(reply: Message) -> dict[str, tuple[int, str]]:
    """Return bytes and hash of each array, number and text of a reply, by the name that the log gives it."""
    content = unpacked(reply.content)
    return {f"{r}/{name}": hashed(value) for r, part in content.items() for name, value in part.items()}


def behind(reply: Message) -> int:
    """Return the images behind a reply, by its own numbers."""
    numbers: Any = reply.content.metric_records["metrics"]
    return int(numbers.get("num-examples") or sum(numbers["class-counts"]) + numbers["num-test"])


@pytest.mark.parametrize("as_packed", [False, True])
@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_the_log_has_each_array_number_and_text_of_a_reply(kind: str, as_packed: bool, folder: NodeFolder) -> None:
    node = AppOfNode(folder)
    content = node.content(3, **({"domains": [folder.domain]} if kind == "evaluate" else {}))
    reply = node.send(kind, packed(content) if as_packed else content)
    assert not reply.has_error(), reply.error.reason
    first, *rest = lines()
    assert {line["name"]: (line["bytes"], line["sha256"]) for line in rest} == logged(reply)
    assert (first["kind"], first["items"], first["bytes"]) == ("reply", len(rest), sum(line["bytes"] for line in rest))
    about = {"run": RUN_ID, "round": 3, "message": kind, "images": behind(reply)}
    assert all(about.items() <= line.items() for line in (first, *rest))
    arrays = {
        f"{record}/{name}": {
            "shape": [*array.shape], "dtype": str(array.dtype),
            "norm": pytest.approx(np.linalg.norm(array.astype(np.float64).ravel())),
        }
        for record, part in unpacked(reply.content).array_records.items() for name, array in decode(part).items()
    }  # fmt: skip
    for line in (line for line in rest if line["kind"] == "array"):
        assert {key: line[key] for key in ("shape", "dtype", "norm")} == arrays[line["name"]]
    assert {"query": "text", "train": "array", "evaluate": "number"}[kind] in {line["kind"] for line in rest}


@pytest.mark.parametrize(
    ("kind", "method", "given", "words"),
    [
        ("train", "fedcode", "", "arrays/encoder.0.weight: model, knowledge/prototypes: class"),
        ("train", "fedcode", "", "knowledge/style-prototype: sum over classes"),
        ("train", "fediir", "model.name=cnn_bn", "arrays/encoder.1.running_mean: sum over classes"),
        ("train", "fediir", "model.name=cnn_bn", "knowledge/head-gradient: class"),
        ("train", "scaffold", "method.option=I", "knowledge/delta-c: class"),
        ("evaluate", "fedavg", "", "counts/confusion/scan: class, counts/calibration/scan: class"),
    ],
)
def test_the_line_of_each_array_says_what_it_tells_of_images(
    kind: str, method: str, given: str, words: str, folder: NodeFolder
) -> None:
    node = AppOfNode(folder, given, method=method, policy="open")
    options: dict[str, Any] = {"domains": [folder.domain], "figures": True} if kind == "evaluate" else {}
    assert not node.ask(kind, **options).has_error()
    _, *rest = lines()
    assert {*words.split(", ")} <= {f"{line['name']}: {line.get('word')}" for line in rest}
    assert all((line["kind"] == "array") == (line.get("word") in WORDS) for line in rest)


def test_a_vector_inside_a_secure_sum_is_logged_as_masked() -> None:
    config = resolve({"method": "fedproto", "set": "federation.secure_sums=on"})
    assert [out_log._word(kind, f"{record}/masked", config) for kind, record in
            (("train", "arrays"), ("evaluate", "knowledge"))] == ["masked", "masked"]  # fmt: skip
    config = resolve({"set": "model.name=cnn_bn evaluate.bn=[averaged,retaken]"})
    assert out_log._word("evaluate", "knowledge/sum/encoder.1", config) == "sum over classes"


def test_a_refusal_is_logged_too_also_of_a_message_that_says_nothing(folder: NodeFolder) -> None:
    node = AppOfNode(folder)
    errors = [str(node.ask("train", 99).error.reason), str(node.send("train", RecordDict()).error.reason)]
    assert "server-round=99" in errors[0]
    assert "lacks the record 'config'" in errors[1]
    texts = [line for line in lines() if line["kind"] == "text"]
    assert [(line["name"], line["sha256"]) for line in texts] == [("error", hashed(text)[1]) for text in errors]
    assert [(line["run"], line["round"]) for line in texts] == [(RUN_ID, 99), ("", 0)]


def test_a_server_cannot_say_that_nothing_is_to_be_logged(folder: NodeFolder) -> None:
    """The node's own start decides, not the word ``simulation`` of a message."""
    node = AppOfNode(folder)
    assert node.ask("query", engine="simulation").has_error()
    assert [line["kind"] for line in lines()] == ["reply", "text"]


def test_a_run_with_noise_logs_what_a_reply_spends(folder: NodeFolder) -> None:
    node = AppOfNode(folder, DP)
    for number in (1, 2):
        assert not node.ask("train", number).has_error()
    assert not node.ask("query").has_error()
    spent = node.config.privacy.spent(1)
    assert 0 < spent < 8.5
    by_reply = [line.get("epsilon") for line in lines() if line["kind"] == "reply"]
    assert by_reply == [spent, spent, None]
    (run,) = log.as_object(log.read(where()))["runs"]
    assert (run["epsilon"], run["delta"]) == (pytest.approx(2 * spent), pytest.approx(2e-5))
    assert run["epsilon"] >= node.config.privacy.spent(2)  # the sum is an upper bound


def test_nodes_of_a_simulation_log_nothing(run_inline: InlineRun) -> None:
    run_inline(f"nodes=2 rounds=1 {SHORT} allocation.share=0.05")
    assert not state_folder.state_dir().exists()


@pytest.mark.parametrize("what", ["full", "cut", "no folder"])
def test_what_cannot_be_logged_does_not_leave(what: str, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    node = AppOfNode(folder)
    assert not node.ask("train").has_error()
    file = where() / LOG_FILE
    if what == "full":
        monkeypatch.setattr(chained_log.os, "fsync", Mock(side_effect=OSError))
    elif what == "cut":
        file.write_bytes(file.read_bytes()[:-200])
    else:
        monkeypatch.setenv(state_folder.STATE_DIR, str(file))
    for kind, server_round in (("train", 2), ("query", 1), ("train", 99)):
        assert node.ask(kind, server_round).error.reason == out_log.NOT_LOGGED


def test_nothing_leaves_a_node_that_is_switched_off(folder: NodeFolder) -> None:
    node = AppOfNode(folder)
    assert not node.ask("train").has_error()
    before = len(lines())
    chained_log.switch_off(where())
    assert node.ask("train", 2).error.reason == out_log.SWITCHED_OFF
    assert node.ask("train", 99).error.reason == out_log.SWITCHED_OFF  # and not why
    texts = lines()[before:]
    assert [line["kind"] for line in texts] == ["reply", "text"] * 2  # these lines left
    assert {line["sha256"] for line in texts[1::2]} == {hashed(out_log.SWITCHED_OFF)[1]}
    assert chained_log.switch_on(where())
    assert not chained_log.switch_on(where())
    assert not node.ask("train", 2).has_error()
    assert log.read(where()).problems == []


def test_a_node_without_a_number_has_one_folder_for_its_parts_and_its_log(folder: NodeFolder) -> None:
    node = AppOfNode(folder, "model.name=cnn_bn", "fedbn", domain=folder.domain.upper())
    assert not node.ask("train").has_error()
    assert {path.name for path in where().iterdir()} >= {LOG_FILE, f"run-{RUN_ID}"}


WHOLE, FLOATS = st.integers(-(2**63), 2**63 - 1), st.floats()
NUMBERS = WHOLE | FLOATS | st.lists(WHOLE, max_size=4) | st.lists(FLOATS, max_size=4)


@settings(max_examples=20)
@given(
    st.dictionaries(st.text(min_size=1, max_size=5), NUMBERS, max_size=4),
    st.text(max_size=8),
    hnp.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?"]), hnp.array_shapes(min_dims=0, min_side=0)),
)
def test_any_reply_is_logged_in_json_with_the_hash_of_its_bytes(metrics: dict[str, Any], text: str, array: Any) -> None:
    reply = RecordDict({
        "arrays": encode({"w": array}), "metrics": MetricRecord(metrics), "config": ConfigRecord({"text": text})
    })  # fmt: skip
    entries = json.loads(json.dumps([*out_log.items(reply)], allow_nan=False))
    assert len(entries) == len(metrics) + 2
    for entry in entries:
        record, name = entry["name"].split("/", 1)
        assert (entry["bytes"], entry["sha256"]) == hashed(reply[record][name])
        assert entry["norm"] is None or entry["norm"] >= 0
