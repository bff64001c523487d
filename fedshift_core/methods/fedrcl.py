"""Parameters of FedRCL."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params


class FedRCLParams(Params):
    """Parameters of FedRCL; values are those of its code. Both weights 0: FedAvg."""

    lambda_scl: NonNegativeFloat = 1.0
    """Weight of the contrast; 0: off."""
    lambda_penalty: NonNegativeFloat = 1.0
    """Weight of the divergence penalty; 0: off."""
    tau: PositiveFloat = 0.05
    """Temperature of the contrast."""
    threshold: float = Field(0.7, ge=-1, le=1)
    """Cosine from which on two samples of a class are too near for the penalty."""
    negatives: int = Field(2, ge=1, le=10_000)
    """Number of samples of other classes in the contrast: the most similar ones."""
    levels: Literal["all", "last"] = "all"
    """Levels of the network that the terms use: all, or the last."""
    feature_relu: bool = False
    """Whether the terms see the output of the activation; false: its input."""

    @property
    def active(self) -> bool:
        """Whether there is a term of its own."""
        return self.lambda_scl > 0 or self.lambda_penalty > 0
