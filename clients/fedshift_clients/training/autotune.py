"""Which arithmetic trains a network fastest on this machine: a few training steps of each, in turns.

Float32 or bfloat16, channels_last or NCHW. A processor may have instructions for bfloat16 and be slower with them, so
what it can do does not tell. Batches are as large as the time allows; nothing of it touches a run's random numbers.
"""

import copy
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_clients.training import precision
from fedshift_clients.training.model_cache import optimizer_of
from fedshift_clients.training.settings import ModelConfig, TrainConfig
from fedshift_core.params import ARITHMETICS, Arithmetic

SECONDS = 1.6  # for all steps of a measurement; with the network's own making it is about two
TURNS = 5  # steps of each arithmetic that count, where they fit
#: How many times faster than the usual arithmetic another must be to be taken: less is within what other work on a
#: machine does to such short measurements, and a choice that flickers would make runs differ for nothing.
CLEARLY = 1.1
SMALLEST = 4  # images of the first step, which says how many there is time for
CLASSES = 10  # of the measured classifier, a thousandth of the work

Clock = Callable[[], float]
#: Given an arithmetic and a number of images, returns a training step, which ends when the device has done it.
Steps = Callable[[Arithmetic, int], Callable[[], None]]


@dataclass(frozen=True)
class Work:
    """What is measured.

    Attributes:
        network: Its name.
        groups: Of GroupNorm in the place of BatchNorm; 0 for BatchNorm.
        frozen: What of it does not train (``model.freeze``).
        size: Height and width of the images in pixels.
        batch: Images of a run's batch.
    """

    network: str
    groups: int
    frozen: str
    size: int
    batch: int


@dataclass(frozen=True)
class Found:
    """What a measurement came to.

    Attributes:
        choice: The arithmetic to take.
        milliseconds: The shortest step of each; empty where a step is too long to measure any.
        images: Of the measured batches.
    """

    choice: Arithmetic
    milliseconds: dict[Arithmetic, float]
    images: int


def work_of(model: ModelConfig, train: TrainConfig, size: int) -> Work:
    """Return what is measured for a run: its network, whatever method is trained, so that methods compute alike."""
    groups = model.groups if model.bn == "group" else 0
    return Work(model.name, groups, model.freeze, size, train.batch_size)


def candidates(device: torch.device) -> tuple[Arithmetic, ...]:
    """Return what may be fastest on a device, the usual one first; bfloat16 only where hardware computes in it."""
    usual = precision.by_hardware(device)
    able = [name for name in ARITHMETICS if precision.has_bf16(device) or precision.parts(name)[0] == "float32"]
    return tuple(sorted(able, key=lambda name: name != usual))


def measure(work: Work, device: torch.device) -> Found:
    """Measure in about two seconds on a CPU with one thread, however many a node has. All engines choose alike.

    Raises:
        ConfigError: If there is no such network, or it takes no images of that size.
    """
    threads = torch.get_num_threads()
    cuda = [device] if device.type == "cuda" else []
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        with torch.random.fork_rng(devices=cuda):  # networks of libraries draw from the global generator
            # On a CPU the thread's own seconds: what else the machine does neither decides nor shortens anything.
            clock = time.thread_time if device.type == "cpu" else time.perf_counter
            return choose(_steps(work, device), work.batch, candidates(device), clock)
    finally:
        torch.set_num_threads(threads)


def _steps(work: Work, device: torch.device) -> Steps:
    """Return what makes training steps on batches of random images, with a network in each layout."""
    model = networks.build(work.network, CLASSES, 0, work.size)
    if work.groups:
        model = networks.with_group_norm(model, work.groups)
    if work.frozen != "none":
        freeze(model, work.frozen, work.network)
    model.to(device).train()

    @functools.cache
    def in_layout(layout: torch.memory_format) -> tuple[networks.SplitModel, torch.optim.Optimizer]:
        copied = copy.deepcopy(model).to(memory_format=layout)
        train = TrainConfig(epochs=1, batch_size=work.batch, lr=1e-4)
        return copied, optimizer_of(train, copied.parameters())

    def step(name: Arithmetic, images: int) -> Callable[[], None]:
        of_products, layout = precision.parts(name)
        trained, optimizer = in_layout(layout)
        x = torch.randn(images, 3, work.size, work.size, device=device).contiguous(memory_format=layout)
        y = torch.arange(images, device=device) % CLASSES

        def run() -> None:
            optimizer.zero_grad()
            with precision.autocast(of_products, device):
                _, logits = trained(x)
            nn.functional.cross_entropy(logits.float().flatten(1), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return run

    return step


def choose(steps: Steps, most: int, names: Sequence[Arithmetic], clock: Clock) -> Found:
    """Measure with batches that there is time for; another than the usual arithmetic must be clearly faster.

    Args:
        steps: Makes the steps.
        most: Images of the largest batch to measure.
        names: What there is to choose from, the usual one first.
        clock: Tells seconds.
    """
    few = min(SMALLEST, most)
    first = steps(names[0], few)
    first()  # imports and makes what later steps use again, which takes seconds in a new process and is not counted
    begun = clock()
    first()
    step = max(clock() - begun, 1e-9)
    if 2 * step * len(names) > SECONDS:
        return Found(names[0], {}, few)
    room = SECONDS / (len(names) * (1 + TURNS))  # of each a step to warm up and those that count
    images = max(few, min(most, math.floor(few * room / step)))
    times = in_turns({name: steps(name, images) for name in names}, SECONDS - 2 * step, clock)
    best = min(times, key=lambda name: times[name])
    choice = best if times[best] * CLEARLY <= times[names[0]] else names[0]
    return Found(choice, {name: 1000 * value for name, value in times.items()}, images)


def in_turns(things: Mapping[Arithmetic, Callable[[], None]], seconds: float, clock: Clock) -> dict[Arithmetic, float]:
    """Return the shortest time of each thing, in seconds, run once without counting and then in turns.

    Args:
        things: At least one.
        seconds: No turn begins that would end after these, but for the first.
        clock: Tells seconds.
    """
    started = clock()
    for run in things.values():
        run()
    best = dict.fromkeys(things, math.inf)
    for turn in range(TURNS):
        if turn and (clock() - started) * (turn + 2) / (turn + 1) > seconds:
            break
        for name, run in things.items():
            begun = clock()
            run()
            best[name] = min(best[name], clock() - begun)
    return best
