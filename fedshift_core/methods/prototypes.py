"""Parameters that methods with class prototypes share."""

from typing import Literal

from fedshift_core.params import Params


class PrototypeParams(Params):
    """Base of the parameters of a method with class prototypes.

    These are of the trained model's features of all images, in evaluation mode and not augmented; or of the features
    seen in the last local epoch, in training mode and augmented.
    """

    proto_source: Literal["after_training", "last_epoch"] = "after_training"
    """Features behind the prototypes: of a pass after training, or of the last epoch."""


class OwnModelParams(PrototypeParams):
    """Base of the parameters of a method whose nodes keep their whole model."""

    share_weights: bool = False
    """Whether weights are averaged as well; false: the whole model stays on the node, as in the paper."""
    predict_by: Literal["head", "prototype"] = "head"
    """Prediction by the classifier (head), or by the nearest global prototype."""
