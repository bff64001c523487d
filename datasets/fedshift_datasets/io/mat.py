"""Reads numeric arrays of MATLAB files of version 5 (``-v6`` and ``-v7`` of MATLAB's save), such as SVHN.

SciPy's reader is compiled code that a damaged file may crash, so it runs in a process of its own.
"""

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Numbers
from fedshift_datasets.io import pool
from fedshift_datasets.io.presence import check_room

_NUMBERS = ("double", "single", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def read(path: Path, wanted: Collection[str]) -> dict[str, Numbers]:
    """Return the first array of each wanted name; other variables are ignored.

    Args:
        path: The file.
        wanted: Names of variables.

    Returns:
        Arrays of numbers as stored, by name; missing names are left out.

    Raises:
        DataError: If the file is of another kind or damaged, or a wanted variable is no array of real numbers.
    """
    return next(pool.mapped(partial(loaded, wanted=wanted), [path], 1))


def loaded(path: Path, wanted: Collection[str]) -> dict[str, Numbers]:
    """Return the arrays of :func:`read`, read in this process; damaged bytes raise other types, too, or end it."""
    from scipy.io import loadmat, matlab, whosmat

    if matlab.matfile_version(path)[0] != 1:
        raise DataError(f"{shown(path)}: a MATLAB file of another version; allowed is 5 (save -v7)")
    room = 0
    for name, shape, kind in whosmat(path):
        if name in wanted:
            _check(name, kind in _NUMBERS)
            room += math.prod(shape) * np.dtype(kind).itemsize
    check_room(path, room)
    arrays = loadmat(path, variable_names=wanted)
    arrays = {name: arrays[name] for name in wanted if name in arrays}
    for name, array in arrays.items():
        _check(name, isinstance(array, np.ndarray) and array.dtype.kind in "iuf")
    return arrays


def _check(name: str, real: bool) -> None:
    if not real:
        raise ValueError(f"variable {name} is no array of real numbers")
