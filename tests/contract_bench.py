"""The bench of the contract of methods: short runs, and single nodes that are asked what a run asked them."""

import functools
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from support import Run, flat_gradients
from traffic import Pair, asked, noting

from fedshift.run.engine import inline
from fedshift.run.launch import runner
from fedshift_app.config import registry, resolving, validating
from fedshift_app.config.layers import parse_set
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup
from fedshift_app.run import build as run_build
from fedshift_clients.base import DomainClient, RoundInputs
from fedshift_clients.training.batches import Batch
from fedshift_core.extensions import OURS
from fedshift_core.params import NoiseParams
from fedshift_core.registry import Method
from fedshift_core.wire.messages import WorkRequest

METHODS = {m.name: m for m in registry.listed() if "features" not in m.needs}  # on images
ASKED = dict(part.split("=", 1) for part in shlex.split(os.environ.get("FEDSHIFT_CONTRACT", "")))
DATASET, ONLY = ASKED.pop("dataset", ""), ASKED.pop("method", "")
OTHERS = " ".join(f"{key}={value}" for key, value in ASKED.items())
#: Two nodes, each of a domain, so half of the test images; or all domains of another data set.
TWO, NODES = ("", 4) if DATASET else ("dataset.domains=[scan,sketch]", 2)
#: A few images are enough where accuracy does not matter: two batches a round, and scores of the last round alone.
FEW = "allocation.share=0.08 train.batch_size=16" if DATASET else "allocation.share=0.06 train.batch_size=11"
SHORT = f"train.epochs=1 {FEW} evaluate.every=2 evaluate.last=1 {TWO}"
#: Of a run of which weights and losses alone are looked at.
NO_FIGURES = "evaluate.figures=false evaluate.site_figures=false"


def of_methods(methods: Iterable[Any]) -> pytest.MarkDecorator:
    """Make tests of several methods, or of the one that is asked for.

    By the module's scope pytest puts those of a method together, and so in one worker, which makes the method's
    recorded run once.
    """
    kept = [m for m in methods if ONLY in ("", m if isinstance(m, str) else m.values[0])]
    return pytest.mark.parametrize("method", kept, scope="module")


def needs_batchnorm(method: Method) -> bool:
    return method.needs.get("network") == "batchnorm"


def settings(method: str, more: str = "", first: str = "", *, brief: bool = True) -> dict[str, Any]:
    """Return the keys of a run: the test's first ones, the method's own needs, the bench's, then the test's others.

    A method's ``short`` is for runs of two rounds, which ``brief`` says this one is.
    """
    network = "model.name=cnn_bn" if needs_batchnorm(METHODS[method]) and "model.name" not in OTHERS else ""
    own = METHODS[method].short if brief else ""
    if issubclass(METHODS[method].params_class(), NoiseParams):
        own += " method.repeatable_noise=true"  # the contract compares runs bit for bit
    given = f"{first} {own} {network} {OTHERS} {more}"
    return {"method": method, "dataset": DATASET, "set": given.strip()}


def trains_as_fedavg(method: Method) -> bool:
    """Tell whether all that it is is done on the server, or before a score."""
    elsewhere = {"adapt", "aggregation", "server"}
    plain = method.client_class() is DomainClient and not method.numbers and method.name != "fedavg"
    return plain and set(method.defaults) & set(validating.METHOD_SECTIONS) <= elsewhere


TRAINING = [name for name, method in METHODS.items() if method.trains and not trains_as_fedavg(method)]
#: Their encoder, which is frozen, is random here.
FROZEN = [name for name, method in METHODS.items() if "model.freeze=encoder" in method.short]

#: For `make test`: of each kind one, with private parts, with phases and an adaptation, with no weights that travel;
#: and those of others and the one that is asked for.
OF_EACH_KIND = ("fedavg", "f2dc", "fedcode", "fedicon", "fedproto")
OF_EACH_KIND += tuple(
    name for name in METHODS if name not in OF_EACH_KIND and (name == ONLY or registry.METHODS.origin(name) != OURS)
)


def some(methods: Iterable[str]) -> list[Any]:
    """Return methods as parameters; those not of ``OF_EACH_KIND`` are for ``make test-all`` alone."""
    return [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.long) for name in methods]


def short(method: str, more: str = "") -> dict[str, Any]:
    return settings(method, more, SHORT) | {"rounds": 2}


def resolved(method: str, more: str = "") -> RunConfig:
    return resolving.resolve({"experiment": "handwritten"} | short(method, more))


def sends_weights(method: str) -> bool:
    return bool(run_build.prepare(resolved(method), "inline")[0])


class Recorded(NamedTuple):
    """A method's short run, its training messages with the answers to them, and what each node kept to itself.

    The answers are without the weights, which the server takes out.
    """

    run: Run
    said: list[Pair]
    memory: list[Any]

    @property
    def asked(self) -> list[Message]:
        return [message for message, _ in self.said]

    @property
    def ends(self) -> tuple[tuple[Message, Any], tuple[Message, Any]]:
        """The first question and the last one, each with the memory of its node; the last node answers last."""
        return (self.said[0][0], {}), (self.said[-1][0], self.memory[-1])


@functools.cache
def recorded(method: str, base: Path) -> Recorded:
    """Make the method's short run; once in each process, several tests look at it."""
    said, grids = list[Pair](), list[Any]()
    grid = noting(said, "train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "InlineGrid", lambda *args: grids.append(grid(*args)) or grids[0])  # type: ignore[func-returns-value]
        given = short(method, "" if method in OF_EACH_KIND else NO_FIGURES)
        flat = given | {"experiment": "handwritten", "output-dir": str(base / "recorded")}
        run = Run(runner.run_inline(flat, NODES))
    memory = [context.state.array_records["memory"] for context in grids[0]._contexts.values()]
    return Recorded(run, said, memory)


Record = Callable[[str], Recorded]


def client_of(index: int, config: RunConfig) -> DomainClient:
    """Return the client of a simulated node before its first message."""
    context = make_context(1, {"partition-id": index, "num-partitions": NODES}, {})
    return setup.make_client(config, setup.place(config, context, setup.SIMULATION), index)


def few(client: DomainClient, number: int = 16) -> DomainClient:
    """Leave a client some of its images, of two batches or one."""
    client.train_set = client.train_set.select(np.arange(number))
    return client


def sections(text: str, *only: str) -> dict[str, dict[str, Any]]:
    """Return settings by their sections: all that ``text`` names, or some sections alone."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in parse_set(text).items():
        section, key = dotted.split(".")
        if not only or section in only:
            sections.setdefault(section, {})[key] = value
    return sections


def weights(client: DomainClient, message: Message) -> list[Any]:
    """Return a message's weights in a client's order; a form's network may have fewer."""
    record = message.content.array_records["arrays"]
    return [record[name].numpy() for name in client.shared_names]


def fitted(client: DomainClient, message: Message, server_round: int) -> list[Any]:
    """Train a client from a message's weights; return what it sends, bytes for arrays."""
    trained, examples, metrics = client.fit(weights(client, message), {"server-round": server_round})
    contributed = {k: a.tobytes() for k, a in client.contribution().items()}
    return [examples, metrics, [a.tobytes() for a in trained], contributed]


def client_for(message: Message, memory: Any, changed: Mapping[str, Any] = MappingProxyType({})) -> DomainClient:
    """Return the client that the message is for, ready for it, with some settings changed."""
    sent = asked(message)
    layers = json.loads(sent["run"])
    for section, values in changed.items():
        layers[section] |= values
    layers = validating.sections_of_run({"resolved": layers})  # with the parameters of a recipe in their sections
    index = sent["node-index"]
    context = make_context(1, {"partition-id": index, "num-partitions": NODES}, {})
    config, where = setup.open_message(ConfigRecord(sent | {"run": json.dumps(layers)}), context)
    client = setup.make_client(config, where, index)
    knowledge, kept = (
        {name: array.numpy() for name, array in of.items()}
        for of in (message.content.array_records["knowledge"], memory)
    )
    client.prepare(RoundInputs(knowledge, WorkRequest.from_record(message.content).scalars, kept))
    return client


def gradients(message: Message, memory: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradient of each loss term with respect to all trained weights, in a row, over all local epochs."""
    client = client_for(message, memory)
    client.take([array.numpy() for array in message.content.array_records["arrays"].values()])
    phases = client._prepare_round(asked(message)["server-round"])
    with torch.no_grad():  # as after some steps: FedProx's term has no gradient where the round starts
        for parameter in client.model.parameters():
            parameter.mul_(1.01)
    client.model.train()
    x = torch.from_numpy(client.train_set.x[:32]).permute(0, 3, 1, 2).float() / 255
    y = torch.from_numpy(client.train_set.y[:32])
    content: dict[str, np.ndarray[Any, Any]] = {}
    for epoch, phase in enumerate(one for one in phases for _ in range(one.epochs)):
        client.phase = phase
        for name, parameter in client.model.named_parameters():
            parameter.requires_grad_(phase.learns(name))
        client.start_epoch(epoch)
        slopes = flat_gradients(client, Batch(x, y, epoch + 1, x.flip(3)))
        content |= {name: slope for name, (_, slope) in slopes.items()}
    return content
