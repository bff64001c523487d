"""Named arrays, as they travel or are stored; without Flower, which computations do not need."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of named arrays: of names, types, shapes and numbers, independent of order and layout."""
    sha256 = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha256.update(repr((name, array.dtype.str, arrays[name].shape)).encode())
        sha256.update(array.reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()
