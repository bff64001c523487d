"""Images normalised by statistics of the nodes (``images.normalization``)."""

from fedshift_core.features import Feature

FEATURE = Feature(
    "normalization",
    "Images normalised by statistics of the nodes",
    "images.normalization",
    place=50,
    node="fedshift_app.features.normalization.node:NormalizationOnNode",
)
