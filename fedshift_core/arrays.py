"""Named arrays, as they travel or are stored; without Flower, which computations do not need."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.errors import FedShiftError
from fedshift_core.limits import as_found

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def check_kept(kept: Mapping[Any, Any], where: str) -> None:
    """Refuse anything but named NumPy arrays of booleans or numbers.

    Args:
        kept: What a method keeps.
        where: The attribute that holds it, such as ``self.memory``.

    Raises:
        FedShiftError: With the key.
    """
    for name, array in kept.items():
        if isinstance(name, str) and isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "biuf":
            continue
        kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise FedShiftError(
            f"{where}[{as_found(name)}] is {kind}; expected a text as key and a NumPy array of booleans or numbers, "
            "such as tensor.numpy(force=True) or np.array(number)"
        )


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of named arrays: of names, types, shapes and numbers, independent of order and layout."""
    sha256 = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha256.update(repr((name, array.dtype.str, arrays[name].shape)).encode())
        sha256.update(array.reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()
