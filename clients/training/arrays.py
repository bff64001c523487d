"""NumPy arrays as tensors without a copy, and tensors as arrays of their own."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def view(array: NDArray[Any]) -> Tensor:
    """Return a tensor over the memory of ``array``, which may be read-only: read from it, never write to it.

    Arrays from a message are read-only views of its bytes. Torch knows no such tensors and warns; whoever
    only copies out of the view need no warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def own_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers as an array in C order of its own, which stays when the tensor's memory is used again.

    Numbers of an accelerator are copied once, as they come.
    """
    array = tensor.detach().cpu().numpy()
    return array.copy() if tensor.device.type == "cpu" else np.ascontiguousarray(array)
