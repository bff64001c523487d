"""A node's memory outlives its process: on disk, by node and run, never a silent fresh start."""

from pathlib import Path

import numpy as np
import pytest

from datasets.base import Source
from datasets.errors import FedShiftError
from fedshift_app import keeping
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
