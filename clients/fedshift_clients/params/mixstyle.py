"""Parameters of :mod:`fedshift_clients.modules.mixstyle`. No torch."""

from typing import Literal

from pydantic import Field

from fedshift_clients.params.at_stages import StageParams, Where


class MixStyleParams(StageParams):
    """The parameters; values are the paper's."""

    probability: float = Field(0.5, ge=0, le=1, description="Probability with which a map is mixed; 0: off.")
    alpha: float = Field(0.1, gt=0, le=100, description="Of Beta(alpha, alpha), from which lambda is drawn.")
    mix: Literal["random", "crossdomain"] = Field(
        "random", description="Partner of an image in its batch: any (random), or one of another domain (crossdomain)."
    )
    stages: Where = Field(
        "lower", description="Stages whose maps are mixed, counted from 1: all before the last, three at most (lower), "
        "all, or a list.",
    )  # fmt: skip
