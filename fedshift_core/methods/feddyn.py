"""Parameters of :mod:`fedshift_clients.methods.feddyn`. No torch."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import Params


class FedDynParams(Params):
    """The node's side of FedDyn."""

    alpha: float = Field(
        0.01,
        ge=0,
        description="Weight of the dynamic regularisation: 0.1, 0.01 or 0.001 in the paper; 0, with "
        "train.clip=null, is FedAvg.",
    )
    scores: Literal["cloud", "mean"] = Field(
        "cloud",
        description="Scored model: the one that the next round begins with (cloud), or the plain mean"
        " of the round's models (mean).",
    )
