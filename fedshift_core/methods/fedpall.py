"""Parameters of FedPall."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from fedshift_core.limits import MOST_BATCH, MOST_OWN
from fedshift_core.params import NoiseParams, Probability, Rounds, Share

Contrast = Literal["cosine", "released"]


class FedPallParams(NoiseParams):
    """Parameters of FedPall."""

    lambda_adv: NonNegativeFloat = 0.1
    """Weight of the amplifier's confusion; 0: off."""
    lambda_con: NonNegativeFloat = 0.1
    """Weight of the contrast with global prototypes; 0: off."""
    take: Probability = 1.0
    """Share of the server's classifier in the node's at the beginning of a round; 0: the node keeps its own."""
    tau: PositiveFloat = 3.0
    """Temperature of the contrast."""
    contrast: Contrast = "cosine"
    """Form of the contrast: by cosine, or as the released code computes it."""
    mix_from: Probability = 0.8
    """Smallest share of a node's own features in what it sends, one share drawn a round."""
    mix_to: Probability = 1.0
    """Largest share of a node's own features in what it sends, one share drawn a round."""
    kept: Share = 0.9
    """Share of the dimensions that is sent; the others, drawn by round, are 0."""
    most_features: int = Field(MOST_OWN, ge=1, le=MOST_OWN)
    """Largest number of images whose features a node sends in a round."""
    hidden: int = Field(512, ge=1, le=4096)
    """Width of the amplifier."""
    server_epochs: Rounds = 3
    """Epochs of both networks of the server over the features of a round."""
    server_batch: int = Field(32, ge=1, le=MOST_BATCH)
    """Features in a step of the server."""
    server_lr: PositiveFloat = 0.01
    """Learning rate of the server; the code takes the nodes'."""

    @model_validator(mode="after")
    def _in_order(self) -> "FedPallParams":
        if self.mix_from > self.mix_to:
            raise ValueError(f"mix_from must not exceed mix_to={self.mix_to}, found {self.mix_from}")
        return self
