"""Masks by the agreement of the nodes' signs (``aggregation.gma_tau``)."""

from fedshift_core.features import Case, Feature, FeatureOptions, Need
from fedshift_core.params import Probability


class Options(FeatureOptions):
    """The key of masks by agreement."""

    section = "aggregation"
    gma_tau: Probability = 0.0
    """Agreement of the nodes on the sign of a number's change from which it moves in full (tau of FedGMA); below, by
    that part of the average; 0: no masks.
    """


def _rules(case: Case) -> str:
    tau, robust = Options.read(case.config).gma_tau, case.config.aggregation.robust
    if tau > 0 and robust != "none":
        return (
            f"aggregation.gma_tau={tau:g} and aggregation.robust={robust} exclude each other: each merges by a rule of "
            "its own; set gma_tau=0, or robust=none"
        )
    return ""


FEATURE = Feature(
    "gma",
    "Masks by the agreement of the nodes' signs",
    "aggregation.gma_tau",
    "fedshift_app.features.gma.server:GradientMasks",
    place=90,
    options=Options,
    compares="counts the signs of single nodes' changes",
    needs=(Need("averages"),),
    rules=_rules,
)
