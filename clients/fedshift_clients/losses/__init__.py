"""Loss terms that several methods use, as plain functions; those of one method are in its client's file.

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
