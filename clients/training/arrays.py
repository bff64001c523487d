"""NumPy arrays as tensors without a copy."""

import warnings
from typing import Any

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
