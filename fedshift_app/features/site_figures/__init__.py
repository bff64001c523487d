"""Metrics of each site with 95 % intervals (``evaluate.site_figures``)."""

from fedshift_core.disclosure import CLASS
from fedshift_core.features import Feature, FeatureOptions, Key
from fedshift_core.run_settings import RunSettings
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """The key of sites' figures."""

    section = "evaluate"
    #: docs/guide/figures.md, too. A round that the run may keep or end with is known only when it is over.
    site_figures: bool = True
    """Whether nodes work out metrics with 95 % intervals of their test images, in the last round; with
    keep=best-validation or evaluate.patience in every round that is scored in full.
    """


def due(config: RunSettings, server_round: int) -> bool:
    """Tell whether nodes work out figures of whole test sets after a round, from 1.

    It is the last one, or may be the one that the run keeps or ends with, and all test images are scored.
    """
    evaluate = config.evaluate
    counts = server_round == config.rounds or config.keep != "last" or evaluate.patience > 0
    return bool(evaluate.test and counts and evaluate.share(server_round, config.rounds) == 1)


FEATURE = Feature(
    "site-figures",
    "Metrics of each site with 95 % intervals",
    "evaluate.site_figures",
    "fedshift_app.features.site_figures.server:SiteFigures",
    "fedshift_app.features.site_figures.node:SiteFiguresOnNode",
    show="fedshift_app.features.site_figures.show:show",
    section="fedshift_app.features.site_figures.show:Sites",
    place=150,
    options=Options,
    evaluate=(Key(wire.ASK_SITE_FIGURES, "bool", "work out metrics with intervals of the node's test images"),),
    records=(
        Key(wire.SITE_FIGURES, "arrays", "metrics, their 95 % intervals, and the images and patients behind them"),
    ),
    word=CLASS,
    tells="metrics of test images over all and by class, with numbers of images and patients",
    shows=True,
)
