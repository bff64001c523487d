"""Kills, for the tests of runs, and the run that most of them are held against."""

import os

import pytest
from finished_runs import FinishedRuns, flat_keys
from killing import NODES, ROUNDS, SHORT, KillAt, killing
from support import Run


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> KillAt:
    """Return a function: within its block a run is killed as it writes the file whose path ends so."""
    return killing(monkeypatch)


@pytest.fixture(scope="session")
def whole_fedcode(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return FedCode's run that nothing interrupted, once for all workers; no test may change it."""
    kept = FinishedRuns(tmp_path_factory, os.environ.get("PYTEST_XDIST_WORKER", ""))
    return kept.shared(NODES, flat_keys("handwritten", {"method": "fedcode", "rounds": ROUNDS, "set": SHORT}))
