"""Where a node stands: its domains, its number, its images."""

from dataclasses import dataclass, replace

from datasets.base import Source


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
    """

    domain: str
    partition_id: int
    num_partitions: int
    source: Source
    shared: bool
    threads: int
    network: str = ""
    others: tuple[str, ...] = ()

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains whose images are the node's, its home first."""
        return (self.domain, *self.others)

    def alone(self, domain: str) -> "Place":
        """Return the place of a node that has only one of these domains."""
        return replace(self, domain=domain, others=())
