"""Parameters of :mod:`fedshift_clients.methods.fedsa`. No torch."""

from typing import Literal

from pydantic import Field

from fedshift_core.methods.own_models import OwnModelParams
from fedshift_core.methods.prototypes import ProtoSource


class FedSAParams(OwnModelParams):
    """The node's side of FedSA."""

    lambda_calibration: float = Field(
        1.0, ge=0, description="Weight of the classifier's calibration on the anchors (lambda_cc); 0: off."
    )
    lambda_anchor: float = Field(
        10.0, ge=0, description="Weight of the distance to the anchor of the class (lambda_r); 0: off."
    )
    lambda_margin: float = Field(1.0, ge=0, description="Weight of the contrast with a margin (lambda_m); 0: off.")
    share_weights: bool = Field(
        False,
        description="Whether weights are averaged as well; false: the whole model stays on the node, as in the paper.",
    )
    predict_by: Literal["head", "prototype"] = Field(
        "head", description="Prediction by the classifier (head), or by the nearest global prototype (code)."
    )
    proto_source: ProtoSource = "after_training"
