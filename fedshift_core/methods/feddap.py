"""Parameters of FedDAP."""

from typing import Annotated, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.methods.prototypes import PrototypeParams
from fedshift_core.params import OFF_IS_A_WORD, NoiseParams, Probability


class FedDAPParams(PrototypeParams, NoiseParams):
    """Parameters of FedDAP; values are those of its code."""

    lambda1: NonNegativeFloat = 1.0
    """Weight of the alignment with the own domain (DPA); 0: off."""
    lambda2: NonNegativeFloat = 1.0
    """Weight of the contrast with other domains (CPCL); 0: off."""
    tau: PositiveFloat = 0.02
    """Temperature of the contrast."""
    dp: Annotated[Literal["off", "add"], OFF_IS_A_WORD] = "off"
    """Noise on the sum of a class's features before its mean leaves the node: off, or add."""
    dp_scale: NonNegativeFloat = 0.05
    """Standard deviation of that noise (dps)."""
    dp_q: Probability = 0.1
    """Factor of that noise (dpp)."""
    merge_by: Literal["similarity", "mean"] = "similarity"
    """Merge of the prototypes of a domain's nodes: by how similar each is to the others, or their mean."""
    merge_tau: PositiveFloat = 0.001
    """Temperature of merge_by=similarity: small, the most similar one; large, the mean. Of two nodes it is always the
    mean.
    """
