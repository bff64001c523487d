"""95 % intervals of proportions. NumPy only: nodes and server use the same."""

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054  # the standard normal quantile of 0.975
Floats = NDArray[np.float64]


def wilson(right: Floats | float, of: Floats | float) -> Floats:
    r"""Return proportions with their 95 % intervals (Wilson, JASA 1927), shape (..., 3): value, low, high.

    .. math:: \frac{k+z^2/2\pm z\sqrt{k(n-k)/n+z^2/4}}{n+z^2}

    Args:
        right: k, how many of them, from 0 to ``of``.
        of: n, above 0; the images count as independent.
    """
    k, n = np.asarray(right, np.float64), np.asarray(of, np.float64)
    value, middle = k / n, (k + Z**2 / 2) / (n + Z**2)
    half = Z * np.sqrt(k * (n - k) / n + Z**2 / 4) / (n + Z**2)
    # At 0 and n a bound is the value itself, but for the last digit.
    low, high = np.clip(np.minimum(middle - half, value), 0, 1), np.clip(np.maximum(middle + half, value), 0, 1)
    return np.stack([value, low, high], axis=-1)
