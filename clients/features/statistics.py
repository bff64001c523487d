"""Statistics of the node's training images, reported once, and those of all nodes (``statistics.share``)."""

from collections.abc import Mapping
from typing import Any

from clients.features.base import Call, Client, NodeFeature, Request, Site
from datasets.quality import pixel_statistics
from fedshift_core.arrays import Arrays
from fedshift_core.options.statistics import BINS
from fedshift_core.wire.names import SITE_IMAGES
from fedshift_core.wire.site_images import FEW, MOST_KINDS, NUMBERS, POLICY, FederationImages, SiteImages


class SiteStatisticsOnNode(NodeFeature):
    """Tells the server statistics of the images, and gives the client those of all nodes."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow the question where the run asks for statistics, and those of all nodes where it sends them."""
        share = request.config.statistics.share
        if request.private:
            return request.private
        wanted = ("server", "nodes") if request.kind == "query" else ("nodes",)
        return "" if value is True and share in wanted else f"this run has statistics.share={share}"

    def sent_records(self, request: Request) -> tuple[str, ...]:
        """Allow the record of all nodes with a message that says so."""
        return (SITE_IMAGES,) if request.kind != "query" and SITE_IMAGES in request.given else ()

    def query(self, call: Call) -> dict[str, Any] | None:
        """Return the statistics, or why there are none."""
        if SITE_IMAGES not in call.options:
            return None
        if self.name in call.withheld:
            return SiteImages(kept=POLICY).to_config()
        least = max(call.least_images, call.config.statistics.least_images)
        return report_of(call.site(), least).to_config()

    def receive(self, client: Client, records: Mapping[str, Arrays]) -> None:
        """Give the client means and variances of all nodes."""
        if SITE_IMAGES in records:
            client.federation_images = FederationImages.from_arrays(records[SITE_IMAGES])


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
