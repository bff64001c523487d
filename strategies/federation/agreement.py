"""What all nodes must have alike before a run begins, such as a public set."""

from collections.abc import Iterable
from typing import Any, Protocol

from strategies.federation.nodes import Node


class Agreement(Protocol):
    """What all nodes must have alike, as a feature knows it (``strategies.features.public_set``)."""

    def copy_of(self, node: Node) -> Any:
        """Return what a node has."""

    def of_most(self, nodes: Iterable[Node]) -> Any:
        """Return what more nodes have than anything else; None where two are as frequent, or there is no node."""

    def another(self, node: Node, copy: Any) -> str:
        """Return what is wrong with a node that has something else."""

    def no_majority(self, nodes: Iterable[Node]) -> str:
        """Return what there is, of which nothing is what most nodes have."""


class NothingAlike:
    """Nodes need have nothing alike, so that all agree."""

    def copy_of(self, node: Node) -> Any:
        """Return the same for every node."""
        return ()

    def of_most(self, nodes: Iterable[Node]) -> Any:
        """Return what all nodes have; None where there is no node."""
        return () if any(True for _ in nodes) else None

    def another(self, node: Node, copy: Any) -> str:
        """Return nothing: no node has something else."""
        return ""

    def no_majority(self, nodes: Iterable[Node]) -> str:
        """Return nothing: all nodes have the same."""
        return ""
