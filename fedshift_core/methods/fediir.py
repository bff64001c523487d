"""Parameters of FedIIR."""

from pydantic import NonNegativeFloat

from fedshift_core.params import Fraction, Params


class FedIIRParams(Params):
    """Parameters of FedIIR; the value is its code's for PACS, where the head is ``model.head=mlp-half``."""

    lambda_iir: NonNegativeFloat = 1e-3
    """Weight of the distance to the mean head gradient (lambda); 0: FedAvg."""
    ema: Fraction = 0.95
    """Decay of the mean head gradient over rounds (rho); 0: no memory."""
