"""SuperExec of a simulation asks for work when it is rung for."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec import run_superexec

from fedshift.run.launch import simulation_superexec


def test_a_ring_ends_its_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation_superexec, "LONGEST_SECONDS", 600.0)
    heard, bell = os.pipe()
    sleeper = threading.Thread(target=simulation_superexec.Bell(heard).sleep, args=(0.5,))
    sleeper.start()
    os.write(bell, b"..")
    sleeper.join(60)
    assert not sleeper.is_alive()
    monkeypatch.setattr(simulation_superexec, "LONGEST_SECONDS", 0.01)
    simulation_superexec.Bell(heard).sleep(600)  # all rings were heard
    os.close(bell)
    simulation_superexec.Bell(heard).sleep(600)  # the SuperLink has gone
    os.close(heard)


def test_it_starts_the_program_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        simulation_superexec, "flower_superexec", lambda: started.append(simulation_superexec.sys.argv[1:])
    )
    monkeypatch.setattr(simulation_superexec, "sys", SimpleNamespace(argv=[]))
    monkeypatch.setattr(run_superexec, "time", time)
    monkeypatch.setitem(TASK_TYPE_TO_COMMAND, TaskType.SIMULATION, "flwr-simulation")
    simulation_superexec.run("127.0.0.1:1", 7, "/simulation", 0)
    flower: Any = run_superexec
    assert isinstance(flower.time, simulation_superexec.Bell)
    assert flower.time.monotonic is time.monotonic
    assert TASK_TYPE_TO_COMMAND[TaskType.SIMULATION] == "/simulation"
    assert started == [["--insecure", "--runtime-api-address", "127.0.0.1:1", "--parent-pid", "7"]]


def test_flower_sleeps_between_requests_by_the_name_that_is_replaced() -> None:
    source = Path(run_superexec.__file__).read_text()
    assert "time.sleep(task_poll_interval)" in source
