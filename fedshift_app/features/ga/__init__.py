"""Weights of nodes by generalisation gaps (``aggregation.weights=ga``)."""

from typing import Annotated, Literal

from pydantic import Field

from fedshift_core.disclosure import SUM
from fedshift_core.features import Case, Feature, FeatureOptions, Key
from fedshift_core.params import For
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """Keys of ``aggregation.weights=ga``."""

    section = "aggregation"
    gap_step: Annotated[float, For("weights", "ga")] = Field(0.2, ge=0, le=10)
    """Step of a weight in the first round of ga, in multiples of the equal weight 1 / N; 0: weights stay."""
    gap: Annotated[Literal["loss", "accuracy"], For("weights", "ga")] = "loss"
    """Quantity whose gap ga uses: loss or accuracy."""
    gap_on: Annotated[Literal["train", "validation"], For("weights", "ga")] = "train"
    """Images of a node on which ga measures the gap."""
    gap_centred: Annotated[bool, For("weights", "ga")] = True
    """Whether ga subtracts the mean from the gaps (paper); false: gaps as they are (code)."""


def _rules(case: Case) -> str:
    rule, lacking = case.config.aggregation, case.config.allocation.lacking
    if rule.weights == "ga" and rule.gap_on == "validation" and lacking:
        return (
            f"aggregation.gap_on=validation needs validation parts on the nodes: {lacking}; or set "
            "aggregation.gap_on=train"
        )
    return ""


FEATURE = Feature(
    "ga",
    "Weights of nodes by generalisation gaps",
    "aggregation.weights=ga",
    "fedshift_app.features.ga.server:GeneralisationAdjustment",
    "fedshift_app.features.ga.node:GapsOnNode",
    place=100,
    options=Options,
    rules=_rules,
    rounds_key="aggregation.weights",
    train=(Key(wire.GAP, "list of two texts", "loss or accuracy, on images of train or validation"),),
    train_reply=(
        Key(wire.LOCAL_RECEIVED, "float", "loss or accuracy of the weights as they came"),
        Key(wire.LOCAL_TRAINED, "float", "loss or accuracy after local training"),
    ),
    word=SUM,
    tells="mean loss or accuracy on the node's training or validation images",
)
