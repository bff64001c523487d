"""Parameters of FedProx."""

from pydantic import NonNegativeFloat

from fedshift_core.params import Params


class FedProxParams(Params):
    """Parameters of FedProx."""

    mu: NonNegativeFloat = 0.01
    """Weight of the proximal term: 0.001, 0.01, 0.1 or 1 in the paper, 0.01 in FedICON; 0: FedAvg."""
