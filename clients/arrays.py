"""From NumPy to torch without a copy."""

import warnings
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a CPU tensor over the array's own memory, to be read only.

    Arrays that come out of a message cannot be written to, of which torch warns; a tensor knows no such mark.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
