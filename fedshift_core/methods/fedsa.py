"""Parameters of FedSA."""

from pydantic import NonNegativeFloat

from fedshift_core.methods.prototypes import OwnModelParams
from fedshift_core.params import Probability


class FedSAParams(OwnModelParams):
    """Parameters of FedSA."""

    lambda_calibration: NonNegativeFloat = 1.0
    """Weight of the classifier's calibration on the anchors (lambda_cc); 0: off."""
    lambda_anchor: NonNegativeFloat = 10.0
    """Weight of the distance to the anchor of the class (lambda_r); 0: off."""
    lambda_margin: NonNegativeFloat = 1.0
    """Weight of the contrast with a margin (lambda_m); 0: off."""
    momentum: Probability = 0.9999
    """Momentum of the anchors (m); 1: they never move."""
