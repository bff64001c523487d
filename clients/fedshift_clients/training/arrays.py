"""NumPy arrays as tensors without a copy, and tensors as arrays of their own."""

import warnings
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
