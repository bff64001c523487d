"""NumPy arrays as tensors without a copy, tensors as arrays of their own, and copies of a model's state."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Arrays of messages and of image sets are read-only. Torch knows no such tensors and warns, once per process: whoever
# only reads needs no warning.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)
    torch.from_numpy(np.frombuffer(bytes(1), np.uint8))


def view(array: NDArray[Any]) -> Tensor:
    """Return a tensor over the memory of ``array``, which may be read-only: read from it, never write to it."""
    return torch.from_numpy(array)


def own_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers as an array in C order of its own, which stays when the tensor's memory is used again.

    Numbers of an accelerator are copied once, as they come.
    """
    array = tensor.detach().cpu().numpy()
    return array.copy() if tensor.device.type == "cpu" else np.ascontiguousarray(array)


def cloned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors by name."""
    return {name: tensor.clone() for name, tensor in state.items()}


def put(state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Write values by name into the tensors of a model's state."""
    with torch.no_grad():
        for name, value in values.items():
            state[name].copy_(value)
