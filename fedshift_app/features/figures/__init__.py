"""Counts behind recall, precision, AUC and calibration (``evaluate.figures``)."""

from fedshift_core.disclosure import CLASS
from fedshift_core.features import Feature, FeatureOptions, Key
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """The key of counted figures."""

    section = "evaluate"
    #: docs/guide/figures.md; no number of the training or of the accuracy depends on it.
    figures: bool = True
    """Whether nodes send counts for recall, precision, F1, AUC and calibration error in rounds that are scored in full.
    """


FEATURE = Feature(
    "figures",
    "Counts behind recall, precision, AUC and calibration",
    "evaluate.figures",
    "fedshift_app.features.figures.server:CountedFigures",
    "fedshift_app.features.figures.node:FiguresOnNode",
    show="fedshift_app.features.figures.show:show",
    section="fedshift_app.features.figures.show:Figures",
    place=140,
    options=Options,
    evaluate=(Key(wire.FIGURES, "bool", "count predictions, confidence and scores"),),
    records=(Key(wire.COUNTS, "arrays of counts", "confusion matrix, calibration bins and score histograms"),),
    word=CLASS,
    tells="counts of test images by class, prediction and confidence",
    shows=True,
)
