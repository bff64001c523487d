"""Parameters of Copa."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import Params

Ensemble = Literal["probabilities", "logits"]


class CopaParams(Params):
    """Parameters of COPA."""

    lambda_others: float = Field(1.0, ge=0, description="Weight of the losses of the other domains' heads; 0: off.")
    ensemble: Ensemble = Field("probabilities", description="What is averaged over the heads at test time.")
