"""Parameters of :mod:`fedshift_clients.methods.fediir`. No torch."""

from pydantic import Field

from fedshift_core.params import Params


class FedIIRParams(Params):
    """The node's side of FedIIR; the value is its code's for PACS, where the head is ``model.head=mlp-half``."""

    lambda_iir: float = Field(
        1e-3, ge=0, description="Weight of the distance to the mean head gradient (lambda); 0: FedAvg."
    )
