"""Parameters of Copa."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import Params

Ensemble = Literal["probabilities", "logits"]


class CopaParams(Params):
    """Parameters of COPA."""

    lambda_others: float = Field(1.0, ge=0)
    """Weight of the losses of the other domains' heads; 0: off."""
    ensemble: Ensemble = "probabilities"
    """What is averaged over the heads at test time."""
