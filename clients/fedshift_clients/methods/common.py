"""Tools of several methods: parts of a model, a node's memory, and arrays that the server sent."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from fedshift_clients.training import precision
from fedshift_clients.training.arrays import own_array, view
from fedshift_clients.training.node import NodeTools


def autocast(client: NodeTools) -> AbstractContextManager[object]:
    """Return what holds while a network runs under the configured precision, as ``client.forward`` has it."""
    return precision.autocast(client.setup.train.precision, client.setup.device)


def names_of(model: nn.Module, starts: str | tuple[str, ...]) -> frozenset[str]:
    """Return the state-dict names of a model that begin with one of some starts."""
    return frozenset(name for name in model.state_dict() if name.startswith(starts))


@torch.no_grad()
def put(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put weights and buffers into a module, by state-dict name."""
    state = module.state_dict()
    for name, tensor in values.items():
        state[name].copy_(tensor)


def keep(client: NodeTools, prefix: str, values: Mapping[str, Tensor]) -> None:
    """Keep tensors in a node's memory, each as an array of its own under a prefix and its name."""
    client.memory.update({prefix + name: own_array(tensor) for name, tensor in values.items()})


def kept(client: NodeTools, prefix: str, names: Iterable[str]) -> dict[str, Tensor]:
    """Return those of some tensors that :func:`keep` has left in a node's memory, on the CPU: read from them only."""
    return {name: view(client.memory[prefix + name]) for name in names if prefix + name in client.memory}


def sent(client: NodeTools, prefix: str) -> dict[str, Tensor]:
    """Return the arrays under a prefix that the server sent, on the device, by the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name in client.knowledge
        if name.startswith(prefix) and (tensor := client.tensor(name)) is not None
    }


def labelled_prototypes(client: NodeTools) -> tuple[Tensor, Tensor] | None:
    """Return the global prototypes (P, D) that the server sent, and the class of each (P,); None where it sent none."""
    prototypes, labels = client.tensor("prototypes"), client.tensor("labels")
    return None if prototypes is None or labels is None else (prototypes, labels)
