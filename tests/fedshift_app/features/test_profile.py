"""The clock of a round: parts of the server, sums over nodes, places and waiting."""

import pytest

from fedshift_app.features.profile.server import Clock
from fedshift_strategies.federation import context as phases


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that stands still unless a test moves it."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_laps_and_nodes_add_up_and_what_is_left_is_waiting(time: list[float]) -> None:
    made = Clock(on=True, shared_processes=True)
    for part, seconds in ((phases.MESSAGES, 1.0), (phases.TRAINING, 10.0), (phases.AVERAGING, 2.0)):
        time[0] += seconds
        made.lap(part)
    for node in range(3):  # three nodes, played by two processes
        made.add(node, {"seconds/data": 1.0, "seconds/forward/backward": 4.0, "process": 7 + node % 2, "loss": 3.0})
    assert made.report() == {
        "server": {"messages": 1.0, "training": 10.0, "averaging": 2.0},
        "nodes": {"data": 3.0, "forward/backward": 12.0},
        "side_by_side": 2,
        "waiting": 2 * 10.0 - 15.0,
    }


def test_in_a_deployment_every_node_has_a_place_of_its_own(time: list[float]) -> None:
    made = Clock(on=True, shared_processes=False)
    for node in range(3):
        made.add(node, {"seconds/data": 1.0, "process": 7})
    assert made.report()["side_by_side"] == 3


def test_a_node_that_says_nothing_of_its_time_has_no_place(time: list[float]) -> None:
    made = Clock(on=True, shared_processes=True)
    made.add(0, {"seconds/data": 1.0, "process": 7})
    made.add(1, {"loss": 1.0})
    assert made.report() == {"server": {}, "nodes": {"data": 1.0}, "side_by_side": 1, "waiting": 0.0}


def test_a_round_starts_from_nothing(time: list[float]) -> None:
    made = Clock(on=True, shared_processes=True)
    made.lap(phases.TRAINING)
    made.add(0, {"seconds/data": 1.0, "process": 7})
    time[0] += 5
    made.start()
    made.lap(phases.TRAINING)
    assert made.report() == {"server": {"training": 0.0}, "nodes": {}, "side_by_side": 0, "waiting": 0.0}


def test_switched_off_it_reports_nothing() -> None:
    made = Clock(on=False, shared_processes=True)
    made.lap(phases.TRAINING)
    assert not made.report()
