"""The time of a round: parts of the server, sums over nodes, places and waiting."""

from typing import Any

from support import node, phase, server_feature

from fedshift_app.features.profile.server import Profile
from fedshift_strategies.features.base import Training
from fedshift_strategies.features.catalog import Around

WORK = {"seconds/data": 1.0, "seconds/forward/backward": 4.0, "loss": 3.0}


def reported(numbers: list[dict[str, Any]], laps: dict[str, float], engine: str = "simulation") -> dict[str, Any]:
    """Return the report of a round by what its nodes say."""
    feature, training = server_feature(Profile, engine=engine), phase(Training)
    around = Around([("profile", feature.on_round(training))])
    training.result.laps = laps
    for index, said in enumerate(numbers):
        training.observers[0](node(index), said)
    around.finish()
    report: dict[str, Any] = training.result.shown["profile"]
    return report


def test_nodes_add_up_and_what_is_left_is_waiting() -> None:
    laps = {"messages": 1.0, "training": 10.0, "averaging": 2.0}
    assert reported([WORK | {"process": 7 + index % 2} for index in range(3)], laps) == {  # two processes play three
        "server": laps,
        "nodes": {"data": 3.0, "forward/backward": 12.0},
        "side_by_side": 2,
        "waiting": 2 * 10.0 - 15.0,
    }


def test_every_real_node_has_a_place_of_its_own() -> None:
    said = [{"seconds/data": 1.0, "process": 7}] * 3
    assert reported(said, {}, "deployment")["side_by_side"] == 3
