"""Which node holds which domain, and which of its training images."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator

from datasets.errors import ConfigError, DataError
from datasets.seeding import generator


class Allocation(BaseModel, frozen=True, extra="forbid"):
    """How nodes and images are dealt in simulation. A real node brings its own images instead."""

    #: Nodes per domain, in the order of the domains; or "any": the domains are dealt in turn to as many
    #: nodes as there are.
    counts: Literal["any"] | dict[str, int] = "any"
    #: Each node's share of its domain's training images, drawn without replacement: one number, one per
    #: domain, or "equal" to divide all of them among the domain's nodes.
    share: Literal["equal"] | float | dict[str, float] = "equal"
    #: Domains that no node holds; they are evaluated all the same (leave-one-domain-out).
    held_out: tuple[str, ...] = Field(())

    @field_validator("counts", mode="before")
    @classmethod
    def _any_or_counts(cls, counts: Any) -> Any:
        numbers = counts.values() if isinstance(counts, dict) else ()
        if counts != "any" and not (numbers and all(type(n) is int and n >= 0 for n in numbers) and any(numbers)):
            raise ValueError(f"expected any, or nodes per domain such as {{photo: 2, sketch: 3}}, found {counts!r}")
        return counts

    @field_validator("share", mode="before")
    @classmethod
    def _equal_or_shares(cls, share: Any) -> Any:
        numbers = list(share.values()) if isinstance(share, dict) else [share]
        in_range = all(type(n) in (int, float) and 0 < n <= 1 for n in numbers)
        if share != "equal" and not (numbers and in_range):
            raise ValueError(
                "expected equal, a number above 0 and at most 1, or one per domain such as {photo: 0.3}, "
                f"found {share!r}"
            )
        return share

    def check(self, domains: tuple[str, ...]) -> None:
        """Check the allocation against the domains of the run.

        Raises:
            ConfigError: For an unknown domain, or one that is asked for more than it has.
        """
        shares = tuple(self.share) if isinstance(self.share, dict) else ()
        counts = tuple(self.counts) if isinstance(self.counts, dict) else ()
        for key, names in (("held_out", self.held_out), ("counts", counts), ("share", shares)):
            for name in names:
                if name not in domains:
                    raise ConfigError(f"allocation.{key} names {name!r}; the domains are {', '.join(domains)}")
        if not self.training_domains(domains):
            raise ConfigError("allocation.held_out leaves no domain to train on")
        for name in self.held_out:
            if name in counts and isinstance(self.counts, dict) and self.counts[name] > 0:
                raise ConfigError(f"allocation: {name!r} is held out, but counts gives it {self.counts[name]} nodes")
        for domain, count in (self.counts if isinstance(self.counts, dict) else {}).items():
            share = self.share_of(domain)
            if share is not None and share * count > 1 + 1e-9:
                raise ConfigError(
                    f"allocation: {count} nodes of {domain!r} ask for {100 * share:g} % of its training images each, "
                    f"{100 * share * count:g} % together; allowed is 100 %"
                )

    def training_domains(self, domains: tuple[str, ...]) -> tuple[str, ...]:
        """Return the domains that nodes may hold, in the order of ``domains``."""
        return tuple(domain for domain in domains if domain not in self.held_out)

    def share_of(self, domain: str) -> float | None:
        """Return a node's share of this domain, or None where nodes divide it equally."""
        share = self.share.get(domain) if isinstance(self.share, dict) else self.share
        return None if share is None or isinstance(share, str) else share

    def num_nodes(self) -> int | None:
        """Return the number of nodes that the allocation needs, or None where any number will do."""
        return sum(self.counts.values()) if isinstance(self.counts, dict) else None

    def deal(self, domains: tuple[str, ...], num_nodes: int) -> tuple[str, ...]:
        """Return the domain of each node.

        Args:
            domains: All domains of the run, in their order.
            num_nodes: Number of nodes of the federation.

        Raises:
            ConfigError: If the number of nodes does not fit.
        """
        trained = self.training_domains(domains)
        if isinstance(self.counts, dict):
            dealt = tuple(domain for domain in trained for _ in range(self.counts.get(domain, 0)))
            if num_nodes != len(dealt):
                listed = ", ".join(f"{domain} {self.counts.get(domain, 0)}" for domain in trained)
                raise ConfigError(
                    f"the allocation needs {len(dealt)} nodes ({listed}), this federation has {num_nodes}; run\n"
                    f'flwr run . --stream --federation-config "num-supernodes={len(dealt)} client-resources-num-cpus=1"'
                )
            return dealt
        if num_nodes < 2:
            raise ConfigError(f"a federation needs at least 2 nodes, found {num_nodes}")
        return tuple(trained[i % len(trained)] for i in range(num_nodes))


def node_share(
    allocation: Allocation, dealt: tuple[str, ...], index: int, num_examples: int, seed: int
) -> NDArray[np.int64]:
    """Return which of its domain's training images a node holds.

    The images of a domain are shuffled once, by ``seed``, and cut: no two nodes hold the same image.

    Args:
        allocation: The shares.
        dealt: The domain of each node, from :meth:`Allocation.deal`.
        index: The node.
        num_examples: Number of training images of its domain.
        seed: The run's seed.

    Returns:
        Indices into the domain's training images, shape (n,), ascending.

    Raises:
        DataError: If the domain has too few images.
    """
    domain = dealt[index]
    parts, part = dealt.count(domain), dealt[:index].count(domain)
    order = generator(seed, f"share-{domain}").permutation(num_examples)
    share = allocation.share_of(domain)
    if share is None:
        chosen = np.array_split(order, parts)[part]
    else:
        size = round(share * num_examples)
        if share * parts > 1 + 1e-9:
            raise DataError(
                f"{parts} nodes of {domain!r} ask for {size} training images each, {size * parts} together; "
                f"it has {num_examples}"
            )
        size = min(size, num_examples // parts)  # rounding up must not ask for more than all
        chosen = order[part * size : (part + 1) * size]
    if len(chosen) == 0:
        raise DataError(f"node {index} gets no image: domain {domain!r} has {num_examples} for {parts} nodes")
    return np.sort(chosen).astype(np.int64)
