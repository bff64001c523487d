"""Parameters of Moon."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params


class MoonParams(Params):
    """Parameters of MOON."""

    mu: NonNegativeFloat = 1.0
    """Weight of the contrast: 1, and 5 on CIFAR-10 and in the FPL code family; 0: FedAvg."""
    tau: PositiveFloat = 0.5
    """Temperature of the contrast."""
    projection: Literal["none", "mlp"] = "none"
    """Contrast of the features (none), or of what a two-layer MLP makes of them (mlp)."""
