"""What a client is given: who it is, once; and what comes with a message, each time."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import RequestError
from fedshift_core.seeding import order_of


@dataclass(frozen=True)
class ClientSetup:
    """Who a client is and how it trains.

    Attributes:
        seed: The run's seed.
        index: The node's place in the federation; with seed and round it fixes all randomness.
        device: Where the model computes.
        rounds: Rounds of the run.
        least_images: Least images behind a number of a class that may leave this node; 1 without a policy.
        secret: Decides all orders of the node's images, and of parts of them, in place of the seed; None: the seed.
        domain: The domain of its images; empty where nobody says.
        bn_order: As ``evaluate.bn_order``.
    """

    seed: int
    index: int
    device: torch.device
    model: ModelConfig
    train: TrainConfig
    images: ImageConfig
    rounds: int = 1
    least_images: int = 1
    secret: int | None = field(default=None, repr=False)
    domain: str = ""
    bn_order: str = "shuffled"

    def order(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Return what draws an order of the node's images: by (run seed, purpose, numbers), or the owner's secret."""
        return order_of(self.secret, self.seed, purpose, *numbers)


@dataclass(frozen=True)
class RoundInputs:
    """What a client is given with a message, besides the weights and what Flower calls ``config``.

    Attributes:
        knowledge: The arrays that the server sent besides weights, ``client.knowledge``.
        scalars: The numbers and words that the server's method sent this node, ``client.scalars``.
        memory: What the node has kept between calls, ``client.memory``; the client changes it.
        statistics: BatchNorm's statistics that the server sent with the weights, by state-dict name.
    """

    knowledge: Arrays = field(default_factory=dict)
    scalars: Mapping[str, int | float | str] = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)
    statistics: Arrays = field(default_factory=dict)


class Scalars(dict[str, int | float | str]):
    """Numbers and words that the server's method sent a node."""

    def __missing__(self, name: str) -> int | float | str:
        """Refuse a message without what the method needs."""
        raise RequestError(f"refused: the server tells no {name!r}, which the method needs")


class Normalizer(Protocol):
    """Normalises batches (B, 3, H, W) anew that the configuration's mean and std have normalised; in place."""

    def plain(self, x: Tensor) -> Tensor:
        """Normalise images as they are."""

    def augmented(self, batch: Batch) -> Batch:
        """Normalise augmented views of images."""

    def of_domain(self, domain: str) -> AbstractContextManager[None]:
        """Let images be those of a domain that is scored, not of the node; empty: of the node again."""

    def restart(self, server_round: int) -> None:
        """Draw from the beginning, for the training of a round."""


class Observer(Protocol):
    """Looks on while images are scored."""

    def add(self, logits: Tensor, predicted: Tensor, y: Tensor) -> None:
        """Take in a batch: logits (B, C), predicted classes (B,) and true ones (B,)."""

    def total(self) -> Any:
        """Return what it made of all batches; what several made can be added."""
