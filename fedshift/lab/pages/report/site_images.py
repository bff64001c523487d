"""The sites' images side by side, by what each node reports of its training images (docs/guide/statistics.md)."""

from collections.abc import Sequence

from fedshift.run.html.drawing import TEXT, Plot, canvas
from fedshift.run.html.sections import Section, Table
from fedshift_app.features.statistics.show import Site, Statistics
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.plural import plural
from fedshift_core.site_differences import channels_text
from fedshift_core.wire.site_images import FEW, POLICY

COLOURS = ("#c0504d", "#4f9d4f", "#3d7cc4")  # of red, green and blue, on both themes
DRAWN = 24  # sites with a histogram
COLUMNS = 4  # histograms in a row
KEPT = {POLICY: "not reported: its owner's policy", FEW: "not reported: too few images"}
MOST_KINDS = 3  # sizes and modes that a cell names


def section(statistics: Statistics) -> Section:
    """Return the section of the page."""
    part = Section("images", "Images of the sites")
    reporting = [site for site in statistics.sites if site.mean is not None]
    part.notes.append(
        "Of each site's training images as the network is given them, before augmentation and normalisation: values "
        "from 0 to 1. A share of the pixels lies in each of the bins of a histogram."
    )
    if statistics.differ:
        part.notes.append(f"Warning: {statistics.differ}.")
    elif len(reporting) > 1:
        part.notes.append(f"No two sites differ clearly ({statistics.rule}).")
    if reporting:
        part.figures.append(_histograms(reporting[:DRAWN]))
    if len(reporting) > DRAWN:
        part.notes.append(f"Histograms of {plural(len(reporting) - DRAWN, 'more site')} are in statistics.json.")
    heads = [
        "site",
        "images",
        "fewest and most of a class",
        "mean",
        "standard deviation",
        "5th percentile",
        "95th percentile",
        "sizes of files",
        "modes",
    ]
    part.tables.append(
        Table(
            "site-images", heads, [_row(site) for site in statistics.sites], "Images by site", len(reporting) <= DRAWN
        )
    )
    return part


def _row(site: Site) -> list[str]:
    start = [plain(site.site, MOST_NAME), str(site.images), _classes(site.images_of_class)]
    if site.mean is None or site.variance is None or site.low is None or site.high is None:
        return [*start, KEPT.get(site.kept, f"not reported: {plain(site.kept)}"), *["-"] * 5]
    stds = tuple(value**0.5 for value in site.variance)
    return [
        *start,
        *(channels_text(row) for row in (site.mean, stds, site.low, site.high)),
        _kinds(site.sizes),
        _kinds(site.modes),
    ]


def _classes(counts: Sequence[str]) -> str:
    """Return the fewest and the most images of a class, as far as the node tells its numbers."""
    numbers = [int(count) for count in counts if count.isdigit()]
    hidden = len(counts) - len(numbers)
    text = f"{min(numbers)} to {max(numbers)}" if numbers else "-"
    return f"{text}, {hidden} hidden" if hidden else text


def _kinds(kinds: dict[str, int]) -> str:
    named = [f"{plain(name, MOST_NAME)}: {number}" for name, number in list(kinds.items())[:MOST_KINDS]]
    more = [f"{len(kinds) - MOST_KINDS} more"] if len(kinds) > MOST_KINDS else []
    return ", ".join([*named, *more]) or "-"


def _histograms(sites: Sequence[Site]) -> Plot:
    columns = min(COLUMNS, len(sites))
    rows = -(-len(sites) // columns)
    figure, axes = canvas(0.4 + 1.05 * rows, rows, columns, sharex=True, sharey=True)
    for place, panel in enumerate(axes):
        if place >= len(sites):
            panel.set_axis_off()
            continue
        site = sites[place]
        panel.set_title(plain(site.site, MOST_NAME)[:18], fontsize=9)
        bins = len(site.histogram[0])
        edges = [i / bins for i in range(bins + 1)]
        gray = len(set(site.histogram)) == 1
        for colour, row in zip(COLOURS, site.histogram[:1] if gray else site.histogram, strict=False):
            panel.stairs(row, edges, color=TEXT if gray else colour, fill=gray, alpha=0.6 if gray else 1.0)
        panel.set_yticks([])
        panel.set_xlim(0, 1)
        panel.set_xticks([0, 1])
    caption = "Histograms of pixels by site: red, green and blue, or one where all three are the same."
    return Plot(figure, "site-histograms", caption)
