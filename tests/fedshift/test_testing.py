"""``fedshift.testing.check_method`` lets a sound method pass and names what is wrong with others."""

import re
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor

import fedshift as fs
from fedshift.api import testing
from fedshift_core import extensions

#: Smaller runs still.
FEW: dict[str, Any] = {"learns": False, "progress": False, "dataset": {"domains": ["scan", "sketch"]}}


@pytest.fixture(autouse=True)
def _others_know_nothing_of_it() -> Any:
    yield
    extensions.forget()


class LengthParams(fs.Params):
    mu: float = fs.Field(0.5, ge=0)


class Length(fs.Client[LengthParams]):
    def loss(self, batch: fs.Batch) -> dict[str, Tensor]:
        features, logits = self.forward(batch.x)
        terms = {"ce": fs.losses.cross_entropy(logits, batch.y)}
        if self.params.mu > 0:
            terms["length"] = self.params.mu * features.square().mean()
        return terms


class Noisy(fs.Client[fs.Params]):
    def loss(self, batch: fs.Batch) -> dict[str, Tensor]:
        _, logits = self.forward(batch.x)
        return {"ce": fs.losses.cross_entropy(logits + 0.01 * np.random.rand(), batch.y)}


def less_and_less(seen: int, number: int) -> list[float]:
    """Return weights of which the first falls with the rounds that were seen."""
    return [1 / (1 + seen), *[seen / (1 + seen) / (number - 1)] * (number - 1)]


class InTheClass(fs.Strategy[fs.Params]):
    """Momentum that is kept in the class, which outlives a run but no process, and is in no checkpoint."""

    seen: ClassVar[dict[int, int]] = {}

    def start_run(self, weights: Any) -> None:
        self.seen.clear()

    def weights(self, updates: list[fs.Update]) -> list[float]:
        self.seen[self.server_round] = 1
        return less_and_less(len(self.seen), len(updates))


class OfTheProcess(fs.Client[fs.Params]):
    """Counts the nodes of its process."""

    seen: ClassVar[dict[int, int]] = {}

    def start_round(self, server_round: int) -> None:
        if server_round == 1:
            self.seen.clear()
        self.seen[self.setup.index] = 1

    def loss(self, batch: fs.Batch) -> dict[str, Tensor]:
        return {"ce": fs.losses.cross_entropy(self.forward(batch.x)[1], batch.y) * len(self.seen)}

    def finish_round(self, server_round: int) -> fs.Arrays:
        self.seen[-1 - self.setup.index] = 1
        return {}


class Secret(fs.Client[fs.Params]):
    def finish_round(self, server_round: int) -> fs.Arrays:
        return {"secret": np.zeros(3, np.float32)}


def test_a_sound_method_passes() -> None:
    fs.register("short-features", client=Length, terms=["length"], off="method.mu=0")
    held = testing.check_method(Length, **FEW)
    assert len(held) == 4 and "with method.mu=0 it is FedAvg bit for bit" in held


@pytest.mark.parametrize(
    ("kind", "about", "why"),
    [
        (Length, {}, r"unknown metric 'loss/length': no loss term that the run declares"),
        (Length, {"terms": ["length", "width"]}, "terms has 'width', which no node reported"),
        (Noisy, {}, r"it repeats: a node drew from the global generator of numpy"),
        pytest.param(InTheClass, {}, "resumed after round 1 it ended with other weights", marks=pytest.mark.long),
        (OfTheProcess, {}, "it repeats: .*; the second run had its nodes in two processes"),
        (Secret, {}, "secret"),
    ],
)
def test_what_is_wrong_is_named(kind: Any, about: Any, why: str) -> None:
    side = {"client": kind} if issubclass(kind, fs.Client) else {"strategy": kind}
    fs.register("wrong", **side, **about)
    with pytest.raises(testing.ContractError, match=why) as caught:
        testing.check_method("wrong", **FEW)
    assert not re.search(r"\n", str(caught.value))


def test_a_class_is_registered_under_its_name() -> None:
    assert testing._known(Noisy).name == "noisy"
    with pytest.raises(fs.ConfigError, match="expected a name or a class of a method"):
        testing.check_method(3)  # type: ignore[arg-type]
