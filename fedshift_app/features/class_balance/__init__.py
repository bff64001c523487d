"""Losses for classes of unequal numbers of images (``train.class_weights``)."""

from fedshift_core.features import Feature, Key
from fedshift_core.wire import names as wire

FEATURE = Feature(
    "class-balance",
    "Losses for classes of unequal numbers of images",
    "train.class_weights",
    place=160,
    server="fedshift_app.features.class_balance.server:ClassBalance",
    node="fedshift_app.features.class_balance.node:ClassBalanceOnNode",
    train=(Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),),
    evaluate=(Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),),
)
