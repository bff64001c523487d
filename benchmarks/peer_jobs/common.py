"""What the peers' jobs share: networks in plain PyTorch, images, and how a job tells the time.

Plain PyTorch and nothing of FedShift, so that it can be imported in another framework's environment.
"""

import argparse
import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, SIZE, POOL = 10, 32, 2000
LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-5


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        network: ``cnn`` or ``resnet10``.
        clients: In all.
        cohort: That train in a round.
        images: Of a client.
        epochs: Local ones of a round.
        batch: Images of a step.
    """

    network: str
    clients: int
    cohort: int
    images: int
    epochs: int
    batch: int


JOBS = {"A": Job("cnn", 1000, 50, 36, 1, 32), "B": Job("resnet10", 10, 10, 512, 1, 64)}


class Block(nn.Module):
    """Residual block of two 3x3 convolutions."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width_in, H, W) to (B, width, H / stride, W / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def network(name: str) -> nn.Sequential:
    """Build FedShift's ``cnn`` or ``resnet10`` for ten classes of 32x32 pixels."""
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1600, 64), nn.ReLU(), nn.Linear(64, CLASSES),
        )  # fmt: skip
    blocks = [Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2), Block(256, 512, 2)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


class Pool:
    """A pool of random images, of which each client has its own."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        self.x = torch.rand(POOL, 3, SIZE, SIZE, generator=rng)
        self.y = torch.randint(0, CLASSES, (POOL,), generator=rng)

    def of(self, client: int, number: int) -> tuple[Tensor, Tensor]:
        """Return a client's images (N, 3, 32, 32) and labels (N,)."""
        index = torch.randperm(POOL, generator=torch.Generator().manual_seed(client))[:number]
        return self.x[index], self.y[index]


@functools.cache
def pool() -> Pool:
    """Return the images, drawn once in each process."""
    return Pool()


def train(model: nn.Module, x: Tensor, y: Tensor, job: Job) -> float:
    """Train as a plain loop does; return the last loss."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    loss = torch.zeros(())
    for _ in range(job.epochs):
        for index in torch.randperm(len(x)).split(job.batch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x[index]), y[index])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return float(loss.detach())


class RoundClock:
    """Writes the moments at which round 1 starts and each round ends, a line each."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now(self) -> None:
        """Add a line."""
        with self._file.open("a") as out:
            out.write(json.dumps({"at": time.time()}) + "\n")


def arguments() -> tuple[Job, int, RoundClock]:
    """Read what a job is called with: its letter, its rounds, the file for its times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("rounds", type=int)
    parser.add_argument("moments", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    return JOBS[given.job], given.rounds, RoundClock(given.moments)
