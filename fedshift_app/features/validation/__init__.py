"""Scores on the nodes' validation parts (``allocation.validation_fraction``)."""

from fedshift_core.disclosure import SUM
from fedshift_core.features import Feature, Key
from fedshift_core.wire import names as wire

FEATURE = Feature(
    "validation",
    "Scores on the nodes' validation parts",
    "allocation.validation_fraction",
    "fedshift_app.features.validation.server:Validation",
    "fedshift_app.features.validation.node:ValidationOnNode",
    show="fedshift_app.features.validation.show:show",
    place=170,
    evaluate=(Key(wire.VALIDATION, "bool", "score the weights on the validation part too"),),
    evaluate_reply=(
        Key(wire.VALIDATION_CORRECT, "int", "correct predictions on the validation part"),
        Key(wire.VALIDATION_COUNT, "int", "images of the validation part", images=True),
        Key(wire.VALIDATION_LOSS_SUM, "float", "cross-entropy summed over the validation part"),
    ),
    introduction=(Key(wire.NUM_VALIDATION, "int", "images of the validation part", images=True),),
    word=SUM,
    tells="correct predictions and summed loss on validation images",
)
