"""Kills, for the tests of runs, and the run that most of them are held against."""

import pytest
from killing import KEEPING, NODES, ROUNDS, SHORT, KillAt, killing
from support import InlineRun, Run
from words import by_words


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> KillAt:
    """Return a function: within its block a run is killed as it writes the file whose path ends so."""
    return killing(monkeypatch)


@pytest.fixture(scope="session")
def whole_run(shared_run: InlineRun) -> Run:
    """Return the run that nothing interrupted, one for all workers; no test may change it."""
    return shared_run(f"method={KEEPING} nodes={NODES} rounds={ROUNDS} {SHORT}")


@pytest.fixture(name="run_inline")
def _run_inline(run_inline: InlineRun) -> InlineRun:
    """Take the words of a command, too: ``run_inline("method=moon rounds=2 train.lr=1")``."""
    return by_words(run_inline)


@pytest.fixture(name="finished_run")
def _finished_run(finished_run: InlineRun) -> InlineRun:
    return by_words(finished_run)


@pytest.fixture(name="shared_run", scope="session")
def _shared_run(shared_run: InlineRun) -> InlineRun:
    return by_words(shared_run)
