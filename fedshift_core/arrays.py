"""Named arrays, as they travel or are kept. No Flower: what computes alone needs none."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of named arrays: of names, types, shapes and numbers, whatever their order and layout."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(repr((name, array.dtype.str, arrays[name].shape)).encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()
