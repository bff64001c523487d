"""Parameters of :mod:`fedshift_clients.modules.fedfa`. No torch."""

from pydantic import Field

from fedshift_clients.params.at_stages import StageParams, Where


class FedFAParams(StageParams):
    """The parameters; values are the paper's."""

    probability: float = Field(0.5, ge=0, le=1, description="Probability with which a map is augmented; 0: off.")
    momentum: float = Field(0.99, ge=0, lt=1, description="Momentum alpha of a node's running statistics.")
    sharing: bool = Field(
        True, description="Whether gamma follows what nodes differ in (paper); false: gamma is 1 and nothing more "
        "travels, which is what the released code computes.",
    )  # fmt: skip
    stages: Where = Field("all", description="Stages whose maps are augmented, counted from 1: all, lower, or a list.")
