"""Parameters of FedCCRL."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params, Probability


class FedCCRLParams(Params):
    """Parameters of FedCCRL; values are those of its code."""

    copies: int = Field(2, ge=0, le=8)
    """Number of changed copies of each image; 0: FedAvg."""
    probability: Probability = 1.0
    """Probability with which a batch takes styles of others."""
    alpha: float = Field(0.1, gt=0, le=100)
    """Of Beta(alpha, alpha), from which lambda is drawn."""
    use_augmix: bool = True
    """Whether copies go through AugMix."""
    lambda_align: NonNegativeFloat = 0.1
    """Weight of the contrast (lambda1); 0: off."""
    lambda_js: NonNegativeFloat = 0.1
    """Weight of the Jensen-Shannon divergence (lambda2); 0: off."""
    tau: PositiveFloat = 0.1
    """Temperature of the contrast."""

    @property
    def transfers(self) -> bool:
        """Whether copies take styles of other nodes' images."""
        return self.copies > 0 and self.probability > 0
