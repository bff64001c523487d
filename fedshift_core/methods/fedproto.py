"""Parameters of :mod:`fedshift_clients.methods.fedproto`. No torch."""

from typing import Literal

from pydantic import Field

from fedshift_core.methods.own_models import OwnModelParams
from fedshift_core.methods.prototypes import ProtoSource


class FedProtoParams(OwnModelParams):
    """The node's side of FedProto."""

    lambda_proto: float = Field(
        1.0,
        ge=0,
        description="Weight of the distance to the prototypes (lambda): 1 in the paper, 0.1 in the "
        "code for CIFAR-10; 0: off.",
    )
    share_weights: bool = Field(
        False,
        description="Whether weights are averaged as well; false: the whole model stays on the node, as in the paper.",
    )
    reduction: Literal["mse_mean", "sum"] = Field(
        "mse_mean", description="Distance over the D dimensions: the mean (code), or the sum (paper)."
    )
    predict_by: Literal["head", "prototype"] = Field(
        "head", description="Prediction by the classifier (head), or by the nearest global prototype."
    )
    proto_source: ProtoSource = "after_training"
