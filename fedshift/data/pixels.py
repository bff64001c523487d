"""The pixels of a data set's domains side by side, in the report of ``fedshift prepare``."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshift.run import columns as tables
from fedshift_core import site_differences
from fedshift_core.limits import MOST_NAME, shown
from fedshift_datasets.quality.checkup import Part
from fedshift_datasets.quality.pixel_statistics import PixelStatistics

BARS = " ▁▂▃▄▅▆▇█"  # of a histogram, from none to the most of a bin
HEAD = ["pixels, 0 to 1", "mean", "std", "5 %", "95 %", "histogram"]


def lines(domains: Sequence[str], parts: Sequence[Part]) -> list[str]:
    """Return a table of the first split of each domain, and a sentence on domains that clearly differ.

    A number is that of all channels where they are the same to two places, else of red, green and blue.
    """
    seen = _first(domains, parts)
    if not seen:
        return []
    rows = [
        [
            shown(domain, MOST_NAME),
            *(site_differences.channels_text(row, " ") for row in (s.mean, np.sqrt(s.variance), s.low, s.high)),
            _bars(s),
        ]
        for domain, s in seen.items()
    ]
    note = differing(domains, parts)
    if not note and len(seen) > 1:
        note = f"no two domains differ clearly ({site_differences.RULE})"
    return [*tables.columns([HEAD, *rows], "", ruled=True), *([note] if note else [])]


def differing(domains: Sequence[str], parts: Sequence[Part]) -> str:
    """Return a sentence on domains whose images clearly differ; empty if none do."""
    seen = _first(domains, parts)
    return site_differences.sentence({name: (s.mean.tolist(), s.variance.tolist()) for name, s in seen.items()})


def as_json(part: Part) -> dict[str, Any] | None:
    """Return the statistics of a part as JSON; None if it has none."""
    s = part.pixels
    if s is None:
        return None
    names = ("mean", "variance", "image_std", "low", "high", "histogram")
    return {"images": s.images} | {name: getattr(s, name).tolist() for name in names}


def _first(domains: Sequence[str], parts: Sequence[Part]) -> dict[str, PixelStatistics]:
    """Return the statistics of each domain's first split: its training images, if it has any."""
    seen: dict[str, PixelStatistics] = {}
    for part in parts:
        if part.pixels is not None and part.domain in domains:
            seen.setdefault(part.domain, part.pixels)
    return seen


def _bars(s: PixelStatistics) -> str:
    """Return the histogram of all channels together, a letter for each bin."""
    shares = s.histogram.mean(axis=0)
    heights = np.ceil(shares / shares.max() * (len(BARS) - 1)).astype(int)
    return "".join(BARS[height] for height in heights)
