"""Parameters of :mod:`fedshift_clients.methods.fedtgp`. No torch."""

from pydantic import Field

from fedshift_core.methods.fedproto import FedProtoParams


class FedTGPParams(FedProtoParams):
    """The node's side of FedTGP: FedProto's, with another weight."""

    lambda_proto: float = Field(
        10.0,
        ge=0,
        description="Weight of the distance to the prototypes (lambda): 10 in the code's command, 1 "
        "its default; 0: off.",
    )
