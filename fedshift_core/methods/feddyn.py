"""Parameters of FedDyn."""

from typing import Literal

from pydantic import NonNegativeFloat

from fedshift_core.params import Params


class FedDynParams(Params):
    """Parameters of FedDyn."""

    alpha: NonNegativeFloat = 0.01
    """Weight of the dynamic regularisation: 0.1, 0.01 or 0.001 in the paper; 0, with train.clip=null, is FedAvg."""
    scores: Literal["cloud", "mean"] = "cloud"
    """Scored model: the one that the next round begins with (cloud), or the plain mean of the round's models (mean)."""
    alpha_by_images: bool = False
    """Whether each node's alpha is divided by its number of images over the mean number, as in the reference code."""
