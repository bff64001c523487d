"""A node's memory outlives its process: on disk, by node and run, never a silent fresh start."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from real_node import AppOfNode
from refusals import refused
from support import ListeningGrid, Run

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_app.node import one_time_payload as node_payload
from fedshift_app.node import state_folder, state_store
from fedshift_app.node.data import Place
from fedshift_app.node.state_store import StateStore
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.wire import names
from fedshift_core.wire.messages import RunHeader
from fedshift_core.wire.records import array_records
from fedshift_datasets.base import Source
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedcode import FedCodeStrategy

RUN = "a" * 32


def place(partition_id: int = 2, data_dir: str = "/data/a") -> Place:
    return Place("photo", partition_id, -1, Source(Path(data_dir)), False, 1)


MEMORY = {"model/head.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "model/batches": np.asarray(7)}


def store(where: Place | None = None, run: str = RUN, **more: Any) -> StateStore:
    return state_store.store_for(RunHeader("deployment", "{}", run_id=run, **more), where or place())


def test_a_node_that_trains_again_does_so_from_what_it_had_before_that_round() -> None:
    for server_round in (1, 3):
        store().remember(server_round, MEMORY | {"of": np.asarray(server_round)})
    assert [store().recall(before)[0] for before in (1, 2, 3, 4, None)] == [0, 1, 1, 3, 3]
    assert int(store().recall(3)[1]["of"]) == 1


def test_other_nodes_and_other_runs_have_nothing_and_a_node_without_a_number_goes_by_its_folder() -> None:
    store().remember(1, MEMORY)
    store(place(-1, "/data/a")).remember(1, MEMORY)
    assert store(place(-1, "/data/a")).recall()[1].keys() == MEMORY.keys()
    for other in (store(run="b" * 32), store(place(3)), store(place(-1, "/data/b"))):
        assert other.recall() == (0, {})
        other.remember(1, {})  # which writes nothing
    assert len(run_folders()) == 2


def run_folders() -> list[Path]:
    return sorted(state_folder.state_dir().glob("*/run-*"))


def test_a_server_that_names_further_runs_does_not_make_a_node_forget() -> None:
    store().remember(7, MEMORY)
    for run in range(20):
        store(run=f"{run:032x}").remember(1, MEMORY)
    assert store().recall()[0] == 7
    assert len(run_folders()) == 21


def test_runs_that_nothing_was_written_to_for_long_are_removed_but_for_the_last() -> None:
    for run in range(6):
        store(run=f"{run:032x}").remember(1, MEMORY)
    now = time.time()
    for age, folder in enumerate(reversed(run_folders())):  # the first is the oldest
        at = now - 86_400 * (state_store.KEEP_DAYS + 1 + age)
        os.utime(folder, (at, at))
    store(run="a" * 32).remember(1, MEMORY)
    assert [folder.name[-1] for folder in run_folders()] == ["3", "4", "5", "a"]
    store(run="b" * 32).remember(1, MEMORY)  # now there are three newer ones than the fourth
    assert [folder.name[-1] for folder in run_folders()] == ["4", "5", "a", "b"]


def test_where_the_share_of_the_disk_is_full_a_new_run_is_refused_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store().remember(1, MEMORY)
    monkeypatch.setattr(state_store, "MOST_BYTES", 10)
    with pytest.raises(FedShiftError, match=r"takes no new run\nremove the folders of runs that are over: .*/run-\*"):
        store(run="b" * 32).remember(1, MEMORY)
    store().remember(2, MEMORY)
    assert store().recall()[0] == 2 and len(run_folders()) == 1


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_can_read_what_a_node_keeps(umask: int) -> None:
    before = os.umask(umask)
    try:
        store().remember(3, MEMORY)
        folder = store().folder
        assert folder is not None
        node_payload.write(folder, MEMORY, private=True)
    finally:
        os.umask(before)
    state = state_folder.state_dir()
    rights = {path: path.stat().st_mode & 0o777 for path in (state, *state.rglob("*"))}
    assert {mode for path, mode in rights.items() if path.is_dir()} == {0o700}
    files = {path.name[:5]: mode for path, mode in rights.items() if path.is_file()}
    assert files == {"round": 0o600, "start": 0o600}


def test_a_damaged_file_and_a_folder_that_cannot_be_made_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store().remember(11, MEMORY)
    (file,) = state_folder.state_dir().rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(FedShiftError, match=file.name):
        store().recall()
    monkeypatch.setenv(state_folder.STATE_DIR, str(file))
    with pytest.raises(FedShiftError, match="cannot keep this node's private parts"):
        store().remember(1, MEMORY)


@pytest.mark.parametrize("run_id", ["", "../../etc", "A" * 32])
def test_the_servers_name_of_the_run_cannot_lead_elsewhere(run_id: str) -> None:
    with refused(FedShiftError, "32 hexadecimal digits"):
        store(run=run_id)


def test_versions_of_rounds_that_are_repeated_do_not_count() -> None:
    def after(*resumed_after: int) -> StateStore:
        return store(resumed_after=resumed_after)

    def kept() -> list[int]:
        return [version.server_round for version in after(2).versions()]

    for number in (1, 2, 3):
        after().remember(number, {"x": np.array([number])})
    assert [after(number).recall()[0] for number in (0, 1, 2)] == [0, 1, 2]
    for number, left in ((4, [2, 4]), (5, [2, 4, 5]), (7, [4, 5, 7])):  # the server has checkpoints of 6, 5 and 4
        after(2).remember(number, {"x": np.array([number])})  # absent from the second round 3
        assert kept() == left
        assert after(2, 3).recall() == ((2, {"x": np.array([2])}) if 2 in left else (0, {}))
    assert after().recall() == (0, {})  # what a resumed run left is not of one that was not


def test_a_round_that_ends_late_removes_nothing_of_the_next() -> None:
    at = store()
    for number in (3, 5, 4):
        at.remember(number, {"x": np.array([number])})
    assert [version.server_round for version in at.versions()] == [3, 4, 5]
    assert at.recall() == (5, {"x": np.array([5])})


# --- a whole run ------------------------------------------------------------------------------------


SETTINGS = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 federation.min_nodes=2"
FLAT: dict[str, Any] = {"method": "fedcode", "set": SETTINGS}


@pytest.fixture
def both(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the node-configs of two real nodes."""
    nodes = exporting.export(resolve(FLAT), 2, tmp_path / "nodes")
    given = {"threads": 1, "policy": "open"}
    return [{"domain": folder.domain, "data-dir": str(folder.path), **given} for folder in nodes]


class Restarting(ListeningGrid):
    """Lets a SuperNode's process end with each message."""

    def pass_on(self, message: Message, reply: Message) -> Message | None:
        if message.metadata.dst_node_id == 1001:
            self._contexts[1001].state = RecordDict()
        return reply


def test_private_parts_outlive_the_supernodes_process(
    tmp_path: Path, both: list[dict[str, Any]], on_real_nodes: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    recall = StateStore.recall

    def forgetful(self: StateStore, before: int | None) -> tuple[int, Arrays]:
        return (0, {}) if "node-1" in str(self.folder) else recall(self, before)

    runs = []
    for number, (grid, read) in enumerate(((ListeningGrid, recall), (Restarting, recall), (Restarting, forgetful))):
        monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / f"state-{number}"))
        monkeypatch.setattr(StateStore, "recall", read)
        runs.append(on_real_nodes(both, grid=grid, rounds=2, **FLAT))
    whole, restarted, forgot = (run.timeless for run in runs)
    assert whole == restarted != forgot  # because the parts are on disk
    assert runs[0].results["weights_sha256"] == runs[1].results["weights_sha256"]
    assert all("node 1 (sketch)" in line["started_anew"][0] for line in forgot)  # ... and the loss is recorded


def test_private_parts_come_from_the_disk_and_no_supernode_keeps_them(
    folders: list[NodeFolder], caplog: pytest.LogCaptureFixture
) -> None:
    """A SuperNode keeps the state of all runs, and that of a message which ended early is never handed over."""
    node = AppOfNode(folders[0], method="fedrep")
    for server_round in (1, 2):
        before = RecordDict(dict(node.context.state))
        assert not node.ask("train", server_round).has_error()
    assert not array_records(node.context.state)
    assert len(list(state_folder.state_dir().rglob("round-*.safetensors"))) == 2
    node.context.state = before
    for kind, server_round, more in (("evaluate", 2, {"domains": ["scan"]}), ("train", 3, {})):
        reply = node.ask(kind, server_round, **{names.MEMORY_ROUND: 2}, **more)
        assert not reply.has_error(), reply.error
        assert names.STARTED_ANEW not in reply.content.metric_records[names.METRICS]
    assert "back from its disk" not in caplog.text
    node.context.state = RecordDict()
    assert not node.ask("train", 4, **{names.MEMORY_ROUND: 3}).has_error()
    assert "back from its disk" in caplog.text


class Stopped(Exception):
    """What ends the ServerApp in the middle of a round."""


def test_a_deployment_is_resumed_from_the_nodes_own_disks(
    tmp_path: Path, both: list[dict[str, Any]], on_real_nodes: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, merge = on_real_nodes(both, rounds=3, **FLAT), FedCodeStrategy.merge_knowledge

    def stop(self: FedCodeStrategy, updates: list[Update]) -> None:
        if self._result.server_round == 3:
            raise Stopped
        merge(self, updates)

    with monkeypatch.context() as patch:
        patch.setattr(FedCodeStrategy, "merge_knowledge", stop)
        with pytest.raises(Stopped):  # after all nodes had trained in round 3
            on_real_nodes(both, output_dir=str(tmp_path / "stopped"), rounds=3, **FLAT)
    (folder,) = (tmp_path / "stopped").iterdir()
    another = shutil.copytree(folder, tmp_path / "another")
    its_state = shutil.copytree(state_folder.state_dir(), tmp_path / "its-state")
    run = on_real_nodes(both, experiment="", resume=str(folder))
    assert run.timeless == whole.timeless
    assert run.results["weights_sha256"] == whole.results["weights_sha256"]
    monkeypatch.setenv(state_folder.STATE_DIR, str(its_state))
    for file in (its_state / "node-1").rglob(f"*{Run(another).config['run_id']}*/round-00002-*"):
        file.unlink()
    (anew,) = on_real_nodes(both, experiment="", resume=str(another)).rounds[2]["started_anew"]
    assert "node 1 (sketch)" in anew
