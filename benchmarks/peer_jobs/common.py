"""What the peers' jobs share: networks in plain PyTorch, the images of each client, and how a job tells the time.

Plain PyTorch and nothing of FedShift, so that it can be imported in another framework's environment. The images are
those that FedShift's nodes hold (``benchmarks/peers.py`` writes them to a file).
"""

import argparse
import functools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, SIZE = 10, 32
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-5
IMAGES = "FEDSHIFT_PEERS_IMAGES"  # environment variable: the file with the images
#: Environment variables: file for the moments of the rounds, file for the scores of the last model.
MOMENTS, SCORES = "FEDSHIFT_PEERS_MOMENTS", "FEDSHIFT_PEERS_SCORES"
ENCODER = "FEDSHIFT_PEERS_ENCODER"  # environment variable: the file with a frozen network; not set for none
#: Environment variables: `cpu` or `cuda`, and how many processes (or threads) train side by side.
DEVICE, PROCESSES = "FEDSHIFT_PEERS_DEVICE", "FEDSHIFT_PEERS_PROCESSES"
FROZEN_SIZE, FROZEN_WIDTH, FROZEN_CLASSES = 128, 1280, 7  # of images, features and classes of job C


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        network: ``cnn``, ``resnet10``, or ``head`` behind a frozen network.
        clients: In all.
        cohort: That train in a round.
        images: Of a client.
        epochs: Local ones of a round.
        batch: Images of a step.
        lr: Learning rate.
    """

    network: str
    clients: int
    cohort: int
    images: int
    epochs: int
    batch: int
    lr: float


JOBS = {"A": Job("cnn", 1000, 50, 36, 1, 32, 0.2), "B": Job("resnet10", 10, 10, 512, 1, 64, 0.01),
        "C1": Job("head", 10, 10, 32, 1, 32, 0.01), "C2": Job("head", 10, 10, 96, 1, 32, 0.01)}  # fmt: skip


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


def device() -> torch.device:
    """Return where training happens."""
    return torch.device(os.environ[DEVICE])


def processes() -> int:
    """Return how many train side by side."""
    return int(os.environ[PROCESSES])


def network(name: str) -> nn.Sequential:
    """Build a network on the device."""
    return _network(name).to(device())


def _network(name: str) -> nn.Sequential:
    """Build FedShift's ``cnn`` or ``resnet10`` for ten classes of 32x32 pixels, or what follows a frozen network."""
    if name == "head":
        return nn.Sequential(nn.Linear(FROZEN_WIDTH, 256), nn.ReLU(), nn.Linear(256, FROZEN_CLASSES))
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
    """All images, normalised once, of which each client has its own."""

    def __init__(self) -> None:
        with np.load(os.environ[IMAGES]) as file:
            self.x, self.y = _tensors(file["x"], file["y"])  # on the device, as those of FedShift's nodes
            self.test_x, self.test_y = _tensors(file["test_x"], file["test_y"])
            self._held = torch.from_numpy(file["held"]).to(device())

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's images (N, 3, 32, 32) and labels (N,)."""
        index = self._held[client]
        return self.x[index], self.y[index]


def _tensors(x: "np.typing.NDArray[np.uint8]", y: "np.typing.NDArray[np.int64]") -> tuple[Tensor, Tensor]:
    """Return images (N, H, W, 3) of bytes as FedShift's nodes see them: (N, 3, H, W) from -1 to 1."""
    values = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().float().div_(127.5).sub_(1.0)
    return values.to(device()), torch.from_numpy(y).to(device())


@functools.cache
def pool() -> Pool:
    """Return the images, read once in each process."""
    return Pool()


@functools.cache
def encoder() -> torch.jit.ScriptModule:
    """Return the frozen network, read once in each process."""
    return torch.jit.load(os.environ[ENCODER], map_location=device())  # type: ignore[no-untyped-call,no-any-return]


def encoded(x: Tensor) -> Tensor:
    """Return what the frozen network makes of images; the images where there is none."""
    if ENCODER not in os.environ:
        return x
    with torch.no_grad():
        features: Tensor = encoder()(x)
    return features


def train(model: nn.Module, x: Tensor, y: Tensor, job: Job) -> float:
    """Train as a plain loop does; return the last loss."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    loss = torch.zeros(())
    for _ in range(job.epochs):
        for index in torch.randperm(len(x), device=x.device).split(job.batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(encoded(x[index])), y[index])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return float(loss.detach())


class RoundClock:
    """Writes the moments at which round 1 starts and each round ends, a line each."""

    def __init__(self) -> None:
        self._file = Path(os.environ[MOMENTS])

    def now(self) -> None:
        """Add a line."""
        with self._file.open("a") as out:
            out.write(json.dumps({"at": time.time()}) + "\n")


def score(model: nn.Module) -> None:
    """Write the accuracy in percent and the mean cross-entropy of a model on the test images."""
    images = pool()
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(encoded(x)) for x in images.test_x.split(256)])  # type: ignore[no-untyped-call]
    accuracy = 100 * float((logits.argmax(1) == images.test_y).double().mean())
    loss = float(functional.cross_entropy(logits, images.test_y))
    Path(os.environ[SCORES]).write_text(json.dumps({"accuracy": accuracy, "loss": loss}))


def arguments() -> tuple[Job, int, RoundClock]:
    """Read what a job is called with: its letter and its rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("rounds", type=int)
    parser.add_argument("mode", nargs="?", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return JOBS[given.job], given.rounds, RoundClock()
