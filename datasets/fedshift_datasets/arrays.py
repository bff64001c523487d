"""Names for kinds of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # of images, and what else are bytes
Indices = NDArray[np.int64]  # whole numbers: places, labels
Hashes = NDArray[np.uint64]
Floats = NDArray[np.float32]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
Texts = NDArray[np.str_]
Numbers = NDArray[Any]  # of any type
