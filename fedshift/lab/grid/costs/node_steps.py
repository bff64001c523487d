"""Measures a few steps of one node: training, scoring, FLOPs (``fedshift run --dry-run``)."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

from fedshift.lab.grid.costs.measuring import step_flops
from fedshift_app.node import setup
from fedshift_clients.base import DomainClient
from fedshift_clients.features import Features
from fedshift_clients.training.phases import Phase
from fedshift_core.wire.messages import WorkRequest
from fedshift_core.wire.names import ARRAYS, DOMAINS, KNOWLEDGE, OWN, RETAKEN, SERVER_ROUND
from fedshift_core.wire.records import decode, encode
from fedshift_datasets.base import ImageSet
from fedshift_strategies.federation.updates import num_bytes

BATCHES = 2  # of the node in each epoch
EPOCHS = 2  # the first step includes preparations and does not count
_KB = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
_LEAST = 1e-6  # seconds
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Measured:
    """The measurements of one node.

    Attributes:
        step: Seconds of a step of training on a full batch.
        scored: Seconds for each test image.
        before: Seconds for each of a node's own images before a test set, where it trains on them then (FedICON).
        taken: Seconds per training image for re-estimated BatchNorm statistics; 0 if there are none.
        epochs: Of a local round over the node's own images, all its phases together.
        others: Steps of a local round on other images, such as the public set, or on samples that the method makes.
        first: Both for a node's first round, if that differs (FedMD); None if it does not.
        up: Bytes that a node sends after its first round.
        memory: The most bytes that this process held, less the pages of files (libraries, kept images and features),
            which processes share and the system takes back; of a GPU's memory where there is one.
    """

    step: float
    scored: float
    before: float
    taken: float
    epochs: int
    others: int
    up: int
    memory: int
    first: tuple[int, int] | None = None


@dataclass(frozen=True)
class Counted:
    """FLOPs of one node, two for each multiply-add.

    Attributes:
        step: Of a step of training on a full batch, forward and backward: the mean over the phases, by their epochs.
        image: Of the scoring of a test image, forward.
    """

    step: float
    image: float


def measure(client: DomainClient, message: Message, bn_statistics: Sequence[str]) -> Measured:
    """Measure a client on a short round and its scoring; the client cannot be used afterwards.

    Args:
        client: The client.
        message: The server's message to train.
        bn_statistics: The kinds of ``evaluate.bn`` that the run scores with.
    """
    request = WorkRequest.from_record(message.content)
    server_round = request.server_round
    client.features, asked = Features(), {SERVER_ROUND: server_round}  # the method's own work alone
    parameters = setup.in_order(decode(request.weights), client, "the server's")
    batch = client.setup.train.batch_size
    client.train_set = _few(client.train_set, batch, client.torch_rng("order", server_round))
    full = min(1.0, len(client.train_set) / batch)  # share of a batch, if the node has fewer images
    phases = _shortened(client, len(client.train_set))
    ended: list[float] = []
    with _steps(ended):
        weights, _, _ = client.fit(parameters, asked)
    shared = encode(dict(zip(client.shared_names, weights, strict=True)))
    sent = num_bytes(RecordDict({ARRAYS: shared, KNOWLEDGE: encode(client.contribution())}))
    test = client.train_set  # as large as any: a test set may belong to another node
    _score(client, parameters, test, asked)  # a warm-up: first imports do not count
    seconds, steps = _score(client, parameters, test, asked)
    half = max(1, len(test) // 2)  # at least one image
    client.train_set = test.select(np.arange(half))
    sooner, fewer = _score(client, parameters, test, asked)
    client.train_set = test
    before = 0.0
    if steps > fewer:  # it trains on its own first; a busy machine may have taken longer for the smaller half
        before = max(_LEAST, seconds - sooner) / (len(test) - half)
    scored = max(0.0, seconds / len(test) - before)
    taken = 0.0
    if {OWN, RETAKEN} & set(bn_statistics):
        began = time.perf_counter()
        _, images = client.take_statistics(len(test))
        taken = (time.perf_counter() - began) / images
    step = statistics.median(later - sooner for sooner, later in pairwise(ended)) / full
    first = _counted(phases, batch)
    client.start_round(server_round + 1)
    client.phases(server_round + 1)  # which fills ``phases``
    usual = _counted(phases, batch)
    return Measured(step, scored, before, taken, *usual, sent, held_memory(), None if first == usual else first)


@contextmanager
def _steps(ended: list[float]) -> Iterator[None]:
    """Record the end time of each optimizer step."""
    hook = register_optimizer_step_post_hook(lambda *_: ended.append(time.perf_counter()))
    try:
        yield
    finally:
        hook.remove()


def _score(
    client: DomainClient, parameters: list[NDArray[Any]], test: ImageSet, asked: Mapping[str, Any]
) -> tuple[float, int]:
    """Return the seconds in which a node scores a test set, and its number of training steps."""
    client.evaluate(parameters, {**asked, DOMAINS: []})  # takes it, and scores nothing
    ended: list[float] = []
    began = time.perf_counter()
    with _steps(ended):
        client.score_test(test)
    return time.perf_counter() - began, len(ended)


def _counted(phases: Sequence[Phase], batch: int) -> tuple[int, int]:
    """Return the epochs over a node's own images, and the steps on other images and samples."""
    samples = [phase.samples if phase.images is None else len(phase.images) for phase in phases]
    epochs = sum(phase.epochs for phase, number in zip(phases, samples, strict=True) if number is None)
    others = sum(
        phase.epochs * -(-number // (phase.batch_size or batch))
        for phase, number in zip(phases, samples, strict=True)
        if number is not None
    )
    return epochs, others


def _few(images: ImageSet, batch: int, draws: torch.Generator) -> ImageSet:
    """Return two batches of images, or more if all classes need more; a node sends prototypes of all classes."""
    order = torch.randperm(len(images), generator=draws).numpy()
    _, first = np.unique(images.y[order], return_index=True)
    ordered = np.concatenate([order[first], np.delete(order, first)])
    return images.select(ordered[: max(BATCHES * batch, len(first))])


def _shortened(client: DomainClient, most: int) -> list[Phase]:
    """Limit a client's phases to few epochs and ``most`` own images.

    Returns:
        A list that receives the full phases of each following local round.
    """
    phases = client.phases
    full: list[Phase] = []

    def cut(server_round: int) -> list[Phase]:
        full[:] = phases(server_round)
        return [phase.cut(EPOCHS if phase.epochs else 0, most) for phase in full]

    vars(client)["phases"] = cut  # hides the class's method, for this object only
    return full


def held_memory() -> int:
    """Return ``Measured.memory`` of now."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KB - file_pages()


def file_pages() -> int:
    """Return the bytes of files in this process's memory; 0 where the system does not tell (not Linux)."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile:"))


def count_flops(opened: Callable[[], DomainClient], message: Message) -> Counted:
    """Count the FLOPs of a client's step and of a scored image; each takes a client of its own."""
    trained = opened()
    batch = trained.setup.train.batch_size
    images, steps = step_flops(trained, message)
    epochs = sum(step.epochs for step in steps)
    step = sum(step.epochs * step.flops for step in steps) / epochs * batch / images if epochs else 0.0
    scored = opened()
    request = WorkRequest.from_record(message.content)
    parameters = setup.in_order(decode(request.weights), scored, "the server's")
    test = scored.train_set.select(np.arange(min(batch, len(scored.train_set))))
    scored.train_set = test  # where it trains on its own images before a score, on as many
    with FlopCounterMode(display=False) as counter:
        _score(scored, parameters, test, {SERVER_ROUND: request.server_round})
    return Counted(step, counter.get_total_flops() / len(test))
