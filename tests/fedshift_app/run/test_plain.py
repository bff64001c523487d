"""Plain `flwr run`: the number of nodes is what the experiment wants, and threads are the app's to say."""

from types import SimpleNamespace
from typing import Any

import pytest
from support import refusal_of

from fedshift.run.launch import runner
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node.setup import place
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


def test_too_few_nodes_are_refused_with_the_option_to_give() -> None:
    flat = {"method": "i2pfl", "rounds": 2}
    result = refusal_of(ConfigError, flwr_run.look, resolve(flat), grid(2), None)
    assert result.splitlines() == [
        "handwritten wants 8 nodes (scan 2, texture 2, street 2, sketch 2; one for each is enough), this "
        "federation has 2; give the same `flwr run` once more, with",
        '--federation-config "num-supernodes=8 client-resources-num-cpus=1"',
    ]
    assert flwr_run.usual_nodes(resolve(flat)) == runner.num_nodes(resolve(flat), None) == 8


@pytest.mark.parametrize("here", [4, 5, 8, 9])
def test_any_number_with_a_node_for_each_domain_will_do(here: int) -> None:
    assert flwr_run.look(resolve(FLAT), grid(here), None).startswith("handwritten wants 8 nodes (scan 2,")
    assert f"; this federation has {here} (" in flwr_run.look(resolve(FLAT), grid(here), None)


@pytest.mark.parametrize("here", [1, 3])
def test_a_number_that_is_fixed_is_the_only_one(here: int) -> None:
    flat = {"set": "'allocation.counts={scan: 1, sketch: 1}'"}
    result = refusal_of(ConfigError, flwr_run.look, resolve(flat), grid(here), None)
    assert f"wants 2 nodes (scan 1, texture 0, street 0, sketch 1), this federation has {here}; give the same" in result
    assert "num-supernodes=2 " in result
    assert "has 2" in flwr_run.look(resolve(flat), grid(2), None)


def test_a_run_that_is_continued_wants_as_many_as_it_had() -> None:
    result = refusal_of(ConfigError, flwr_run.look, resolve(FLAT), grid(8), 5)
    assert "wants 5 nodes (as many as the run had before), this federation has 8" in result
    assert "num-supernodes=5 " in result


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
