"""A server names other classes, another table of labels or other patients, so that other images would be behind."""

from pathlib import Path
from typing import Any

import own_sites
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedshift_app import client_app
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_core.wire import names

FIRST = "dataset.classes=[bar,cross,disc] dataset.size=32 dataset.domains=[north] train.epochs=1 model.name=cnn"


def asked(folder: Path, given: str) -> Message:
    """Return the answer of a node to the question of what it is, in a run of its own."""
    identify_process()
    config = resolve(
        {"dataset": "folders", "method": "fedavg", "rounds": 2, "data-dir": str(folder), "set": f"{FIRST} {given}"}
    )
    context: Any = make_context(7, {"domain": "north", "data-dir": str(folder)}, {})
    record = {names.RUN_ID: "a" * 32, names.ENGINE: "deployment", names.RUN: config.model_dump_json()}
    content = RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), "config": ConfigRecord(record)})
    reply: Message = client_app.app(Message(content, 7, MessageType.QUERY), context)
    return reply


def test_a_run_with_other_images_behind_its_numbers(tmp_path: Path) -> None:
    own_sites.write(tmp_path, ("north",), 90)
    first = asked(tmp_path, "")
    assert not first.has_error(), first.error.reason
    for other in (
        "classes=[cross,bar,disc]",
        "classes=[bar,cross]",
        "labels=other.csv",
        "patients=listed",
        "test_share=0.3",
        "seed=1",
        "skip_broken=true",
    ):
        reply, key = asked(tmp_path, f"dataset.{other}"), other.partition("=")[0]
        assert reply.has_error() and reply.error.code == names.DECLINED
        assert f"dataset.{key}" in reply.error.reason and "allowed is" in reply.error.reason
