"""Test images of real nodes that were not scored (``evaluate.test``)."""

from fedshift_core.features import Feature

FEATURE = Feature(
    "missing-tests",
    "Which test images of real nodes were not scored",
    "evaluate.test",
    "fedshift_app.features.missing_tests.server:MissingTests",
    show="fedshift_app.features.missing_tests.show:show",
    place=180,
)
