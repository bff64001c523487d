"""Settings of the section ``allocation``: which nodes hold which domains, and how many of its images."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, field_validator, model_validator

from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import MOST_NODES, as_found
from fedshift_core.params import ConfigModel, Fraction, Probability
from fedshift_core.plural import plural
from fedshift_core.seeding import generator
from fedshift_core.spelling import meant
from fedshift_datasets.arrays import Indices
from fedshift_datasets.base import SPLITS, Split

#: The key of ``counts`` under which the number of all nodes is given, not that of a domain.
RANDOM = "random"
#: Keys that exclude each other where both are set; share with ``equal``, share_per and test_on with ``domain``.
_EXCLUDING = (
    ("share_per", "share", "the nodes of a domain divide a number"),
    ("share_per", "with_replacement", "the nodes of a domain divide a share"),
    ("with_replacement", "share", "equal divides every image once; give a number"),
    ("with_replacement", "label_skew", "skewed parts are disjoint"),
    ("last_takes_rest", "share", "equal leaves no rest; give a number"),
    ("last_takes_rest", "with_replacement", "nodes draw one after the other"),
    ("last_takes_rest", "label_skew", "nodes draw one after the other"),
    ("last_takes_rest", "share_per", "the nodes divide a share equally"),
    ("test_on", "test_fraction", "a node's own test set is the test"),
    ("mixing", "test_fraction", "a test set cut from a node's images is of one domain"),
    ("with_replacement", "test_fraction", "other nodes may train on images of a node's own test set"),
    ("with_replacement", "mixing", "a node may get an image from the mixture that it holds already"),
)


class Allocation(ConfigModel):
    """How nodes and images are dealt in simulation. A real node brings its own images instead."""

    counts: Literal["any"] | Annotated[dict[str, int], AfterValidator(FrozenDict)] = "any"
    """Nodes per domain; any: domains are dealt in turn to as many nodes as there are; {random: N}: N nodes, at least
    one a domain, the rest by the seed.
    """
    share: Literal["equal"] | float | Annotated[dict[str, float], AfterValidator(FrozenDict)] = "equal"
    """Share of a domain's training images, above 0 and at most 1, that each node draws: one number, one for each domain
    that has nodes, or equal to divide all images.
    """
    #: down: as ``int`` does in the code of FPL and F2DC.
    rounding: Literal["nearest", "down"] = "nearest"
    """How a share becomes a whole number of images: to the nearest, or down."""
    share_per: Literal["node", "domain"] = "node"
    """Whose share it is: each node's, or that of all nodes of the domain together, who divide it equally."""
    with_replacement: bool = False
    """Whether each node draws its share from the whole domain, so that several nodes may hold an image."""
    #: The code of FPL and F2DC: of four nodes at 30 % the last gets 10 %.
    last_takes_rest: bool = False
    """Whether the last node of a domain takes what is left where that is less than its share."""
    #: FPL's and F2DC's code.
    class_coverage: bool = False
    """Whether images are swapped until every node holds each class at least once."""
    label_skew: float | None = Field(None, gt=0, le=1e6)
    """Concentration of the Dirichlet distribution that spreads each class of a domain over its nodes; null: no skew."""
    #: Above 0, nodes divide all images of a domain, those of its test split too (FedCode); classes in proportion.
    test_fraction: Fraction = 0.0
    """Share of a node's images that is its own test set; 0: the domain's test split is the test."""
    #: Classes in proportion. A site with images of a split validation takes those instead, all of them, where this is
    #: above 0; else they stay unused.
    validation_fraction: Fraction = 0.0
    """Share of a node's training images that is set aside to choose a round by; 0: none."""
    #: domain: the lists that the code of I2PFL's first author tests PACS on.
    test_on: Literal["split", "domain"] = "split"
    """Test images of a domain: its test split, or in simulation all its images (domain)."""
    #: FedDG_Benchmark's lambda (``fedshift_datasets.partition.shares``).
    mixing: Probability = 0.0
    """Part of each node's images that it changes for images of the common mixture of all domains: 0: one domain a node;
    1: the same mixture everywhere. In simulation.
    """
    domain_labels: Literal["known", "unknown"] = "known"
    """Whether a node with images of several domains knows the domain of each image; terms over domains within a node
    need it.
    """
    held_out: tuple[str, ...] = ()
    """Domains that no node holds and that are scored all the same (leave-one-domain-out); empty: none."""

    @field_validator("counts", mode="before")
    @classmethod
    def _any_or_counts(cls, counts: Any) -> Any:
        numbers = counts.values() if isinstance(counts, dict) else ()
        if counts != "any" and not (numbers and all(type(n) is int and n >= 0 for n in numbers) and any(numbers)):
            raise ValueError(
                "expected any, or nodes per domain such as {photo: 2, sketch: 3}, or {random: 10} for 10 nodes in all, "
                f"found {as_found(counts)}"
            )
        if isinstance(counts, dict) and RANDOM in counts and len(counts) > 1:
            raise ValueError(f"{RANDOM} is the number of all nodes and stands alone, found {as_found(counts)}")
        if sum(numbers) > MOST_NODES:
            raise ValueError(f"expected at most {MOST_NODES} nodes in all, found {as_found(counts)}")
        return counts

    @field_validator("share", mode="before")
    @classmethod
    def _equal_or_shares(cls, share: Any) -> Any:
        numbers = list(share.values()) if isinstance(share, dict) else [share]
        in_range = all(type(n) in (int, float) and 0 < n <= 1 for n in numbers)
        if share != "equal" and not (numbers and in_range):
            raise ValueError(
                "expected equal, a number above 0 and at most 1, or one per domain such as {photo: 0.3}, "
                f"found {as_found(share)}"
            )
        return share

    @model_validator(mode="after")
    def _have_no_excluding_keys(self) -> "Allocation":
        on = {
            key
            for key in ("with_replacement", "last_takes_rest", "label_skew", "mixing", "test_fraction")
            if getattr(self, key)
        }
        on |= {
            key
            for key, value in (("share", "equal"), ("share_per", "domain"), ("test_on", "domain"))
            if getattr(self, key) == value
        }
        for one, other, why in _EXCLUDING:
            if {one, other} <= on:
                found = ", ".join(f"{key}={str(getattr(self, key)).lower()}" for key in (one, other))
                raise ValueError(f"{one} and {other} exclude each other: {why}; found {found}")
        return self

    def check(self, domains: tuple[str, ...]) -> None:
        """Check the allocation against the domains of the run.

        Raises:
            ConfigError: For an unknown domain, or one that is asked for more than it has.
        """
        shares = tuple(self.share) if isinstance(self.share, dict) else ()
        for key, names in (("held_out", self.held_out), ("counts", tuple(self._by_domain)), ("share", shares)):
            for name in names:
                if name not in domains:
                    raise ConfigError(
                        f"allocation.{key} names {as_found(name)}; the domains are {', '.join(domains)}"
                        f"{meant(name, domains)}",
                        keys=(("allocation", key, name),),
                    )
        trained = self.training_domains(domains)
        if not trained:
            raise ConfigError("allocation.held_out leaves no domain to train on")
        total = self._random_total
        if total is not None and total < len(trained):
            raise ConfigError(
                f"allocation.counts: {plural(total, 'node is', 'nodes are')} too few for one on each of the "
                f"{plural(len(trained), 'domain')} {', '.join(trained)}"
            )
        self._check_counts()

    def _check_counts(self) -> None:
        """Refuse nodes of a domain that is held out, or that has not enough for them."""
        for domain, count in self._by_domain.items():
            if domain in self.held_out and count > 0:
                raise ConfigError(f"allocation: {domain!r} is held out, but counts gives it {plural(count, 'node')}")
            share = self.share_of(domain)
            if share is None or self.with_replacement or self.share_per == "domain":
                continue
            if self.last_takes_rest and share * (count - 1) >= 1 - 1e-9:
                raise ConfigError(
                    f"allocation: {plural(count - 1, 'node')} of {domain!r} with {100 * share:g} % of its "
                    "training images each "
                    f"leave nothing for the last of {count}; allowed are fewer nodes, or a smaller share"
                )
            if not self.last_takes_rest and share * count > 1 + 1e-9:
                raise ConfigError(
                    f"allocation: {count} nodes of {domain!r} ask for {100 * share:g} % of its training images each, "
                    f"{100 * share * count:g} % together; allowed is 100 %, with_replacement or last_takes_rest"
                )

    @property
    def _by_domain(self) -> dict[str, int]:
        """The configured nodes per domain; empty where none are."""
        return self.counts if isinstance(self.counts, dict) and RANDOM not in self.counts else {}

    @property
    def _random_total(self) -> int | None:
        """The number of nodes whose domains are drawn, or None where they are not."""
        return self.counts.get(RANDOM) if isinstance(self.counts, dict) else None

    @property
    def pool(self) -> tuple[Split, ...]:
        """The splits of a domain, one after the other, whose images its nodes divide."""
        return SPLITS if self.test_fraction > 0 else ("train",)

    def reads(self, domain: str) -> tuple[Split, ...]:
        """Return the splits of a domain that a run reads: of one that no node holds, those that are its test."""
        return ("test",) if domain in self.held_out and self.test_on == "split" else SPLITS

    def training_domains(self, domains: tuple[str, ...]) -> tuple[str, ...]:
        """Return the domains that nodes may hold, in the order of ``domains``."""
        return tuple(domain for domain in domains if domain not in self.held_out)

    def held_domains(self, domains: tuple[str, ...]) -> tuple[str, ...]:
        """Return the training domains that have a node, in the order of ``domains``."""
        counts = self._by_domain
        return tuple(domain for domain in self.training_domains(domains) if not counts or counts.get(domain, 0) > 0)

    def share_of(self, domain: str) -> float | None:
        """Return the share of this domain (``share_per`` says whose), or None where nodes divide all of it equally."""
        share = self.share.get(domain) if isinstance(self.share, dict) else self.share
        return None if share is None or isinstance(share, str) else share

    @property
    def lacking(self) -> str:
        """What the section lacks for nodes to have validation parts; empty where they have some."""
        return "" if self.validation_fraction else "allocation.validation_fraction above 0, found 0"

    def fraction_of(self, part: Literal["test", "validation"]) -> float:
        """Return the share of a node's images that is set aside for a part."""
        return self.test_fraction if part == "test" else self.validation_fraction

    def cut(self, given: Indices | None) -> "Allocation":
        """Return the allocation of a domain with labels ``given`` of images to validate on: nothing else is set aside.

        With None, for a domain without such images, it is the same.
        """
        return self if given is None else self.model_copy(update={"validation_fraction": 0.0})

    def size_of(self, share: float, num_examples: int) -> int:
        """Return how many images a share of ``num_examples`` is."""
        return int(share * num_examples) if self.rounding == "down" else round(share * num_examples)

    def num_nodes(self) -> int | None:
        """Return the number of nodes that the allocation needs, or None where any number will do."""
        return sum(self.counts.values()) if isinstance(self.counts, dict) else None

    def deal(self, domains: tuple[str, ...], num_nodes: int, seed: int) -> tuple[str, ...]:
        """Return the domain of each node.

        Args:
            domains: All domains of the run, in their order.
            num_nodes: Number of nodes of the federation.
            seed: The run's seed.

        Raises:
            ConfigError: If the number of nodes does not fit.
        """
        trained = self.training_domains(domains)
        if num_nodes > MOST_NODES:
            raise ConfigError(f"a federation has at most {MOST_NODES} nodes, found {as_found(num_nodes)}")
        if self.counts == "any":
            if num_nodes < 2:
                raise ConfigError(f"a federation needs at least 2 nodes, found {as_found(num_nodes)}")
            return tuple(trained[i % len(trained)] for i in range(num_nodes))
        counts = self._drawn_counts(trained, seed)
        dealt = tuple(domain for domain in trained for _ in range(counts.get(domain, 0)))
        if num_nodes != len(dealt):
            listed = ", ".join(f"{domain} {counts.get(domain, 0)}" for domain in trained)
            raise ConfigError(
                f"the allocation needs {plural(len(dealt), 'node')} ({listed}), this federation has {num_nodes}; "
                f"leave nodes= out, give nodes={len(dealt)}, or change allocation.counts"
            )
        return dealt

    def _drawn_counts(self, trained: tuple[str, ...], seed: int) -> dict[str, int]:
        """Return the nodes of each domain: as configured, or one each and the others drawn."""
        if self._random_total is None:
            return self._by_domain
        others = self._random_total - len(trained)
        drawn = generator(seed, "node-counts").multinomial(others, np.full(len(trained), 1 / len(trained)))
        return {domain: 1 + int(more) for domain, more in zip(trained, drawn, strict=True)}
