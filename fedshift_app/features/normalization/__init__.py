"""Images normalised by statistics of the nodes (``images.normalization``)."""

from fedshift_core.features import Case, Feature


def _rules(case: Case) -> str:
    images, share = case.config.images, case.config.statistics.share
    setting = f"images.normalization={images.normalization}"
    if images.normalization == "fixed":
        return ""
    if share != "nodes":
        return f"{setting} needs means and variances of all nodes: statistics.share=nodes, found {share}"
    if case.config.model.precompute:
        return (
            f"{setting} changes images that model.precompute=on computes features of once; allowed is "
            "model.precompute=off"
        )
    return ""


FEATURE = Feature(
    "normalization",
    "Images normalised by statistics of the nodes",
    "images.normalization",
    place=50,
    rules=_rules,
    node="fedshift_app.features.normalization.node:NormalizationOnNode",
)
