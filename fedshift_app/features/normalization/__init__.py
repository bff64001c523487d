"""Images normalised by statistics of the nodes (``images.normalization``)."""

from typing import TYPE_CHECKING

from fedshift_core.errors import ConfigError
from fedshift_core.features import Feature


def _rules(case: "Case") -> None:
    images, share = case.config.images, case.config.statistics.share
    setting = f"images.normalization={images.normalization}"
    if images.normalization != "fedrdn" and images.normalization_draw != "image":
        raise ConfigError(
            f"images.normalization_draw={images.normalization_draw} needs images.normalization=fedrdn, "
            f"found {images.normalization}"
        )
    if images.normalization == "fixed":
        return
    if share != "nodes":
        raise ConfigError(f"{setting} needs means and variances of all nodes: statistics.share=nodes, found {share}")
    if case.config.model.precompute:
        raise ConfigError(
            f"{setting} changes images that model.precompute=on computes features of once; allowed is "
            "model.precompute=off"
        )


if TYPE_CHECKING:
    from fedshift_app.config.needs import Case


FEATURE = Feature(
    "normalization",
    "Images normalised by statistics of the nodes",
    "images.normalization",
    place=50,
    rules=_rules,
    node="fedshift_app.features.normalization.node:NormalizationOnNode",
)
