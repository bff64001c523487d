"""Statistics of the nodes' images, reported once (``statistics.share``)."""

from typing import Annotated, Literal

from pydantic import Field

from fedshift_core.disclosure import IMAGE, SUM
from fedshift_core.features import Case, Feature, FeatureOptions, Key
from fedshift_core.params import OFF_IS_A_WORD, Probability
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """What each node tells once, before it trains, of the pixels and files of its training images."""

    section = "statistics"
    #: A real node's owner lets them out by ``statistics`` of the policy; else the run goes on without the node's.
    share: Annotated[Literal["off", "server", "nodes"], OFF_IS_A_WORD] = "off"
    """Who learns means, variances, percentiles and histograms of each node's training images: nobody (off), the server
    (server), or the server and, of means and variances, all nodes (nodes).
    """
    least_images: int = Field(20, ge=2, le=10**6)
    """Least number of training images behind a node's statistics, and behind a size or mode of its files; a node with
    fewer tells none.
    """
    #: A real node's owner lets them out by ``image_statistics`` of the policy.
    image_share: Probability = 0.0
    """Share of a node's training images of which it tells channel means and deviations one by one, for a method that
    mixes styles of other nodes' images; needs share=nodes. 0: of none.
    """


def _rules(case: Case) -> str:
    method, client_class, options = case.method.name, case.method.client_class(), Options.read(case.config)
    if client_class.uses_statistics and options.share != "nodes":
        return (
            f"statistics.share={options.share}: the method {method!r} needs means and variances of all nodes' images; "
            "allowed is statistics.share=nodes"
        )
    needed, setting = client_class.needs_image_styles(case.params), f"statistics.image_share={options.image_share:g}"
    if options.image_share > 0 and options.share != "nodes":
        return f"{setting} needs statistics.share=nodes, found {options.share}"
    if options.image_share > 0 and not needed:
        return (
            f"{setting}: the method {method!r}, as it is configured, uses no statistics of single images, which nodes "
            "would tell for nothing; allowed is 0"
        )
    if needed and options.image_share == 0:
        return (
            f"{setting}: the method {method!r} needs channel means and deviations of single images of other nodes; "
            "allowed is statistics.share=nodes statistics.image_share=0.1, for example"
        )
    return ""


_ALONG = (
    Key(wire.SITE_IMAGES, "bool", "means and variances of all nodes' images go along"),
    Key(wire.IMAGE_STYLES, "bool", "means and deviations of single images of all nodes go along"),
)
FEATURE = Feature(
    "statistics",
    "Statistics of the nodes' images, reported once",
    "statistics.share",
    "fedshift_app.features.statistics.server:SiteStatistics",
    "fedshift_app.features.statistics.node:SiteStatisticsOnNode",
    show="fedshift_app.features.statistics.show:show",
    section="fedshift_app.features.statistics.show:Statistics",
    place=40,
    options=Options,
    rules=_rules,
    train=_ALONG,
    evaluate=_ALONG,
    query=(Key(wire.SITE_IMAGES, "bool", "tell statistics of the training images"),),
    query_reply=(
        Key(wire.STATISTICS_KEPT, "text", "why the node tells none: policy or few"),
        Key(wire.STATISTICS_IMAGES, "int", "training images behind them"),
        Key(wire.STATISTICS_OF, "list of float", "mean, variance, percentiles and histogram of each channel"),
        Key(
            wire.STATISTICS_STYLES, "list of float", "means and deviations of some images, six numbers each", word=IMAGE
        ),
        Key(wire.STATISTICS_SIZES, "list of text", "sizes of the images' files, or other"),
        Key(wire.STATISTICS_SIZE_COUNTS, "list of int", "images of each size"),
        Key(wire.STATISTICS_MODES, "list of text", "modes of the images' files, or other"),
        Key(wire.STATISTICS_MODE_COUNTS, "list of int", "images of each mode"),
    ),
    records=(
        Key(wire.SITE_IMAGES, "arrays (K, 3) float64", "to the node: means and variances of K nodes' images"),
        Key(wire.IMAGE_STYLES, "arrays (M, 3) float32", "to the node: means and deviations of M images"),
    ),
    word=SUM,
    tells="means, variances, percentiles and histograms of the node's training images; with "
    "statistics.image_share means and deviations of single ones",
)
