"""Shown of the statistics of its nodes' images: ``statistics.json``, and a key of ``results.json``."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from fedshift_core import site_differences
from fedshift_core.limits import BINS
from fedshift_core.shown import FromFile, History, Named, Shown
from fedshift_core.wire.site_images import SiteImages
from fedshift_strategies.federation.nodes import Node

KEY = "statistics"

Share = Annotated[float, Field(ge=0, le=1 + 1e-6)]
Triple = tuple[Share, Share, Share]


def show(history: History) -> Shown:
    """Return what the nodes report until the last round; nothing if none was asked."""
    sites: Sequence[Named] = history.rounds[-1].passing.get(KEY, ()) if history.rounds else ()
    if not sites:
        return Shown()
    by_place = {node.index: node for node in history.nodes}
    moments = {s.name: (s.given.numbers["mean"], s.given.numbers["variance"]) for s in sites if s.given.reports}
    section = {
        "round": history.rounds[-1].server_round,
        "classes": list(history.classes),
        "bins": BINS,
        "sites": [_site(site, by_place.get(site.node)) for site in sites],
        "differ": site_differences.sentence(moments),
        "rule": site_differences.RULE,
    }
    return Shown(section=section)


class Site(FromFile):
    """What one node reports of its training images; numbers are None where it tells nothing."""

    site: str
    node: int
    domain: str
    images: NonNegativeInt
    images_of_class: tuple[str, ...] = ()
    kept: str = ""
    mean: Triple | None = None
    variance: Triple | None = None
    image_std: Triple | None = None
    low: Triple | None = None
    high: Triple | None = None
    histogram: tuple[tuple[Share, ...], ...] = Field((), max_length=3)
    sizes: dict[str, int] = Field(default_factory=dict)
    modes: dict[str, int] = Field(default_factory=dict)


class Statistics(FromFile):
    """The key ``statistics`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = ()
    bins: int = BINS
    sites: tuple[Site, ...]
    differ: str = ""
    rule: str = ""


def _site(site: Named, node: Node | None) -> dict[str, Any]:
    report: SiteImages = site.given
    about: dict[str, Any] = {
        "site": site.name,
        "node": site.node,
        "domain": site.domain,
        "images": report.images if node is None else node.num_examples,
        "images_of_class": [] if node is None else list(map(str, node.class_counts)),
    }
    if report.kept:
        return about | {"kept": report.kept}
    return (
        about
        | {name: list(row) for name, row in report.numbers.items()}
        | {"histogram": list(map(list, report.histogram)), "sizes": dict(report.sizes), "modes": dict(report.modes)}
    )
