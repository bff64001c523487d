"""Measures bytes, FLOPs and seconds of a run's first rounds and its last, played in this process.

Messages are those of the run, answered by the ClientApp; nothing is scored and nothing is written. The first round does
not count: some methods have no prototypes yet.
"""

import statistics
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from flwr.app import ConfigRecord, Message
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

from fedshift.run.engine.inline import InlineGrid
from fedshift_app import client_app
from fedshift_app.config.keys import BATCH_SIZE, COST_SECTIONS, EPOCHS, SIZE, as_requested, flat
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import loading, setup
from fedshift_app.run import starting
from fedshift_app.run.starting import Ready
from fedshift_clients.base import DomainClient
from fedshift_clients.training.phases import Phase
from fedshift_core.errors import FederationError
from fedshift_core.wire.messages import WorkRequest
from fedshift_core.wire.records import decode
from fedshift_strategies.federation.roster import Listener, Node
from fedshift_strategies.federation.updates import num_bytes

MEASURED = (2, 3)  # measured rounds, besides the last, in which some methods train differently


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of a node's model.

    Attributes:
        all: All.
        sent: Those sent in each direction.
    """

    all: int
    sent: int


@dataclass(frozen=True)
class Step:
    """A training step of one phase of the local round.

    Attributes:
        epochs: Local epochs of the phase.
        flops: Of the forward and the backward pass of a full batch, two for each multiply-add.
    """

    epochs: int
    flops: int


@dataclass
class Costs:
    """The costs of a method in one kind of its rounds.

    Attributes:
        label: The method, with the varied keys.
        settings: Settings that may affect the costs, by dotted key; ``compare --costs`` matches rows by them.
        kind: The server's text scalars of the round, such as ``phase=encoder``; empty without any.
        nodes: The number of nodes that trained in each round.
        parameters: Those of the model of the counted node.
        network: Its network.
        batch: Batch size of a step.
        steps: The steps by phase of the local round.
        bytes_down: Array bytes sent to all nodes in the first of the rounds.
        bytes_up: Array bytes sent by all nodes in that round.
        rounds: The measured rounds.
        times: Seconds of each local round in them: from message to reply.
        refused: Replies that the server refused, in all rounds up to the last of these.
    """

    label: str
    settings: dict[str, Any]
    kind: str
    nodes: int
    parameters: Parameters
    network: str
    batch: int
    steps: tuple[Step, ...]
    bytes_down: int
    bytes_up: int = 0
    rounds: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def name(self) -> str:
        """The method, and the kind of its rounds."""
        return f"{self.label} ({self.kind})" if self.kind else self.label

    @property
    def step_flops(self) -> float:
        """FLOPs of a step: the mean over phases, weighted by epochs, which have equally many steps; 0 without any."""
        epochs = sum(step.epochs for step in self.steps)
        return sum(step.epochs * step.flops for step in self.steps) / epochs if epochs else 0.0

    @property
    def seconds(self) -> float:
        """The median of the local rounds."""
        return statistics.median(self.times)


class _Refusals(Listener):
    """Counts the refused replies of nodes."""

    count = 0

    def left_out(self, server_round: int, node: Node, reason: str) -> None:
        """Count one."""
        self.count += 1


def answered(grid: InlineGrid, messages: Iterable[Message], server_round: int) -> tuple[list[Message], list[float]]:
    """Let nodes answer messages, one after the other; return their replies and the seconds of each.

    Raises:
        FederationError: If a node fails.
    """
    replies: list[Message] = []
    times: list[float] = []
    for message in messages:
        began = time.perf_counter()
        (reply,) = grid.send_and_receive([message])
        times.append(time.perf_counter() - began)
        if reply.has_error():
            raise FederationError(f"round {server_round}: a node failed: {reply.error.reason}")
        replies.append(reply)
    return replies, times


def begin(config: RunConfig, nodes: int) -> tuple[Ready, InlineGrid]:
    """Return a run as it stands before its first round.

    Raises:
        FedShiftError: If it cannot start.
    """
    grid = InlineGrid(client_app.app, nodes)
    return starting.ready(grid, config, None, setup.SIMULATION, lambda *_: None), grid


def measure(label: str, config: RunConfig, nodes: int) -> list[Costs]:
    """Play a few rounds of a run and return its costs by kind of round.

    Args:
        label: Names the run for people.
        config: The run.
        nodes: How many nodes it has.

    Raises:
        FedShiftError: If it cannot start, or a node cannot train.
    """
    ready, grid = begin(config, nodes)
    arrays, strategy = ready.initial, ready.strategy
    strategy.roster.listener = refusals = _Refusals()
    by_kind: dict[str, Costs] = {}
    threads = torch.get_num_threads()
    try:
        for server_round in played(config.rounds):
            messages = list(strategy.configure_train(server_round, arrays, ConfigRecord(), grid))
            counts, kind = server_round > 1 or config.rounds == 1, _kind(messages[0])
            if counts and kind not in by_kind:
                by_kind[kind] = _counted(label, deciding(config), kind, messages, grid)
            replies, times = answered(grid, messages, server_round)
            up = sum(num_bytes(reply.content) for reply in replies)
            merged, _ = strategy.aggregate_train(server_round, replies)
            assert merged is not None  # the strategy raises where there is nothing to merge
            arrays = merged
            if counts:
                costs = by_kind[kind]
                costs.bytes_up = costs.bytes_up if costs.rounds else up
                costs.rounds.append(server_round)
                costs.times += times
                costs.refused = refusals.count
    finally:
        torch.set_num_threads(threads)
    return list(by_kind.values())


def deciding(config: RunConfig) -> dict[str, Any]:
    """Return the settings that may affect a run's costs, by dotted key."""
    settings = as_requested(flat(config.model_dump(mode="json")))
    further = (BATCH_SIZE, EPOCHS, SIZE)
    return {key: value for key, value in settings.items() if key.startswith(COST_SECTIONS) or key in further}


def played(rounds: int) -> list[int]:
    """Return the rounds to play: the first, the measured ones, and the last."""
    return sorted({1, *(n for n in MEASURED if n < rounds), rounds})


def parameters(model: nn.Module, sent: Collection[str]) -> Parameters:
    """Count a model's parameters, and those with the state-dict names ``sent``."""
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return Parameters(sum(counts.values()), sum(count for name, count in counts.items() if name in sent))


def step_flops(client: DomainClient, message: Message) -> tuple[int, tuple[Step, ...]]:
    """Count the FLOPs of a step of each phase, on the first batch of the coming local round.

    The batch is trained on twice in each phase: the first step may follow preparations, the second is counted. A method
    that makes samples of its own has more steps, which are all alike.

    Args:
        client: The client, prepared for the message; it cannot be used afterwards.
        message: The message that requests the local round.

    Returns:
        The images of the batch, and the step of each phase that has epochs in this round.
    """
    request = WorkRequest.from_record(message.content)
    server_round = request.server_round
    loading.load(decode(request.weights), client, "the server's", server_round - 1)
    order = torch.randperm(len(client.train_set), generator=client.torch_rng("order", server_round))
    client.train_set = client.train_set.select(order[: client.setup.train.batch_size].numpy())
    after: list[tuple[Phase, int]] = []
    with FlopCounterMode(display=False) as counter:
        hook = register_optimizer_step_post_hook(lambda *_: after.append((client.phase, counter.get_total_flops())))
        try:
            client.train_ahead(epochs=2, most=len(client.train_set))
        finally:
            hook.remove()
    phases = client.phases(server_round)
    totals = [[total for _, total in of] for _, of in groupby(after, key=lambda step: id(step[0]))]
    counted = [later - sooner for sooner, later, *_ in totals]
    steps = (Step(phase.epochs, flops) for phase, flops in zip(phases, counted, strict=True) if phase.epochs)
    return len(client.train_set), tuple(steps)


def _counted(label: str, settings: dict[str, Any], kind: str, messages: list[Message], grid: InlineGrid) -> Costs:
    """Return the costs of a round that are known before it is played, from the first message's node."""
    message = messages[0]
    client = client_app.open_client(message, grid.context_of(message.metadata.dst_node_id))[0].client
    counts = parameters(client.model, client.shared_names)
    network = client.setup.model.name
    batch, steps = step_flops(client, message)
    down = sum(num_bytes(message.content) for message in messages)
    return Costs(label, settings, kind, len(messages), counts, network, batch, steps, down)


def _kind(message: Message) -> str:
    """Return the text scalars that the server's method sends a node."""
    scalars = WorkRequest.from_record(message.content).scalars
    return ", ".join(f"{name}={value}" for name, value in scalars.items() if isinstance(value, str))
