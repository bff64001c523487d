"""One node of five lies about what its method sends besides weights: the run goes on, and honest nodes stay in it."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid, Run

from fedshift_app.config import registry
from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import decode, encode

Lie = Callable[[Arrays], Arrays]
LIAR, HONEST = 1, {0, 2, 3, 4}
SHORT = "train.epochs=2 allocation.share=0.2 train.lr=0.01 dataset.domains=[scan] evaluate.every=9 evaluate.last=1"
#: What a method needs besides.
NEEDS = {
    "fedmd": "allocation.share=0.15 dataset.public=0.05", "ggeur": "model.freeze=encoder",
}  # fmt: skip
METHODS = [name for name in registry.METHODS if registry.get(name).strategy_class().contributes]


def times(factor: float) -> Lie:
    def lie(said: Arrays) -> Arrays:
        return {name: (factor * array).astype(array.dtype) for name, array in said.items() if array.dtype.kind == "f"}

    return lie


def zeros(said: Arrays) -> Arrays:
    return {name: np.zeros_like(array) for name, array in said.items()}


def one_class(said: Arrays) -> Arrays:
    """Send the first row in the place of all, and label all with the class of the first."""
    return {name: np.broadcast_to(array[:1], array.shape).copy() for name, array in said.items() if array.size}


LIES: dict[str, Lie] = {
    "times a hundred": times(100), "times ten thousand": times(1e4), "the other way": times(-1),
    "five times the other way": times(-5), "zeros": zeros, "one class": one_class,
}  # fmt: skip
#: Lies that are left out, from round 1 up to this one. Where features have collapsed to a hundredth of what they were,
#: a hundred times as much is no longer than features are (FedProc, round 2), and counts.
LEFT_OUT = {"times a hundred": 1, "times ten thousand": 3}


def lying(lie: Lie) -> type[ListeningGrid]:
    """Return a grid in which one node lies in each round."""

    class Grid(ListeningGrid):
        def pass_on(self, request: Message, reply: Message) -> Message:
            trained = request.metadata.message_type == MessageType.TRAIN and not reply.has_error()
            if trained and request.content.config_records["config"]["node-index"] == LIAR:
                said = decode(reply.content.array_records["knowledge"])
                reply.content["knowledge"] = encode(said | lie(said))
            return reply

    return Grid


def kept(run: Run) -> Arrays:
    """Return what the server knows after the last round."""
    arrays: Arrays = {}
    for file in sorted((run.folder / "checkpoint").glob("*.safetensors")):
        arrays |= load_file(file)
    return arrays


def check(run: Run, lie: str) -> None:
    """Check that the run is complete with all honest nodes, without a liar that is too long, and finite."""
    assert [line["round"] for line in run.rounds] == [1, 2, 3]
    for line in run.rounds:
        assert {*line["nodes"]} >= HONEST, line["left_out"]
        assert line["round"] > LEFT_OUT.get(lie, 0) or LIAR not in line["nodes"], "averaged"
    assert all(np.abs(array).max(initial=0) < 1e3 for array in kept(run).values() if array.dtype.kind == "f")


@pytest.mark.parametrize(("method", "lie"), [("fpl", "times a hundred"), ("fedthe", "times a hundred")])
def test_a_contribution_that_is_too_long_for_a_first_round(method: str, lie: str, run_inline: InlineRun) -> None:
    """Honest features are near 0 then, and a hundred times those are as long as features that have been learnt."""
    check(run_inline(nodes=5, rounds=3, method=method, set=SHORT, grid=lying(LIES[lie])), lie)


@pytest.mark.long
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("method", METHODS)
def test_any_lie_about_any_contribution(method: str, lie: str, run_inline: InlineRun) -> None:
    given = f"{SHORT} {NEEDS.get(method, '')}"
    check(run_inline(nodes=5, rounds=3, method=method, set=given, grid=lying(LIES[lie])), lie)


def test_prototypes_within_the_bound_that_spoil_the_model_are_traced_to_their_node(run_inline: InlineRun) -> None:
    """In round 2 all nodes come to numbers out of bounds; the run goes back, without the liar."""
    unstable = "train.epochs=2 allocation.share=0.1 train.lr=0.05 dataset.domains=[scan] evaluate.every=9"
    run = run_inline(nodes=5, rounds=3, method="fpl", set=unstable, grid=lying(times(-5)))
    left_out = [reason for line in run.rounds for reason in line["left_out"] if "the model has gone bad" in reason]
    assert len(left_out) == 1
    assert left_out[0].startswith("node 1 (scan): the model has gone bad, and this node has ")
    assert "% of all distances from the median of prototypes: it is left out of the rest of the run" in left_out[0]
    assert LIAR not in run.rounds[-1]["nodes"] and len(run.rounds) == 3
