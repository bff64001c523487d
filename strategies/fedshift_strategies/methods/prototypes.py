"""Class prototypes of many nodes: stacking, averaging, clustering, and the base of strategies that merge them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedshift_core.clustering import finch_groups
from fedshift_core.errors import FederationError
from fedshift_core.params import P
from fedshift_strategies.method import Arrays, DomainStrategy, Shape, Sum, Update

FloatArray = NDArray[np.float32]
#: One of each class, as nodes contribute them.
PROTOTYPES: dict[str, Shape] = {"prototypes": ("C", "D"), "counts": ("C",)}


def stack_prototypes(updates: Sequence[Update]) -> tuple[FloatArray, NDArray[np.int64]]:
    """Stack ``prototypes`` to (M, C, D) and ``counts`` to (M, C), in the order given."""
    prototypes, counts = (np.stack([each.knowledge[name] for each in updates]) for name in PROTOTYPES)
    return prototypes, counts


def uploaded(p: FloatArray, counts: NDArray[np.int64]) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the prototypes that nodes hold one after another, node by node, each with its class.

    Args:
        p: Local prototypes, (M, C, D), float32.
        counts: Images behind each, (M, C).

    Returns:
        Prototypes (U, D) and the class of each, (U,).
    """
    node, label = np.nonzero(counts)
    return p[node, label], label.astype(np.int64)


def minibatches(rng: np.random.Generator, epochs: int, number: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the places of ``number`` things, ``size`` at a time, in a random order for each of so many epochs.

    The last ones of an epoch may be fewer.
    """
    for _ in range(epochs):
        order = rng.permutation(number)
        for start in range(0, number, size):
            yield order[start : start + size]


def as_kept(trained: Arrays, server_round: int, rate: float) -> Arrays:
    """Return what the server has trained as it is kept and sent, float32.

    Args:
        trained: By name, float64.
        server_round: The round, for the message.
        rate: ``method.server_lr``, likewise.

    Raises:
        FederationError: If a number is not finite.
    """
    with np.errstate(over="ignore"):
        kept = {name: array.astype(np.float32) for name, array in trained.items()}
    if not all(np.isfinite(array).all() for array in kept.values()):
        raise FederationError(
            f"round {server_round}: what the server trains has come to numbers that are not finite: "
            f"method.server_lr={rate:g} is too large"
        )
    return kept


def mean_prototypes(p: FloatArray, holds: NDArray[np.bool_]) -> tuple[FloatArray, NDArray[np.bool_]]:
    r"""Average over the nodes that hold a class: :math:`\mu^k=\frac1M\sum_mp_m^k` (Eq. 3).

    Args:
        p: Local prototypes, (M, C, D), float32.
        holds: Whether node m holds class k, (M, C).

    Returns:
        mu, (C, D), and a mask (C,) that is False where no node holds the class.
    """
    number = holds.sum(axis=0)  # C
    total = np.where(holds[:, :, None], p, 0).sum(axis=0, dtype=np.float64)  # C x D
    return (total / np.maximum(number, 1)[:, None]).astype(np.float32), number > 0


def weighted_prototypes(
    p: NDArray[np.floating[Any]], counts: NDArray[np.int64]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    r"""Average prototypes by images of the class: :math:`G^k=\sum_n\frac{|D_n^k|}{\sum_m|D_m^k|}p_n^k`.

    This is the mean feature over all images of the class in the federation.

    Args:
        p: Local prototypes, (N, C, D).
        counts: Images behind each, (N, C), int64.

    Returns:
        G, (C, D), and a mask (C,) that is False where no node holds the class.
    """
    total = counts.sum(axis=0)  # C
    g = np.einsum("nc,ncd->cd", counts / np.maximum(total, 1), p.astype(np.float64))
    return g.astype(np.float32), total > 0


def one_per_class(prototypes: FloatArray, held: NDArray[np.bool_], past: Arrays) -> Arrays:
    """As :func:`keep_absent_classes`, of one prototype per class.

    Args:
        prototypes: This round's, (C, D).
        held: The classes that have one, (C,).
        past: Knowledge of the round before.
    """
    labels = np.flatnonzero(held).astype(np.int64)
    return keep_absent_classes(prototypes[labels], labels, past)


def keep_absent_classes(prototypes: FloatArray, labels: NDArray[np.int64], past: Arrays) -> Arrays:
    """Add the past prototypes of classes that have none now, because no node of this round holds them.

    Args:
        prototypes: This round's, (P, D), one or several of a class.
        labels: The class of each, (P,).
        past: Knowledge of the round before, with ``prototypes`` and ``labels``, or empty.

    Returns:
        ``prototypes`` and ``labels``, in the order of the classes.
    """
    if "labels" in past:
        old = ~np.isin(past["labels"], labels)
        prototypes = np.concatenate([prototypes, past["prototypes"][old]])
        labels = np.concatenate([labels, past["labels"][old]])
    order = np.argsort(labels, kind="stable")
    return {"prototypes": prototypes[order], "labels": labels[order]}


def cluster_means(
    prototypes: FloatArray, labels: NDArray[np.int64], *, early_exit: bool = True, dtype: type[Any] = np.float32
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Cluster the prototypes of each class by FINCH (cosine, coarsest partition), by default as FPL does.

    Args:
        prototypes: (P, D), float32.
        labels: The class of each, (P,).
        early_exit: As of :func:`fedshift_core.clustering.finch_groups`.
        dtype: Format in which the means are summed.

    Returns:
        The means of the clusters (Q, D), and the class of each (Q,).
    """
    means: list[FloatArray] = [np.zeros((0, prototypes.shape[1]), np.float32)]
    classes: list[int] = []
    for k in np.unique(labels).tolist():
        members = prototypes[labels == k]
        for cluster in finch_groups(members, early_exit=early_exit):
            means.append(members[cluster].mean(axis=0, dtype=dtype).astype(np.float32)[None])
            classes.append(k)
    return np.concatenate(means), np.array(classes, dtype=np.int64)


#: Of class prototypes, how they are sums over nodes (``DomainStrategy.sums``): each image counts the same, or each node
#: that holds the class.
BY_IMAGES: Mapping[str, Sum] = {"prototypes": "images", "counts": "images"}
BY_NODES: Mapping[str, Sum] = {"prototypes": "nodes", "counts": "nodes"}


class PrototypeStrategy(DomainStrategy[P]):
    """FedAvg that takes class prototypes and nothing else from the nodes, and sends them global ones."""

    contributes = PROTOTYPES
    sends: ClassVar[tuple[str, ...]] = ("prototypes", "labels")

    @classmethod
    def sums(cls, params: P) -> Mapping[str, Sum]:
        """Return that each node that holds a class counts the same, where prototypes are averaged."""
        rules = ((kind.merge_knowledge, kind.merge_prototypes) for kind in (cls, PrototypeStrategy))
        return BY_NODES if next(rules) == next(rules) else cls.summed

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Merge the prototypes of this round."""
        self.knowledge = self.merge_prototypes(*stack_prototypes(updates))

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Return what nodes are sent; by default the mean over those that hold a class, or its past prototype.

        Args:
            p: Local prototypes, (N, C, D).
            counts: Images behind each, (N, C).
        """
        return one_per_class(*mean_prototypes(p, counts > 0), self.knowledge)
