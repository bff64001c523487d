"""One node of five lies about what its method sends besides weights: the run goes on, and honest nodes stay in it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file
from support import InlineRun, Run, listening, on_images

from fedshift_app.config import registry
from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import decode, encode

Lie = Callable[[Arrays], Arrays]
LIAR, HONEST = 1, {0, 2, 3, 4}
SHORT = "train.epochs=2 allocation.share=0.2 train.lr=0.01 dataset.domains=[scan] evaluate.every=9 evaluate.last=1"
#: What a method needs besides its own short settings.
NEEDS = {"fedmd": "allocation.share=0.15 dataset.public=0.05"}
METHODS = [name for name in on_images(registry.METHODS) if registry.get(name).strategy_class().contributes]


def times(factor: float) -> Lie:
    return lambda said: {
        name: (factor * array).astype(array.dtype) for name, array in said.items() if name not in ("counts", "labels")
    }


def one_class(said: Arrays) -> Arrays:
    """Send the first row in the place of all, and label all with the class of the first."""
    return {name: np.broadcast_to(array[:1], array.shape).copy() for name, array in said.items() if array.size}


#: What a liar sends, round after round. Where features have collapsed to a hundredth of what they were, a hundred times
#: as much is no longer than features are (FedProc, round 2), and counts.
LIES: dict[str, list[Lie]] = {
    "too long": [times(100), times(1e4), times(1e4)],
    "within": [lambda said: {name: np.zeros_like(array) for name, array in said.items()}, one_class, times(-5)],
}


def each() -> Iterator[Any]:
    """Yield each method with its lies."""
    for method, lies in itertools.product(METHODS, LIES):
        # Honest features are near 0 in a first round, and a hundred times those as long as what has been learnt.
        few = lies == "too long" and method in ("fpl", "fedthe", "fed3r")
        yield pytest.param(method, lies, marks=[] if few else [pytest.mark.long])


def lied(run_inline: InlineRun, method: str, lies_of: Sequence[Lie], given: str) -> Run:
    """Return a run in which one node tells a lie in each round."""

    def lies(request: Message, reply: Message) -> Message:
        trained = request.metadata.message_type == MessageType.TRAIN and not reply.has_error()
        asked = request.content.config_records["config"]
        if trained and asked["node-index"] == LIAR:
            said = decode(reply.content.array_records["knowledge"])
            reply.content["knowledge"] = encode(said | lies_of[asked["server-round"] - 1](said))
        return reply

    return run_inline(f"method={method} nodes=5 rounds=3 {given}", grid=listening(lies))


@pytest.mark.parametrize(("method", "lies"), [*each()])
def test_any_lie_about_any_contribution(method: str, lies: str, run_inline: InlineRun) -> None:
    """The run is complete with all honest nodes, without a liar that is too long, and finite."""
    run = lied(run_inline, method, LIES[lies], f"{SHORT} {registry.get(method).short} {NEEDS.get(method, '')}")
    assert len(run.rounds) == 3
    for line in run.rounds:
        assert {*line["nodes"]} >= HONEST, line["left_out"]
        assert lies == "within" or LIAR not in line["nodes"], "averaged"
    for file in (run.folder / "checkpoint").glob("*.safetensors"):  # what the server knows after the last round
        assert all(np.abs(array).max(initial=0) < 1e3 for array in load_file(file).values() if array.dtype.kind == "f")


def test_prototypes_within_the_bound_that_spoil_the_model_are_traced_to_their_node(run_inline: InlineRun) -> None:
    """In round 2 all nodes come to numbers out of bounds; the run goes back, without the liar."""
    unstable = "train.epochs=2 allocation.share=0.1 train.lr=0.05 dataset.domains=[scan] evaluate.every=9"
    run = lied(run_inline, "fpl", [times(-5)] * 3, unstable)
    (why,) = [reason for line in run.rounds for reason in line["left_out"] if "the model has gone bad" in reason]
    assert why.startswith("node 1 (scan): ") and "from the median of prototypes" in why
    assert LIAR not in run.rounds[-1]["nodes"] and len(run.rounds) == 3
