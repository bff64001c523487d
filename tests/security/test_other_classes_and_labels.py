"""A server names other classes, another table of labels or other patients, so that other images would be behind."""

import shutil
from pathlib import Path
from typing import Any

import own_sites
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedshift_app import client_app
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.run import build as run_build
from fedshift_core.wire import names

FIRST = "dataset.classes=[bar,cross,disc] dataset.size=32 dataset.domains=[north] train.epochs=1 model.name=cnn"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    own_sites.write(tmp_path / "images", ("north",), 90)
    return tmp_path / "images"


def asked(folder: Path, given: str) -> Message:
    """Return the answer of a node to the question of what it is, in a run of its own."""
    identify_process()
    config = resolve({"dataset": "folders", "method": "fedavg", "rounds": 2, "set": given, "data-dir": str(folder)})
    context: Any = make_context(7, {"domain": "north", "data-dir": str(folder)}, {})
    record = {names.RUN_ID: "a" * 32, names.ENGINE: "deployment", names.RUN: config.model_dump_json()}
    content = RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), "config": ConfigRecord(record)})
    assert run_build is not None
    reply: Message = client_app.app(Message(content, 7, MessageType.QUERY), context)
    return reply


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (FIRST.replace("[bar,cross,disc]", "[cross,bar,disc]"), "dataset.classes"),
        (FIRST.replace("[bar,cross,disc]", "[bar,cross]"), "dataset.classes"),
        (f"{FIRST} dataset.labels=other.csv", "dataset.labels"),
        (f"{FIRST} dataset.patients=listed", "dataset.patients"),
        (f"{FIRST} dataset.test_share=0.3", "dataset.test_share"),
        (f"{FIRST} dataset.seed=1", "dataset.seed"),
        (f"{FIRST} dataset.skip_broken=true", "dataset.skip_broken"),
    ],
    ids=lambda value: value if value.startswith("dataset.") and "=" not in value else "",
)
def test_a_run_with_other_images_behind_its_numbers(other: str, key: str, folder: Path) -> None:
    shutil.rmtree(folder.parent / "state", ignore_errors=True)
    first = asked(folder, FIRST)
    assert not first.has_error(), first.error.reason
    reply = asked(folder, other)
    assert reply.has_error() and reply.error.code == names.DECLINED
    assert key in str(reply.error.reason) and "allowed is" in str(reply.error.reason)
