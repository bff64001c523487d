"""Parameters of FedTGP."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from fedshift_core.limits import MOST_BATCH
from fedshift_core.methods.fedproto import DistanceParams
from fedshift_core.params import Rounds


class FedTGPParams(DistanceParams):
    """Parameters of FedTGP: those of FedProto's client, with another weight."""

    lambda_proto: NonNegativeFloat = 10.0
    """Weight of the distance to the prototypes (lambda): 10 in the code's command, 1 its default; 0: off."""
    server_epochs: Rounds = 100
    """Epochs over all prototypes of a round: 100 in the code's command, 1000 its default."""
    server_lr: PositiveFloat = 0.01
    """Learning rate of plain SGD on the server; the code takes the nodes'."""
    server_batch: int = Field(10, ge=1, le=MOST_BATCH)
    """Prototypes in a step of the server; the code takes the nodes' batch."""
    margin_cap: NonNegativeFloat = 100.0
    """Largest margin (tau); 0: no margin."""
