"""Where a node stands: its domains, its number, its images."""

from dataclasses import dataclass, field, replace

import numpy as np

from fedshift_core.errors import RequestError
from fedshift_datasets.arrays import Indices
from fedshift_datasets.base import Source
from fedshift_datasets.partition.splits import Parts


class PolicyError(RequestError):
    """The policy of the node's owner does not allow what the server asks for."""


@dataclass(frozen=True)
class Guard:
    """The owner's hold on sets of images, so that two answers never tell of the few by which their sets differ.

    Attributes:
        least: Least number of images behind a number that leaves; above 1.
        secret: Decides all orders of the node's images, in the place of a run's seed; never leaves.
        keeps_few: Classes of fewer training images are trained on all the same (``weights: masked``).
    """

    least: int
    secret: int = field(repr=False)
    keeps_few: bool = False

    def without_few(self, parts: Parts, labels: Indices, domain: str) -> Parts:
        """Return a node's parts without training images of classes of which there are fewer than the least.

        Args:
            parts: Of the images of a domain.
            labels: Of all images of the domain, (N,).
            domain: Its name.

        Raises:
            PolicyError: If too few are left to take part.
        """
        own = labels[parts.train]
        few = np.bincount(own)[own] < self.least
        if not self.keeps_few:
            parts = replace(parts, train=parts.train[~few])
        if len(parts.train) < self.least:
            raise PolicyError(f"fewer than least_images={self.least} training images of {domain!r}")
        return parts


@dataclass(frozen=True)
class Place:
    """Where a node stands.

    Attributes:
        domain: The domain of its training images.
        partition_id: Its number, or -1 if it was given none.
        num_partitions: How many nodes there are, or -1 where the node does not know.
        source: Where its images are.
        shared: It sees whole domains and takes its share of them (simulation).
        threads: CPU threads; 0 leaves torch's choice.
        network: The network that the node names for itself, or empty.
        others: The other domains of which a real node has a folder of images.
        guard: Of a real node whose policy has ``least_images`` above 1.
    """

    domain: str
    partition_id: int
    num_partitions: int
    source: Source
    shared: bool
    threads: int
    network: str = ""
    others: tuple[str, ...] = ()
    guard: Guard | None = None

    @property
    def least_images(self) -> int:
        """Least number of images behind a number that may leave."""
        return 1 if self.guard is None else self.guard.least

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains whose images are the node's, its home first."""
        return (self.domain, *self.others)

    def alone(self, domain: str) -> "Place":
        """Return the place of a node that has only one of these domains."""
        return replace(self, domain=domain, others=())
