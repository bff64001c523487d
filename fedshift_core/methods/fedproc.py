"""Parameters of FedProc."""

from pydantic import PositiveFloat

from fedshift_core.params import Params


class FedProcParams(Params):
    """Parameters of FedProc."""

    use_gpc: bool = True
    """Whether the contrast with global prototypes is used; false: FedAvg."""
    tau: PositiveFloat = 0.5
    """Temperature of the contrast; 0.5 is the usual value, the paper's is not known, the FPL code family takes 1."""
