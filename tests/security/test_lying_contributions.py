"""One node of five lies about what its method sends besides weights: the run goes on, and honest nodes stay in it."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file
from support import InlineRun, Run, listening

from fedshift_app.config import registry
from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import decode, encode

Lie = Callable[[Arrays], Arrays]
LIAR, HONEST = 1, {0, 2, 3, 4}
SHORT = "train.epochs=2 allocation.share=0.2 train.lr=0.01 dataset.domains=[scan] evaluate.every=9 evaluate.last=1"
#: What a method needs besides.
NEEDS = {
    "fedmd": "allocation.share=0.15 dataset.public=0.05",
    **dict.fromkeys(("ggeur", "fed3r", "fedcgs"), "model.freeze=encoder"),
}
METHODS = [name for name in registry.METHODS if registry.get(name).strategy_class().contributes]


def times(factor: float) -> Lie:
    return lambda said: {
        name: (factor * array).astype(array.dtype) for name, array in said.items() if name not in ("counts", "labels")
    }


def one_class(said: Arrays) -> Arrays:
    """Send the first row in the place of all, and label all with the class of the first."""
    return {name: np.broadcast_to(array[:1], array.shape).copy() for name, array in said.items() if array.size}


LIES: dict[str, Lie] = {
    "times a hundred": times(100), "times ten thousand": times(1e4), "five times the other way": times(-5),
    "zeros": lambda said: {name: np.zeros_like(array) for name, array in said.items()}, "one class": one_class,
}  # fmt: skip
#: Lies that are left out, from round 1 up to this one. Where features have collapsed to a hundredth of what they were,
#: a hundred times as much is no longer than features are (FedProc, round 2), and counts.
LEFT_OUT = {"times a hundred": 1, "times ten thousand": 3}


def lied(run_inline: InlineRun, method: str, lie: Lie, given: str) -> Run:
    """Return a run in which one node lies in each round."""

    def lies(request: Message, reply: Message) -> Message:
        trained = request.metadata.message_type == MessageType.TRAIN and not reply.has_error()
        if trained and request.content.config_records["config"]["node-index"] == LIAR:
            said = decode(reply.content.array_records["knowledge"])
            reply.content["knowledge"] = encode(said | lie(said))
        return reply

    return run_inline(nodes=5, rounds=3, method=method, set=given, grid=listening(lies))


@pytest.mark.parametrize(
    ("method", "lie"),
    [
        # Honest features are near 0 in a first round, and a hundred times those as long as what has been learnt.
        ("fpl", "times a hundred"), ("fedthe", "times a hundred"), ("fed3r", "times a hundred"),
        *(pytest.param(method, lie, marks=pytest.mark.long) for method in METHODS for lie in LIES),
    ],
)  # fmt: skip
def test_any_lie_about_any_contribution(method: str, lie: str, run_inline: InlineRun) -> None:
    """The run is complete with all honest nodes, without a liar that is too long, and finite."""
    run = lied(run_inline, method, LIES[lie], f"{SHORT} {NEEDS.get(method, '')}")
    assert len(run.rounds) == 3
    for line in run.rounds:
        assert {*line["nodes"]} >= HONEST, line["left_out"]
        assert line["round"] > LEFT_OUT.get(lie, 0) or LIAR not in line["nodes"], "averaged"
    for file in (run.folder / "checkpoint").glob("*.safetensors"):  # what the server knows after the last round
        assert all(np.abs(array).max(initial=0) < 1e3 for array in load_file(file).values() if array.dtype.kind == "f")


def test_prototypes_within_the_bound_that_spoil_the_model_are_traced_to_their_node(run_inline: InlineRun) -> None:
    """In round 2 all nodes come to numbers out of bounds; the run goes back, without the liar."""
    unstable = "train.epochs=2 allocation.share=0.1 train.lr=0.05 dataset.domains=[scan] evaluate.every=9"
    run = lied(run_inline, "fpl", times(-5), unstable)
    (why,) = [reason for line in run.rounds for reason in line["left_out"] if "the model has gone bad" in reason]
    assert why.startswith("node 1 (scan): ") and "from the median of prototypes" in why
    assert LIAR not in run.rounds[-1]["nodes"] and len(run.rounds) == 3
