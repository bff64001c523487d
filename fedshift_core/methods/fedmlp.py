"""Parameters of FedMLP."""

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.methods.prototypes import PrototypeParams


class FedMLPParams(PrototypeParams):
    """Parameters of FedMLP; all values are choices. Both weights 0: FedAvg."""

    lambda_proto: NonNegativeFloat = 1.0
    """Weight of the distance to the prototypes; 0: off."""
    lambda_semantic: NonNegativeFloat = 1.0
    """Weight of the distance to the semantic prototypes; 0: off."""
    tau: PositiveFloat = 0.5
    """Temperature of the similarity that makes semantic prototypes."""
