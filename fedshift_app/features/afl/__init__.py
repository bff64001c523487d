"""Weights of the domains with the largest loss (``aggregation.weights=afl``)."""

from typing import Annotated, Literal

from pydantic import Field

from fedshift_core.disclosure import SUM
from fedshift_core.features import Feature, FeatureOptions, Key
from fedshift_core.params import For
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """Keys of ``aggregation.weights=afl``."""

    section = "aggregation"
    afl_step: Annotated[float, For("weights", "afl")] = Field(0.1, ge=0, le=100)
    """Step eta of afl: how far the weight of a group moves with its loss; 0: stays."""
    afl_update: Annotated[Literal["exponential", "projected"], For("weights", "afl")] = "exponential"
    """Step of afl: exponential (GroupDRO), or projected on the simplex (AFL)."""
    afl_groups: Annotated[Literal["domain", "node"], For("weights", "afl")] = "domain"
    """Groups of afl: domains, or single nodes."""


FEATURE = Feature(
    "afl",
    "Weights of the domains with the largest loss",
    "aggregation.weights=afl",
    "fedshift_app.features.afl.server:WorstDomainWeights",
    "fedshift_app.features.afl.node:ReceivedLossOnNode",
    place=110,
    options=Options,
    train=(Key(wire.ASK_LOSS, "bool", "score the weights as they come on the node's training images"),),
    train_reply=(Key(wire.RECEIVED_LOSS, "float", "mean loss of the weights as they came"),),
    word=SUM,
    tells="mean loss on the node's training images",
)
