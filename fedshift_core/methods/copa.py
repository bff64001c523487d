"""Parameters of Copa."""

from typing import Literal

from pydantic import NonNegativeFloat

from fedshift_core.params import Params

Ensemble = Literal["probabilities", "logits"]


class CopaParams(Params):
    """Parameters of COPA."""

    lambda_others: NonNegativeFloat = 1.0
    """Weight of the losses of the other domains' heads; 0: off."""
    ensemble: Ensemble = "probabilities"
    """What is averaged over the heads at test time."""
