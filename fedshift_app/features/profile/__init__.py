"""The time of a round by phase (``profile=true``)."""

from fedshift_core.features import Feature, FeatureOptions, Key
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """The key of a run's profile."""

    section = ""
    profile: bool = False
    """Whether the time of each round is measured by phase."""


_TIMES = (
    Key(wire.SECONDS, "float", "seconds of a part of the node's work"),
    Key(wire.PROCESS, "int", "number of the process that worked"),
)
FEATURE = Feature(
    "profile",
    "Where the time of a round goes",
    "profile=true",
    "fedshift_app.features.profile.server:Profile",
    "fedshift_app.features.profile.node:ProfileOnNode",
    show="fedshift_app.features.profile.show:show",
    place=10,
    options=Options,
    train_reply=_TIMES,
    evaluate_reply=_TIMES,
    shows=True,
)
