"""Kills, for the tests of runs."""

import pytest
from killing import KillAt, killing


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> KillAt:
    """Return a function: within its block a run is killed as it writes the file whose path ends so."""
    return killing(monkeypatch)
