"""Heads that the server sends in addition to the shared weights: the arrays of a classifier, by name."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import set_training
from fedshift_clients.training.node import NodeTools
from fedshift_core.params import P
from fedshift_core.wire.names import HEAD, HEADS


class HeadFirst(DomainClient[P]):
    """Trains heads alone in phases that name what trains; nothing of the body moves then.

    Statistics of BatchNorm and dropout stand still too.
    """

    def start_epoch(self, epoch: int) -> None:
        """Let the body stand still, or train."""
        set_training(self.model, freeze_batchnorm=self.setup.model.bn == "freeze")
        if self.phase.trains is not None:
            self.model.encoder.eval()


def sent_head(client: NodeTools) -> dict[str, Tensor]:
    """Return the one head that the server sent this node; empty where it sent none."""
    return _named(client, HEAD)


def sent_heads(client: NodeTools) -> list[dict[str, Tensor]]:
    """Return the heads that the server sent; none where it sent none."""
    named = _named(client, HEADS)
    number = len(next(iter(named.values()))) if named else 0
    return [{name: tensor[place] for name, tensor in named.items()} for place in range(number)]


def put(classifier: nn.Module, head: Mapping[str, Tensor]) -> None:
    """Put a head into the model."""
    state = classifier.state_dict()
    with torch.no_grad():
        for name, tensor in head.items():
            state[name].copy_(tensor)


def _named(client: NodeTools, prefix: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in client.model.classifier.state_dict():
        tensor = client.tensor(prefix + name)
        if tensor is not None:
            tensors[name] = tensor
    return tensors
