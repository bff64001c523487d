"""Parameters of FedOMG."""

from pydantic import Field, PositiveFloat

from fedshift_core.params import Fraction, Params


class FedOMGParams(Params):
    """Parameters of FedOMG."""

    kappa: float = Field(0.25, ge=0, le=10)
    """Radius of the search around FedAvg's change; 0: FedAvg's change."""
    server_lr: float = Field(1.0, gt=0, le=10)
    """Learning rate of the server (eta)."""
    steps: int = Field(25, ge=1, le=10_000)
    """Steps of SGD on the logits of Gamma."""
    rate: PositiveFloat = 25.0
    """Learning rate of SGD on the logits of Gamma."""
    momentum: Fraction = 0.5
    """Momentum of SGD on the logits of Gamma; 0: none."""
