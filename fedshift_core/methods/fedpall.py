"""Parameters of :mod:`fedshift_clients.methods.fedpall`. No torch."""

from typing import Literal

from pydantic import Field, model_validator

from fedshift_core.params import NoiseParams

MOST = 10_000  # features of a round, as the server takes them

Contrast = Literal["cosine", "released"]


class FedPallParams(NoiseParams):
    """The node's side of FedPall."""

    lambda_adv: float = Field(0.1, ge=0, description="Weight of the amplifier's confusion; 0: off.")
    lambda_con: float = Field(0.1, ge=0, description="Weight of the contrast with global prototypes; 0: off.")
    take: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the server's classifier in the node's at the beginning of a round; 0: "
        "the node keeps its own.",
    )
    tau: float = Field(3.0, gt=0, description="Temperature of the contrast.")
    contrast: Contrast = Field(
        "cosine", description="Form of the contrast: by cosine, or as the released code computes it."
    )
    mix_from: float = Field(
        0.8,
        ge=0,
        le=1,
        description="Smallest share of a node's own features in what it sends, one share drawn a round.",
    )
    mix_to: float = Field(
        1.0, ge=0, le=1, description="Largest share of a node's own features in what it sends, one share drawn a round."
    )
    kept: float = Field(
        0.9, gt=0, le=1, description="Share of the dimensions that is sent; the others, drawn by round, are 0."
    )
    most_features: int = Field(
        MOST, ge=1, le=MOST, description="Largest number of images whose features a node sends in a round."
    )

    @model_validator(mode="after")
    def _in_order(self) -> "FedPallParams":
        if self.mix_from > self.mix_to:
            raise ValueError(f"mix_from must not exceed mix_to={self.mix_to}, found {self.mix_from}")
        return self
