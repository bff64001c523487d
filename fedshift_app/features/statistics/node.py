"""Statistics of the node's training images, reported once, and those of all nodes (``statistics.share``)."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_clients.calls import Site
from fedshift_clients.features import Call, Next, NodeFeature, Place, Question, Reply, Request
from fedshift_core.limits import BINS, MOST_STYLES
from fedshift_core.seeding import order_of
from fedshift_core.wire.image_styles import ImageStyles, Styles
from fedshift_core.wire.names import IMAGE_STYLES, SITE_IMAGES
from fedshift_core.wire.site_images import FEW, MOST_KINDS, NUMBERS, POLICY, FederationImages, SiteImages
from fedshift_datasets.quality import pixel_statistics

#: What an owner keeps back of it by a key of its own: statistics of single images.
OF_IMAGES = "image-statistics"


class SiteStatisticsOnNode(NodeFeature):
    """Tells the server statistics of the images, and gives the client those of all nodes."""

    place = Place.INPUTS
    takes = (SITE_IMAGES, IMAGE_STYLES)

    def refuse(self, request: Request) -> str:
        """Allow the question where the run asks for statistics, and those of all nodes where it sends them."""
        share, images = request.config.statistics.share, request.config.statistics.image_share
        given = request.given
        asks = given.get(SITE_IMAGES) is True and (request.kind == "query" or share == "nodes")
        styles = given.get(IMAGE_STYLES) is True and images > 0
        return (
            request.but(SITE_IMAGES, request.private or ("" if asks else f"this run has statistics.share={share}"))
            or request.but(
                IMAGE_STYLES, request.private or ("" if styles else f"this run has statistics.image_share={images:g}")
            )
            or request.no_record(*(name for name in self.takes if request.kind == "query" or name not in given))
        )

    def answer(self, call: Question) -> dict[str, Any] | None:
        """Return the statistics, or why there are none."""
        if SITE_IMAGES not in call.options:
            return None
        if self.name in call.withheld:
            return SiteImages(kept=POLICY).to_config()
        least = max(call.least_images, call.config.statistics.least_images)
        site, share = call.site(), call.config.statistics.image_share
        report = report_of(site, least)
        if share > 0 and report.reports and OF_IMAGES not in call.withheld:
            order = order_of(call.secret, call.config.seed, "image-statistics", call.index)
            report = replace(report, styles=styles(site, share, order.permutation(len(site.images))))
        return report.to_config()

    def on_train(self, call: Call, next: Next) -> Reply:
        """Give the client means and variances of all nodes; while no node tells any, it has none."""
        if SITE_IMAGES in call.records:
            call.client.federation_images = FederationImages.from_arrays(call.records[SITE_IMAGES]) or None
        if IMAGE_STYLES in call.records:
            call.client.image_styles = ImageStyles.from_arrays(call.records[IMAGE_STYLES])
        return next(call)

    on_scores = on_train


def styles(site: Site, share: float, drawn: NDArray[np.int64]) -> Styles:
    """Return means and deviations of a share of the node's images in drawn order (N,), so that no place is known."""
    images = site.images.x
    rows = pixel_statistics.styles(images[drawn[: min(int(share * len(images)), MOST_STYLES)]])
    return tuple(map(tuple, rows.tolist()))


def report_of(site: Site, least: int) -> SiteImages:
    """Return what a node tells of its images; ``least`` is the least number of them behind anything it tells."""
    if len(site.images) < least:
        return SiteImages(kept=FEW)
    numbers = pixel_statistics.of(site.images.x, BINS)
    sizes, modes = (f"{size[0]}x{size[1]}" for size, _ in site.files), (mode for _, mode in site.files)
    return SiteImages(
        numbers.images,
        {name: tuple(getattr(numbers, name).tolist()) for name in NUMBERS},
        tuple(map(tuple, numbers.histogram.tolist())),
        pixel_statistics.frequent(sizes, least, MOST_KINDS),
        pixel_statistics.frequent(modes, least, MOST_KINDS),
    )
