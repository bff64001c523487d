"""Statistics of the node's training images, reported once, and those of all nodes (``statistics.share``)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_clients.features.base import Call, Client, NodeFeature, Request, Site
from fedshift_core.arrays import Arrays
from fedshift_core.limits import BINS, MOST_STYLES
from fedshift_core.seeding import order_of
from fedshift_core.wire.image_styles import ImageStyles, Rows
from fedshift_core.wire.names import IMAGE_STYLES, SITE_IMAGES
from fedshift_core.wire.site_images import FEW, MOST_KINDS, NUMBERS, POLICY, FederationImages, SiteImages
from fedshift_datasets.quality import pixel_statistics

#: What an owner keeps back of it by a key of its own: statistics of single images.
OF_IMAGES = "image-statistics"


class SiteStatisticsOnNode(NodeFeature):
    """Tells the server statistics of the images, and gives the client those of all nodes."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow the question where the run asks for statistics, and those of all nodes where it sends them."""
        share, images = request.config.statistics.share, request.config.statistics.image_share
        if request.private:
            return request.private
        if key == IMAGE_STYLES:
            return "" if value is True and images > 0 else f"this run has statistics.image_share={images:g}"
        wanted = ("server", "nodes") if request.kind == "query" else ("nodes",)
        return "" if value is True and share in wanted else f"this run has statistics.share={share}"

    def sent_records(self, request: Request) -> tuple[str, ...]:
        """Allow the record of all nodes with a message that says so."""
        return tuple(name for name in (SITE_IMAGES, IMAGE_STYLES) if request.kind != "query" and name in request.given)

    def query(self, call: Call) -> dict[str, Any] | None:
        """Return the statistics, or why there are none."""
        if SITE_IMAGES not in call.options:
            return None
        if self.name in call.withheld:
            return SiteImages(kept=POLICY).to_config()
        least = max(call.least_images, call.config.statistics.least_images)
        site, share = call.site(), call.config.statistics.image_share
        answer = report_of(site, least)
        if share > 0 and answer.reports and OF_IMAGES not in call.withheld:
            answer = replace(answer, styles=styles(site, share, _order(call, len(site.images))))
        return answer.to_config()

    def receive(self, client: Client, records: Mapping[str, Arrays]) -> None:
        """Give the client means and variances of all nodes; while no node tells any, it has none."""
        if SITE_IMAGES in records:
            client.federation_images = FederationImages.from_arrays(records[SITE_IMAGES]) or None
        if IMAGE_STYLES in records:
            client.image_styles = ImageStyles.from_arrays(records[IMAGE_STYLES])


def _order(call: Call, images: int) -> NDArray[np.int64]:
    return order_of(call.secret, call.config.seed, "image-statistics", call.index).permutation(images)


def styles(site: Site, share: float, drawn: NDArray[np.int64]) -> Rows:
    """Return means and deviations of a share of the node's images in drawn order (N,), so that no place is known."""
    images = site.images.x
    chosen = drawn[: min(int(share * len(images)), MOST_STYLES)]
    return tuple(tuple(row) for row in pixel_statistics.styles(images[chosen]).tolist())


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
