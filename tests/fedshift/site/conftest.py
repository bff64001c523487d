"""The state folder of a machine's nodes, for each test another one."""

from pathlib import Path

import pytest

from fedshift_app.node import state_folder
from fedshift_datasets.io import cache


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path / "state"
