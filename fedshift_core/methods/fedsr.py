"""Parameters of FedSR."""

from typing import Literal

from pydantic import Field, NonNegativeFloat

from fedshift_core.params import Params

Length = Literal["norm", "squared"]


class FedSRParams(Params):
    """Parameters of FedSR."""

    alpha_l2r: NonNegativeFloat = 0.01
    """Weight of the length of representations; 0: off."""
    alpha_cmi: NonNegativeFloat = 0.001
    """Weight of the conditional information; 0: off."""
    l2r: Length = "norm"
    """Length: the norm as in the code, or squared as printed."""
    z_dim: int | None = Field(None, ge=1, le=65536)
    """Width of z; null: that of the network's features."""
    test: Literal["samples", "mean"] = "samples"
    """What is classified at test: samples of z with averaged probabilities, or the mean mu."""
    test_samples: int = Field(20, ge=1, le=1000)
    """Samples of z at test."""
