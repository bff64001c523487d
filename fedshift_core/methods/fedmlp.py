"""Parameters of FedMLP."""

from pydantic import Field

from fedshift_core.methods.prototypes import PrototypeParams


class FedMLPParams(PrototypeParams):
    """Parameters of FedMLP; all values are choices. Both weights 0: FedAvg."""

    lambda_proto: float = Field(1.0, ge=0)
    """Weight of the distance to the prototypes; 0: off."""
    lambda_semantic: float = Field(1.0, ge=0)
    """Weight of the distance to the semantic prototypes; 0: off."""
    tau: float = Field(0.5, gt=0)
    """Temperature of the similarity that makes semantic prototypes."""
