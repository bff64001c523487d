"""A warning of the images comes once from all processes of a command, and from each process without one."""

import os

import pytest
from support import ran

from fedshift_core import said_once
from fedshift_core.env import SAID

WARN = "import logging; logging.basicConfig(format='%(message)s'); from fedshift_core import said_once; said_once.warn"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said_once, "_said", set())
    monkeypatch.delenv(SAID, raising=False)


def said_by_another(text: str) -> str:
    """Return what another process says that warns of this."""
    return ran("-c", f"{WARN}({text!r})", check=True).stderr


def test_what_one_process_has_said_another_does_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    with said_once.shared():
        said_once.warn("1 file is not taken")
        said_once.warn("1 file is not taken")
        assert said_by_another("1 file is not taken") == ""
        assert said_by_another("2 files are not taken") == "2 files are not taken\n"
        said_once.warn("2 files are not taken")
    with said_once.shared():  # a second run of this process
        assert said_by_another("1 file is not taken") == ""
    assert [record.getMessage() for record in caplog.records] == ["1 file is not taken"]
    assert SAID not in os.environ and said_by_another("1 file is not taken") == "1 file is not taken\n"
