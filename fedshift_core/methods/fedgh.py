"""Parameters of FedGH."""

from pydantic import Field, PositiveFloat

from fedshift_core.limits import MOST_BATCH
from fedshift_core.methods.prototypes import PrototypeParams
from fedshift_core.params import Rounds


class FedGHParams(PrototypeParams):
    """Parameters of FedGH."""

    server_epochs: Rounds = 1
    """Epochs of the head over all prototypes of a round."""
    server_lr: PositiveFloat = 0.01
    """Learning rate of the head on the server."""
    server_batch: int = Field(1, ge=1, le=MOST_BATCH)
    """Prototypes in a step of the server."""
