"""A node as the server knows it, and who is shown what a run does with its nodes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from fedshift_core.params import Arithmetic

UNSEATED = -1


@dataclass(frozen=True, slots=True)  # slots: of a hundred thousand nodes each byte counts
class Node:
    """What the server knows of a node; never an image.

    Attributes:
        node_id: Flower's id, random.
        index: The node's place in the order of the federation, from 0; -1 before it has one.
        domain: The domain of its images.
        class_counts: Training images per class.
        num_test: Test images of its own domain.
        shared_test: It sees the whole test set of any domain (simulation), not only a part of its own.
        partition_id: The number it was started with, or -1.
        unheld_tests: Test images that it sees of each domain that no node holds.
        num_validation: Images of its validation part.
        num_public: Images of its copy of the public set; 0 where the method uses none.
        public: SHA-256 of that copy.
        held_tests: Further domains whose images a real node holds, and its test images of each.
        fastest: What trains fastest on its machine; None where it does not say.
    """

    node_id: int
    index: int
    domain: str
    class_counts: tuple[int, ...]
    num_test: int
    shared_test: bool
    partition_id: int
    unheld_tests: tuple[tuple[str, int], ...] = ()
    num_validation: int = 0
    num_public: int = 0
    public: str = ""
    held_tests: tuple[tuple[str, int], ...] = ()
    fastest: Arithmetic | None = field(default=None, compare=False)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains of its images, its home first."""
        return (self.domain, *(domain for domain, _ in self.held_tests))

    def tests_of(self, domain: str) -> int:
        """Return the number of test images that the node can be asked to score of a domain."""
        return self.num_test if domain == self.domain else dict(self.unheld_tests + self.held_tests).get(domain, 0)

    @property
    def num_examples(self) -> int:
        """Number of training images."""
        return sum(self.class_counts)

    def is_same(self, other: "Node") -> bool:
        """Tell whether another node holds the same images, as far as the server can know."""
        return replace(self, node_id=other.node_id, index=other.index) == other

    def fields(self, event: str, **more: int) -> dict[str, object]:
        """Return the fields of a line of the log about the node, as ``extra`` of :mod:`logging` takes them."""
        return {"event": event, "node": self.index, "domain": self.domain, **more}

    def __str__(self) -> str:
        return f"node {self.index} ({self.domain})"


class Listener:
    """Receives what a run is doing, for whoever watches it; this one does nothing."""

    def waiting(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Too few nodes are connected (``present``, of all ``nodes``) to begin the next round."""

    def connected(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """It was looked which of all ``nodes`` are connected."""

    def silent(self, since: Mapping[int, float]) -> None:
        """Nodes are connected and do not answer: by node id since when, in seconds since 1970."""

    def asked(self, server_round: int, nodes: Sequence[Node], *, training: bool) -> None:
        """Nodes are asked to train or to evaluate; once more in an evaluation in which others failed."""

    def answered(self, node_ids: Collection[int]) -> None:
        """Nodes have answered, usably or not; some of them may have been reported before."""

    def left_out(self, server_round: int, node: Node, reason: str) -> None:
        """A node's answer is not used."""


@runtime_checkable
class Agreement(Protocol):
    """Something that all nodes must have alike, as a feature knows it (``fedshift_app.features.public_set.server``)."""

    def copy_of(self, node: Node) -> Any:
        """Return what a node has."""

    def of_most(self, nodes: Iterable[Node]) -> Any:
        """Return what more nodes have than anything else; None where two are as frequent, or there is no node."""

    def another(self, node: Node, copy: Any) -> str:
        """Return what is wrong with a node that has something else."""

    def no_majority(self, nodes: Iterable[Node]) -> str:
        """Return what there is, of which nothing is what most nodes have."""


def agreed_of(nodes: Collection[Node], agreement: Agreement | None) -> tuple[list[Node], list[str]]:
    """Return the nodes that have what most nodes have, and what is wrong with the others; all without an agreement.

    While two things are as frequent there are none of the first, and one text is all that is wrong.
    """
    if agreement is None:
        return list(nodes), []
    copy = agreement.of_most(nodes)
    if copy is None:
        return [], [agreement.no_majority(nodes)] if nodes else []
    agreed = [node for node in nodes if agreement.copy_of(node) == copy]
    others = (node for node in nodes if agreement.copy_of(node) != copy) if len(agreed) < len(nodes) else ()
    return agreed, sorted(agreement.another(node, copy) for node in others)


def in_order(nodes: Iterable[Node], domains: Sequence[str]) -> list[Node]:
    """Return nodes in the order in which they get places: by partition id, then by domain and node id.

    Those of a simulation come in it.
    """

    def rank(node: Node) -> tuple[bool, int, int, int]:
        return (node.partition_id < 0, node.partition_id, domains.index(node.domain), node.node_id)

    ranked = list(nodes)
    if any(rank(before) > rank(node) for before, node in pairwise(ranked)):
        ranked.sort(key=rank)
    return ranked
