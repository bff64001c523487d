"""Kills, for the tests of runs, and the run that most of them are held against."""

import pytest
from killing import KEEPING, NODES, ROUNDS, SHORT, KillAt, killing
from support import InlineRun, Run


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> KillAt:
    """Return a function: within its block a run is killed as it writes the file whose path ends so."""
    return killing(monkeypatch)


@pytest.fixture(scope="session")
def whole_run(shared_run: InlineRun) -> Run:
    """Return the run that nothing interrupted, one for all workers; no test may change it."""
    return shared_run(f"method={KEEPING} nodes={NODES} rounds={ROUNDS} {SHORT}")
