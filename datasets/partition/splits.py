"""Which node holds which domain, and which of its images it trains, validates and tests on."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from datasets.base import SPLITS, Split
from datasets.partition import shares as shares_module
from datasets.partition.shares import Indices
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import MOST_NODES, as_found
from fedshift_core.seeding import generator
from fedshift_core.spelling import meant

#: The key of ``counts`` under which the number of all nodes is given, not that of a domain.
RANDOM = "random"


class Allocation(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How nodes and images are dealt in simulation. A real node brings its own images instead."""

    counts: Literal["any"] | Annotated[dict[str, int], AfterValidator(FrozenDict)] = Field(
        "any",
        description="Nodes per domain; any: domains are dealt in turn to as many nodes as there are; {random: N}: N "
        "nodes, at least one a domain, the rest by the seed.",
    )
    share: Literal["equal"] | float | Annotated[dict[str, float], AfterValidator(FrozenDict)] = Field(
        "equal",
        description="Share of a domain's training images, above 0 and at most 1, that each node draws: one number, "
        "one per domain, or equal to divide all images.",
    )
    #: down: as ``int`` does in the code of FPL and F2DC.
    rounding: Literal["nearest", "down"] = Field(
        "nearest", description="How a share becomes a whole number of images: to the nearest, or down."
    )
    share_per: Literal["node", "domain"] = Field(
        "node",
        description="Whose share it is: each node's, or that of all nodes of the domain together, who"
        " divide it equally.",
    )
    with_replacement: bool = Field(
        False,
        description="Whether each node draws its share from the whole domain, so that several nodes may hold an image.",
    )
    #: The code of FPL and F2DC: of four nodes at 30 % the last gets 10 %.
    last_takes_rest: bool = Field(
        False, description="Whether the last node of a domain takes what is left where that is less than its share."
    )
    #: FPL's and F2DC's code.
    class_coverage: bool = Field(
        False, description="Whether images are swapped until every node holds each class at least once."
    )
    label_skew: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Concentration of the Dirichlet distribution that spreads each class of a domain "
        "over its nodes; null: no skew.",
    )
    #: Above 0, nodes divide all images of a domain, those of its test split too (FedCode); classes in proportion.
    test_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of a node's images that is its own test set; 0: the domain's test split is the test.",
    )
    #: Classes in proportion. A site with images of a split validation takes those instead, all of them, where this is
    #: above 0; else they stay unused.
    validation_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of a node's training images that is set aside to choose a round by; 0: none.",
    )
    #: domain: the lists that the code of I2PFL's first author tests PACS on.
    test_on: Literal["split", "domain"] = Field(
        "split", description="Test images of a domain: its test split, or in simulation all its images (domain)."
    )
    held_out: tuple[str, ...] = Field(
        (),
        description="Domains that no node holds and that are scored all the same (leave-one-domain-out); empty: none.",
    )

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
    def _divided_share_is_a_number(self) -> "Allocation":
        if self.share_per == "domain" and (self.share == "equal" or self.with_replacement):
            raise ValueError(
                "share_per=domain needs a number under share, which the nodes of a domain divide, and with_replacement="
                f"false; found share={as_found(self.share)}, with_replacement={str(self.with_replacement).lower()}"
            )
        return self

    @model_validator(mode="after")
    def _replacement_needs_a_share(self) -> "Allocation":
        if self.with_replacement and self.share == "equal":
            raise ValueError("with_replacement needs a number under share; equal divides every image once")
        if self.with_replacement and self.label_skew is not None:
            raise ValueError("with_replacement and label_skew exclude each other: skewed parts are disjoint")
        return self

    @model_validator(mode="after")
    def _rest_needs_a_share(self) -> "Allocation":
        if self.last_takes_rest and self.share == "equal":
            raise ValueError("last_takes_rest needs a number under share; equal leaves no rest")
        for key in ("with_replacement", "label_skew"):
            if self.last_takes_rest and getattr(self, key):
                raise ValueError(f"last_takes_rest and {key} exclude each other: nodes draw one after the other")
        if self.last_takes_rest and self.share_per == "domain":
            raise ValueError(
                "last_takes_rest and share_per=domain exclude each other: the nodes divide a share equally"
            )
        return self

    @model_validator(mode="after")
    def _one_kind_of_test(self) -> "Allocation":
        if self.test_on == "domain" and self.test_fraction > 0:
            raise ValueError("test_on=domain and test_fraction exclude each other: a node's own test set is the test")
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
                f"allocation.counts: {total} nodes are too few for one on each of the {len(trained)} domains "
                f"{', '.join(trained)}"
            )
        self._check_counts()

    def _check_counts(self) -> None:
        """Refuse nodes of a domain that is held out, or that has not enough for them."""
        for domain, count in self._by_domain.items():
            if domain in self.held_out and count > 0:
                raise ConfigError(f"allocation: {domain!r} is held out, but counts gives it {count} nodes")
            share = self.share_of(domain)
            if share is None or self.with_replacement or self.share_per == "domain":
                continue
            if self.last_takes_rest and share * (count - 1) >= 1 - 1e-9:
                raise ConfigError(
                    f"allocation: {count - 1} nodes of {domain!r} with {100 * share:g} % of its training images each "
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

    def share_of(self, domain: str) -> float | None:
        """Return the share of this domain (``share_per`` says whose), or None where nodes divide all of it equally."""
        share = self.share.get(domain) if isinstance(self.share, dict) else self.share
        return None if share is None or isinstance(share, str) else share

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
                f"the allocation needs {len(dealt)} nodes ({listed}), this federation has {num_nodes}; run\n"
                f'flwr run . --stream --federation-config "num-supernodes={len(dealt)} client-resources-num-cpus=1"'
            )
        return dealt

    def _drawn_counts(self, trained: tuple[str, ...], seed: int) -> dict[str, int]:
        """Return the nodes of each domain: as configured, or one each and the others drawn."""
        if self._random_total is None:
            return self._by_domain
        others = self._random_total - len(trained)
        drawn = generator(seed, "node-counts").multinomial(others, np.full(len(trained), 1 / len(trained)))
        return {domain: 1 + int(more) for domain, more in zip(trained, drawn, strict=True)}


@dataclass(frozen=True)
class Parts:
    """Which images of its domain a node holds: indices (n,), int64, ascending; no image is in two parts.

    Attributes:
        train: Images to train on, at least one.
        validation: Images to choose a round by; empty if ``validation_fraction`` is 0.
        test: The node's own test set; empty if ``test_fraction`` is 0: it is tested on its domain's test split.
    """

    train: Indices
    validation: Indices
    test: Indices


def public_part(domain: str, labels: Indices, share: float, seed: int) -> Indices:
    """Return which images of a domain belong to the public set (``dataset.public``), and so to no node.

    They are the end of the order in which nodes draw from the front, so that a node holds the same images with a public
    set as without one, where there are enough.

    Args:
        domain: Its name.
        labels: Labels of the images that its nodes divide, shape (N,).
        share: The part of them that is public, above 0 and below 1.
        seed: The run's seed.

    Returns:
        Indices (n,), int64, ascending.

    Raises:
        DataError: If that is no image, or all of them.
    """
    size = round(share * len(labels))
    if not 0 < size < len(labels):
        raise DataError(
            f"dataset.public={share:g}: of the {len(labels)} images of {domain!r} that is {size}; at least one must be "
            "public, and one left for a node"
        )
    return np.sort(_order(domain, len(labels), seed)[len(labels) - size :])


def _order(domain: str, number: int, seed: int) -> Indices:
    """Return the order in which the nodes of a domain draw from it."""
    return generator(seed, f"share-{domain}").permutation(number)


def node_parts(
    allocation: Allocation, dealt: tuple[str, ...], index: int, labels: Indices, num_classes: int, seed: int,
    public: float = 0.0,
) -> Parts:  # fmt: skip
    """Return which of its domain's images a node holds.

    The images of a domain are shuffled once, by ``seed``, and cut: no two nodes hold the same image,
    unless they draw with replacement.

    Args:
        allocation: The shares.
        dealt: The domain of each node, from :meth:`Allocation.deal`.
        index: The node.
        labels: Labels of the images that the domain's nodes divide, shape (N,): of its training split, or,
            where :attr:`Allocation.pool` says so, of its training and then its test split.
        num_classes: Number of classes of the data set.
        seed: The run's seed.
        public: Which share of them is public (:func:`public_part`); 0 for none.

    Raises:
        DataError: If the domain has too few images.
    """
    domain = dealt[index]
    holdings = _holdings(allocation, domain, dealt.count(domain), labels, num_classes, seed, public)
    return _parts_of(allocation, domain, holdings, dealt[:index].count(domain), index, labels, seed)


def domain_parts(
    allocation: Allocation, dealt: tuple[str, ...], domain: str, labels: Indices, num_classes: int, seed: int,
    public: float = 0.0,
) -> dict[int, Parts]:  # fmt: skip
    """Return what each node of a domain holds, by its index; arguments and errors as for :func:`node_parts`."""
    nodes = [index for index, held in enumerate(dealt) if held == domain]
    holdings = _holdings(allocation, domain, len(nodes), labels, num_classes, seed, public)
    return {
        index: _parts_of(allocation, domain, holdings, place, index, labels, seed) for place, index in enumerate(nodes)
    }


def _parts_of(
    allocation: Allocation, domain: str, holdings: list[Indices], place: int, index: int, labels: Indices, seed: int
) -> Parts:
    """Divide what one node holds, the ``place``-th of its domain, into its parts."""
    held, nodes = holdings[place], len(holdings)
    if len(held) == 0:
        raise DataError(f"node {index} gets no image: domain {domain!r} has {len(labels)} for {nodes} nodes")
    train, test = _cut(allocation, "test", held, index, labels, seed)
    train, validation = _cut(allocation, "validation", train, index, labels, seed)
    return Parts(train, validation, test)


def mixed_test(dealt: tuple[str, ...], index: int, domain: str, mix: Indices, labels: Indices, seed: int) -> Indices:
    """Return which test images of a domain a node is scored on where their labels follow its training labels.

    All nodes get equally many, so that the accuracy over all of them is the mean of the nodes' accuracies: the
    domain's test images divided by the nodes that answer for it, at least one. Those are the nodes of the
    domain, or, where no node holds it, all. Each node draws for itself.

    Args:
        dealt: The domain of each node, from :meth:`Allocation.deal`.
        index: The node.
        domain: Whose test images.
        mix: How many images of each class the node holds, shape (C,).
        labels: Labels of the domain's test images, shape (N,).
        seed: The run's seed.

    Returns:
        Indices into the test images, shape (n,), int64, ascending; some twice where a class runs out.

    Raises:
        DataError: If the domain has no test image of a class that the node is to get.
    """
    size = max(1, len(labels) // (dealt.count(domain) or len(dealt)))
    where = f"shift.label_mix=own: node {index} on the test images of {domain!r}"
    return shares_module.draw_mix(labels, mix, size, generator(seed, f"label-mix-{domain}", index), where)


def _holdings(
    allocation: Allocation, domain: str, nodes: int, labels: Indices, num_classes: int, seed: int, public: float
) -> list[Indices]:
    """Return what each node of a domain holds."""
    share = allocation.share_of(domain)
    aside = public_part(domain, labels, public, seed) if public else labels[:0]
    if public and share is not None:
        _check_left(allocation, domain, nodes, share, public)
    if share is not None and allocation.with_replacement:
        draws = [generator(seed, f"own-share-{domain}", part).permutation(len(labels)) for part in range(nodes)]
        draws = [order[~np.isin(order, aside)] for order in draws] if public else draws
        size = allocation.size_of(share, len(labels))
        if not allocation.class_coverage:
            return [order[:size] for order in draws]
        return [
            shares_module.cover_classes([order[:size]], order[size:], labels, num_classes, domain)[0] for order in draws
        ]
    order = _order(domain, len(labels), seed)[: len(labels) - len(aside)]
    sizes = _sizes(allocation, domain, nodes, len(labels), len(order))
    chosen, spare = order[: sum(sizes)], order[sum(sizes) :]
    if allocation.label_skew is None:
        parts = np.split(chosen, np.cumsum(sizes)[:-1])
    else:
        rng = generator(seed, f"label-skew-{domain}")
        parts = shares_module.skew_labels(chosen, labels, nodes, allocation.label_skew, rng)
    return (
        shares_module.cover_classes(parts, spare, labels, num_classes, domain) if allocation.class_coverage else parts
    )


def _check_left(allocation: Allocation, domain: str, nodes: int, share: float, public: float) -> None:
    """Refuse nodes that ask for more than a public set leaves; a last node that takes the rest takes what is there."""
    times = 1 if allocation.with_replacement or allocation.share_per == "domain" else nodes
    if not allocation.last_takes_rest and share * times + public > 1 + 1e-9:
        raise DataError(
            f"{times} times {100 * share:g} % of {domain!r} (allocation.share) and {100 * public:g} % for all "
            "(dataset.public) are more than there is; allowed is 100 % together"
        )


def _sizes(allocation: Allocation, domain: str, nodes: int, num_examples: int, left: int) -> list[int]:
    """Return how many of a domain's images each of its nodes gets, all different; ``left`` are not public."""
    share = allocation.share_of(domain)
    if share is None or allocation.share_per == "domain":
        together = left if share is None else min(allocation.size_of(share, num_examples), left)
        each, more = divmod(together, nodes)
        return [each + 1] * more + [each] * (nodes - more)
    size = allocation.size_of(share, num_examples)
    if allocation.last_takes_rest:
        return [max(0, min(size, left - place * size)) for place in range(nodes)]
    if share * nodes > 1 + 1e-9:
        raise DataError(
            f"{nodes} nodes of {domain!r} ask for {size} training images each, {size * nodes} together; "
            f"it has {num_examples}; allowed is less, allocation.with_replacement or allocation.last_takes_rest"
        )
    return [min(size, left // nodes)] * nodes  # rounding up must not ask for more than all


def _cut(
    allocation: Allocation, part: Literal["test", "validation"], images: Indices, index: int, labels: Indices, seed: int
) -> tuple[Indices, Indices]:
    """Cut the configured part from a node's images.

    Raises:
        DataError: If nothing can be cut off that should be.
    """
    fraction = allocation.test_fraction if part == "test" else allocation.validation_fraction
    rest, off = shares_module.cut(images, labels, fraction, generator(seed, f"{part}-part", index))
    if fraction > 0 and len(off) == 0:
        raise DataError(
            f"allocation.{part}_fraction: node {index} holds {len(images)} images with no class twice, "
            f"so none can be set aside for {part}"
        )
    return rest, off
