"""Plain `flwr run`: the number of nodes is what the experiment wants, and threads are the app's to say."""

from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused

from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node.setup import place
from fedshift_app.run import build as run_build
from fedshift_app.run import flwr_run
from fedshift_core.env import THREADS
from fedshift_core.errors import ConfigError

FLAT = {"experiment": "handwritten"}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flwr_run, "ALL_HERE_SECONDS", 0.0)


def grid(*present: int) -> Any:
    """Return a grid on which there are so many nodes, look by look."""
    looks = iter(present)
    last = [0]

    def ids() -> list[int]:
        last[0] = next(looks, last[0])
        return list(range(last[0]))

    return SimpleNamespace(get_node_ids=ids)


TWO = {"set": "'allocation.counts={scan: 1, sketch: 1}'"}


@pytest.mark.parametrize(
    ("flat", "here", "before", "wanted"),
    [({"method": "i2pfl"}, 2, None, 8), (TWO, 1, None, 2), (TWO, 3, None, 2), (FLAT, 8, 5, 5)],
)
def test_another_number_of_nodes_is_refused_with_the_option_to_give(
    flat: dict[str, Any], here: int, before: int | None, wanted: int
) -> None:
    """A number that is fixed is the only one, and a run that is continued wants as many as it had."""
    with refused(ConfigError, f"wants {wanted} nodes", f"has {here}", f"num-supernodes={wanted} "):
        flwr_run.look(resolve(flat), grid(here), before)


def test_nodes_that_come_while_the_app_is_loaded_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flwr_run, "ALL_HERE_SECONDS", 60.0)
    assert "has 8" in flwr_run.look(resolve(FLAT), grid(0, 1, 3, 8), None)


def test_a_simulated_node_has_the_threads_that_the_run_says_not_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def threads(result: str = "") -> int:
        context = make_context(1, {"partition-id": 0, "num-partitions": 8}, {})
        return place(resolve({"set": result}), context, "simulation").threads

    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray sets it, from client-resources-num-cpus
    monkeypatch.delenv(THREADS, raising=False)
    assert (threads(), threads("train.threads=3")) == (1, 3)
    monkeypatch.setenv(THREADS, "2")  # cpus-per-client=2
    assert (threads(), threads("train.threads=3")) == (2, 3)


# --- a busy machine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "settings", "waits"),
    [("deployment", 7, 7), ("simulation", 7, run_build.SIMULATED_TIMEOUT), ("simulation", 9000, 9000)],
)
def test_a_busy_machine_does_not_make_simulated_nodes_absent(engine: str, settings: int, waits: float) -> None:
    config = resolve({"method": "fedavg", "set": f"federation.node_timeout={settings}"})
    assert run_build.prepare(config, engine)[1].engine.node_timeout == waits
