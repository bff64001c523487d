"""A node's memory outlives its process: on disk, by node and run, never a silent fresh start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from support import InlineRun, ListeningGrid

from datasets.base import Source
from datasets.errors import FedShiftError
from fedshift_app import exporting, keeping, node, server_app
from fedshift_app.config import resolve
from fedshift_app.exporting import NodeFolder
from fedshift_app.flower_internals import make_context
from fedshift_app.holdings import Place


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keeping.STATE_DIR, str(tmp_path / "state"))


def place(partition_id: int = 2, data_dir: str = "/data/a") -> Place:
    return Place("photo", partition_id, -1, Source(Path(data_dir)), False, 1)


MEMORY = {"model/head.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "model/batches": np.asarray(7)}


def test_what_is_remembered_comes_back_with_its_types() -> None:
    keeping.remember(place(), 11, MEMORY)
    told = keeping.recall(place(), 11)
    assert told.keys() == MEMORY.keys()
    for name, array in MEMORY.items():
        np.testing.assert_array_equal(told[name], array)
        assert told[name].dtype == array.dtype


def test_other_nodes_and_other_runs_have_nothing() -> None:
    keeping.remember(place(), 11, MEMORY)
    assert keeping.recall(place(), 12) == {}
    assert keeping.recall(place(partition_id=3), 11) == {}


def test_a_node_without_a_number_goes_by_its_folder() -> None:
    keeping.remember(place(-1, "/data/a"), 11, MEMORY)
    assert keeping.recall(place(-1, "/data/a"), 11).keys() == MEMORY.keys()
    assert keeping.recall(place(-1, "/data/b"), 11) == {}


def test_nothing_to_remember_writes_nothing() -> None:
    keeping.remember(place(), 11, {})
    assert not keeping.state_dir().exists()


def test_only_the_last_runs_are_kept() -> None:
    for run in range(5):
        keeping.remember(place(), run, MEMORY)
    assert len(list(keeping.state_dir().rglob("*"))) == 1 + keeping.KEEP_RUNS
    assert keeping.recall(place(), 4)


def test_a_damaged_file_is_an_error_that_names_it() -> None:
    keeping.remember(place(), 11, MEMORY)
    file = next(keeping.state_dir().rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(FedShiftError, match=r"run-11\.safetensors.*remove it"):
        keeping.recall(place(), 11)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(keeping.STATE_DIR, str(tmp_path / "file"))
    with pytest.raises(FedShiftError, match="cannot keep this node's private parts"):
        keeping.remember(place(), 11, MEMORY)


# --- a whole run ------------------------------------------------------------------------------------


class SuperNodes:
    """Makes grids whose nodes are given their images, as real SuperNodes are; one may lose its process's memory."""

    def __init__(self, folders: list[NodeFolder], *, restarts: bool) -> None:
        self.folders = folders
        self.restarts = restarts

    def make(self, *args: Any) -> Any:
        nodes = self

        class Grid(ListeningGrid):
            def pass_on(self, asked: Message, reply: Message) -> Message | None:
                if nodes.restarts and asked.metadata.dst_node_id == 1001:
                    self._contexts[1001].state = RecordDict()  # what remains of a SuperNode's process that ended
                return reply

        grid = Grid(*args)
        for i, folder in enumerate(self.folders):
            given = {"domain": folder.domain, "data-dir": str(folder.path), "partition-id": i, "threads": 1}
            grid._contexts[1000 + i] = make_context(1000 + i, given, {})
        return grid


def test_private_parts_outlive_the_supernodes_process(
    tmp_path: Path, run_inline: InlineRun, image_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "train.epochs=1 allocation.share=0.1 federation.min_nodes=4"
    cfg = resolve({"experiment": "handwritten", "method": "fedcode", "set": settings})
    folders = exporting.export(cfg, 4, tmp_path / "nodes")
    monkeypatch.setattr(server_app, "_engine", lambda grid: node.DEPLOYMENT)
    hashes = []
    for restarts, forgets in ((False, False), (True, False), (True, True)):
        monkeypatch.setenv(keeping.STATE_DIR, str(tmp_path / f"state-{restarts}-{forgets}"))
        if forgets:
            monkeypatch.setattr(keeping, "recall", lambda where, run_id: {})
        run = run_inline(
            method="fedcode", rounds=3, nodes=4, set=settings, grid=SuperNodes(folders, restarts=restarts).make
        )
        hashes.append((run.results["weights_sha256"], [line["accuracy"] for line in run.rounds]))
    assert hashes[0] == hashes[1]  # a restart changes nothing
    assert hashes[0] != hashes[2]  # because the parts are on disk
