"""Parameters of FedALA."""

from pydantic import Field, NonNegativeFloat

from fedshift_core.params import Params, Rounds, Share


class FedALAParams(Params):
    """Parameters of FedALA."""

    eta: NonNegativeFloat = 1.0
    """Learning rate of the aggregation weights W; 0: W stays 1, which is FedAvg."""
    share: Share = 0.8
    """Share of the node's images on which W is learned (s)."""
    layers: int = Field(2, ge=1, le=10_000)
    """Parameter tensors, counted from the top, that W aggregates (p); more than there are: all."""
    most_epochs: Rounds = 100
    """Largest number of epochs of a node's first aggregation."""
