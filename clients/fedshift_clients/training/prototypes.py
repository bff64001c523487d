"""Class prototypes on the node: gathered while it trains, and as the server sends them."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedshift_clients.base import DomainClient
from fedshift_clients.training.class_means import EpochMeans as EpochMeans
from fedshift_clients.training.node import NodeTools
from fedshift_core.arrays import Arrays
from fedshift_core.methods.prototypes import PrototypeParams


def by_class(prototypes: Tensor | None, labels: Tensor | None, num_classes: int) -> tuple[Tensor, Tensor] | None:
    """Put global prototypes, one of a class, into the rows of their classes.

    Args:
        prototypes: (P, D), or None before the first round.
        labels: The class of each, (P,).
        num_classes: C.

    Returns:
        (C, D), zero for a class without one, and which classes have one (C,); None while no class has.
    """
    if prototypes is None or labels is None or not len(labels):
        return None
    dense = prototypes.new_zeros(num_classes, prototypes.shape[1])
    present = torch.zeros(num_classes, dtype=torch.bool, device=dense.device)
    dense[labels], present[labels] = prototypes, True
    return dense, present


def sent_prototypes(client: NodeTools) -> tuple[Tensor, Tensor] | None:
    """Return the global prototypes that the server sent, as :func:`by_class`."""
    return by_class(client.tensor("prototypes"), client.tensor("labels"), client.model.num_classes)


def contribution(prototypes: Tensor, counts: Tensor) -> Arrays:
    """Return class prototypes (C, D) and images per class (C,) as a node sends them."""
    return {"prototypes": prototypes.cpu().numpy(), "counts": counts.cpu().numpy()}


PrototypeP = TypeVar("PrototypeP", bound=PrototypeParams, default=Any)


class PrototypeClient(DomainClient[PrototypeP]):
    """Contributes class prototypes: of the trained model or, by ``params.proto_source``, of the last epoch.

    A method whose ``proto_source`` may be the last epoch calls :meth:`gather` in a loss of its own.
    """

    sends_prototypes: ClassVar[bool] = True

    def start_epoch(self, epoch: int) -> None:
        """Gather prototypes anew, so that the last epoch's remain."""
        self._seen = EpochMeans(self.model.num_classes, self.setup.device)

    def gather(self, features: Tensor, y: Tensor) -> None:
        """Remember what the last epoch's prototypes are made of: features (B, D) of a step, labels (B,)."""
        if self.params.proto_source == "last_epoch":
            self._seen.add(features, y)

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the class means of the node's features."""
        if self.params.proto_source != "last_epoch":
            return contribution(*self.class_prototypes())
        means, draws = self._seen.result()
        return contribution(means, self.seen_images(draws))
