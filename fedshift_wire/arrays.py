"""Named arrays, as they travel or are kept. No Flower: what computes alone needs none."""

from typing import Any

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
