"""Parameters of FedIIR."""

from pydantic import Field

from fedshift_core.params import Params


class FedIIRParams(Params):
    """Parameters of FedIIR; the value is its code's for PACS, where the head is ``model.head=mlp-half``."""

    lambda_iir: float = Field(1e-3, ge=0)
    """Weight of the distance to the mean head gradient (lambda); 0: FedAvg."""
    ema: float = Field(0.95, ge=0, lt=1)
    """Decay of the mean head gradient over rounds (rho); 0: no memory."""
