"""Parameters of FDSE."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params


class FDSEParams(Params):
    """Parameters of FDSE; values are those of the authors' configuration for PACS."""

    lambda_kl: NonNegativeFloat = 0.5
    """Weight of the consistency term from round 2 on: 0.5 for PACS, 0.05 for Office-Caltech; 0: off."""
    beta: NonNegativeFloat = 0.001
    """How much more later layers weigh in the term: 0.001 for PACS, 0.05 for Office-Caltech; 0: all layers alike."""
    kl: Literal["gaussian", "released"] = "gaussian"
    """Divergence: of Gaussians for each channel, or as the released code computes it."""
    tau: PositiveFloat = 0.5
    """Temperature of the similarity between erasers."""
