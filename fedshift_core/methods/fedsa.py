"""Parameters of FedSA."""

from pydantic import Field

from fedshift_core.methods.prototypes import OwnModelParams


class FedSAParams(OwnModelParams):
    """Parameters of FedSA."""

    lambda_calibration: float = Field(1.0, ge=0)
    """Weight of the classifier's calibration on the anchors (lambda_cc); 0: off."""
    lambda_anchor: float = Field(10.0, ge=0)
    """Weight of the distance to the anchor of the class (lambda_r); 0: off."""
    lambda_margin: float = Field(1.0, ge=0)
    """Weight of the contrast with a margin (lambda_m); 0: off."""
    momentum: float = Field(0.9999, ge=0, le=1)
    """Momentum of the anchors (m); 1: they never move."""
