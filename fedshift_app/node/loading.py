"""Shared weights as a node's model takes them: by name, shape and type, with finite numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift_clients.base import DomainClient
from fedshift_core.arrays import Arrays
from fedshift_core.errors import RequestError
from fedshift_core.limits import largest


def in_order(arrays: Arrays, client: DomainClient, whose: str) -> list[NDArray[Any]]:
    """Return shared arrays, which may only be read, in the order of the client's model.

    Args:
        arrays: By name; those of a checkpoint have what is frozen too, which is passed over.
        client: Whose model they are for.
        whose: Where they are from, for the message.

    Raises:
        RequestError: If their names, shapes or types are not the model's, or a number is not finite.
    """
    if strange := sorted((set(arrays) - client.shared_frozen) ^ set(client.shared_names)):
        raise RequestError(f"{whose} weights do not match this node's model: {', '.join(strange[:3])}")
    check_arrays({name: arrays[name] for name in client.shared_names}, client.state, whose)
    return [arrays[name] for name in client.shared_names]


def check_arrays(arrays: Arrays, state: Mapping[str, torch.Tensor], whose: str) -> None:
    """Refuse arrays of other shapes and types than the model's state, or with numbers that are not finite.

    Raises:
        RequestError: With the first.
    """
    for name, array in arrays.items():
        wanted = (tuple(state[name].shape), str(state[name].dtype).removeprefix("torch."))
        if (array.shape, str(array.dtype)) != wanted:
            raise RequestError(
                f"{whose} {name} has shape {array.shape} and type {array.dtype}, "
                f"this node's model has {wanted[0]} and {wanted[1]}"
            )
        if not np.isfinite(largest(array)):
            raise RequestError(f"{whose} {name} holds numbers that are not finite")


def load(arrays: Arrays, client: DomainClient, whose: str, server_round: int = 0) -> None:
    """Put shared arrays into the client's model, and its private parts with them, as before a score; score nothing.

    Args:
        arrays: By name.
        client: Whose model they are for.
        whose: Where they are from, for the message.
        server_round: The round they are of.

    Raises:
        RequestError: As :func:`in_order`.
    """
    client.server_round = server_round
    with client.own_draws("scores", server_round):
        client.take(in_order(arrays, client, whose))
