"""An average that one node cannot spoil (``aggregation.robust``)."""

from typing import Annotated, Literal

from pydantic import Field

from fedshift_core.features import Feature, FeatureOptions, Need
from fedshift_core.params import For


class Options(FeatureOptions):
    """Keys of robust averages."""

    section = "aggregation"
    #: All but clip weigh each node alike.
    robust: Literal["none", "clip", "trimmed_mean", "median", "krum"] = "none"
    """Aggregation rule that one node cannot spoil, for methods that keep the default merge; none: the weighted average.
    """
    clip_norm: Annotated[float | None, For("robust", "clip")] = Field(None, gt=0)
    """Largest L2 norm of an update under robust=clip; null: the median of the round."""
    trim: Annotated[float, For("robust", "trimmed_mean")] = Field(0.2, gt=0, lt=0.5)
    """Share of the nodes that robust=trimmed_mean cuts off at each end (beta)."""
    malicious: Annotated[int, For("robust", "krum")] = Field(1, ge=1)
    """Number of nodes in a round that may be malicious under robust=krum (f), which needs 2f + 3 nodes."""


FEATURE = Feature(
    "robust",
    "An average that one node cannot spoil",
    "aggregation.robust",
    "fedshift_app.features.robust.server:Robust",
    place=80,
    options=Options,
    compares="compares the weights of single nodes",
    needs=(Need("averages"),),
)
