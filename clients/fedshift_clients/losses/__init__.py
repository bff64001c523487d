"""Loss terms as plain functions, one module per paper; what several papers use is in ``common``.

All of them compute in float32, whatever autocast does to the network.
"""

from fedshift_clients.losses.common import (
    NORM_EPS,
    class_means,
    cross_entropy,
    cross_entropy_of_each,
    prototype_contrast,
    unit,
)

__all__ = ["NORM_EPS", "class_means", "cross_entropy", "cross_entropy_of_each", "prototype_contrast", "unit"]
