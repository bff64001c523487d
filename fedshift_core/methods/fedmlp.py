"""Parameters of :mod:`fedshift_clients.methods.fedmlp`. No torch."""

from pydantic import Field

from fedshift_core.methods.prototypes import ProtoSource, PrototypeParams


class FedMLPParams(PrototypeParams):
    """The node's side of FedMLP; all values are choices. Both weights 0: FedAvg."""

    lambda_proto: float = Field(1.0, ge=0, description="Weight of the distance to the prototypes; 0: off.")
    lambda_semantic: float = Field(1.0, ge=0, description="Weight of the distance to the semantic prototypes; 0: off.")
    tau: float = Field(0.5, gt=0, description="Temperature of the similarity that makes semantic prototypes.")
    proto_source: ProtoSource = "after_training"
