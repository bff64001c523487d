"""Parameters of FedProto."""

from typing import Literal

from pydantic import NonNegativeFloat

from fedshift_core.methods.prototypes import OwnModelParams


class DistanceParams(OwnModelParams):
    """Parameters of FedProto's client, which another method may take over."""

    lambda_proto: NonNegativeFloat = 1.0
    """Weight of the distance to the prototypes (lambda): 1 in the paper, 0.1 in the code for CIFAR-10; 0: off."""
    reduction: Literal["mse_mean", "sum"] = "mse_mean"
    """Distance over the D dimensions: the mean (code), or the sum (paper)."""


class FedProtoParams(DistanceParams):
    """Parameters of FedProto."""

    prototype_mean: Literal["weighted", "plain"] = "weighted"
    """Mean of the prototypes: weighted by images of the class (paper), or one vote a node (plain, code)."""
