"""Metrics of each site with 95 % intervals (``evaluate.site_figures``)."""

from pydantic import Field

from fedshift_core.disclosure import CLASS
from fedshift_core.features import Feature, FeatureOptions, Key
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """The key of sites' figures."""

    section = "evaluate"
    #: docs/guide/figures.md, too. A round that the run may keep or end with is known only when it is over.
    site_figures: bool = Field(
        True,
        description="Whether nodes work out metrics with 95 % intervals of their test images, in the last round; with "
        "keep=best-validation or evaluate.patience in every round that is scored in full.",
    )

    def scores_sites(self, server_round: int, rounds: int, *, any_may_count: bool) -> bool:
        """Tell whether nodes work out figures of their sites after this round (from 1) of ``rounds``.

        Args:
            server_round: The round.
            rounds: Rounds of the run.
            any_may_count: The run may keep any round (``keep=best-validation``).
        """
        counts = server_round == rounds or any_may_count or self.patience > 0
        return bool(self.site_figures and self.test and counts and self.share(server_round, rounds) == 1)


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
