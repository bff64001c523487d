r"""Means and mean squares of what BatchNorm layers are given, in units of the statistics that the shared weights hold.

With :math:`\mu,v` of the shared weights and :math:`s=\sqrt{\max(v,\epsilon)}`, a value x is :math:`z=(x-\mu)/s`. Both
sides know :math:`\mu` and s, and z is about 1 whatever the layer: so its moments can be whole numbers of few bits, as a
sum that hides its parts needs (:mod:`fedshift_core.secure.layout`), and their error is a share of the layer's own
deviation.

.. math:: E[z]=\frac{E[x]-\mu}{s},\qquad E[z^2]=\frac{E[x^2]-2\mu E[x]+\mu^2}{s^2}
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import BN_MEAN, BN_SQUARES, BN_SUM, BN_VAR

#: Below it a variance makes no difference to BatchNorm, which adds as much (PyTorch's default).
EPSILON = 1e-5
#: Which power of a value the numbers under a name on the wire are means of.
POWERS: Mapping[str, int] = {BN_SUM: 1, BN_SQUARES: 2}


def power_of(name: str) -> int:
    """Return which power of a value the numbers under a name on the wire are means of."""
    return next(power for key, power in POWERS.items() if name.startswith(key))


def standard(means: Arrays, layers: Iterable[str], weights: Arrays) -> Arrays:
    """Return means and mean squares in units of the shared weights' statistics, float64.

    Args:
        means: By ``sum/`` and ``squares/`` of the layer, (C,).
        layers: Names of the layers.
        weights: Hold ``running_mean`` and ``running_var`` of each layer, (C,).
    """
    return _converted(
        means, layers, weights, lambda m, s, c, u: ((m - c) / u, (s - 2 * c * m + np.square(c)) / np.square(u))
    )


def plain(means: Arrays, layers: Iterable[str], weights: Arrays) -> Arrays:
    """Return what :func:`standard` was given."""
    return _converted(
        means, layers, weights, lambda m, s, c, u: (c + u * m, np.square(u) * s + 2 * c * u * m + np.square(c))
    )


def _converted(
    means: Arrays, layers: Iterable[str], weights: Arrays, convert: Callable[..., tuple[Any, Any]]
) -> Arrays:
    """Return what becomes of mean, mean square, centre and unit of each layer."""
    converted: Arrays = {}
    for name in layers:
        centre = weights[f"{name}.{BN_MEAN}"].astype(np.float64)
        unit = np.sqrt(np.maximum(weights[f"{name}.{BN_VAR}"].astype(np.float64), EPSILON))
        of_sum, of_squares = BN_SUM + name, BN_SQUARES + name
        converted[of_sum], converted[of_squares] = convert(means[of_sum], means[of_squares], centre, unit)
    return converted
