"""``fedshift compare --sites``: a figure that sites worked out themselves, sites by method, with 95 % intervals."""

import json
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.lab.tables.compare.formats import escaped, markdown_table, text_table
from fedshift.lab.tables.compare.rows import Row, named
from fedshift.lab.tables.compare.table import mix_warnings, numbers
from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results.metrics import LAST_OR_KEPT
from fedshift_app.features.site_figures.show import Figure, Site, Sites, how_intervals
from fedshift_core.cells import csv_text
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, as_found, plain
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_core.wire.site_figures import BY_CLASS, OVERALL

ALL = "all sites"


@dataclass(frozen=True)
class Entry:
    """The figure of one site in one run."""

    site: str
    row: str
    seed: int
    images: int | None
    patients: int | None
    figure: Figure
    of_classes: int = 0  # classes of the run; 0 where the file does not say


@dataclass(frozen=True)
class SiteTable:
    """A figure of each site by method.

    Attributes:
        title: What is compared.
        figure: Its name, with the class of a figure of one.
        sites: The sites in their order, that of all of them last.
        rows: The methods, or other rows of the comparison, in their order.
        entries: One of each site and run.
        notes: What a reader must know of the numbers.
        warnings: What misleads.
        unreadable: Runs that cannot be read.
    """

    title: str
    figure: str
    sites: tuple[str, ...]
    rows: tuple[str, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    unreadable: tuple[str, ...] = ()

    def grid(self) -> list[list[str]]:
        """Return the head and the lines of the table."""
        lines = [["site", "images", "patients", *self.rows]]
        seeds = {row: len({entry.seed for entry in self.entries if entry.row == row}) for row in self.rows}
        for site in self.sites:
            mine = [entry for entry in self.entries if entry.site == site]
            cells = [_cell([entry for entry in mine if entry.row == row], seeds[row]) for row in self.rows]
            lines.append([site, _range(entry.images for entry in mine), _range(e.patients for e in mine), *cells])
        return lines

    def text(self, width: int | None = None) -> str:
        """Return aligned lines; methods that do not fit follow in blocks."""
        head, *lines = self.grid()
        return text_table(self.title, head, lines, self.warnings, self.notes, width, repeated=3)

    def markdown(self) -> str:
        """Return a Markdown table with its notes."""
        head, *lines = self.grid()
        rows = [list(map(escaped, line)) for line in lines]
        return markdown_table(self.title, head, rows, self.warnings, self.notes)

    def csv(self) -> str:
        """Return one line per site and run; an unknown value is empty, and its mark says why."""
        records = self._records()
        return csv_text([records[0], *(record.values() for record in records)])

    def json(self) -> str:
        """Return all numbers, notes and warnings; an unknown value is null, and its mark says why."""
        content = {"title": self.title, "figure": self.figure, "values": self._records(),
                   "notes": self.notes, "warnings": self.warnings}  # fmt: skip
        return json.dumps(content, indent=2)

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "site": entry.site, "row": entry.row, "seed": entry.seed, "figure": self.figure,
                "value": entry.figure.value, "low": entry.figure.low, "high": entry.figure.high,
                "mark": entry.figure.mark, "images": entry.images, "patients": entry.patients,
                "classes": entry.figure.classes, "how": entry.figure.how,
            }
            for entry in self.entries
        ]  # fmt: skip


def table(
    paths: Sequence[Path], figure: str, *, allow_different: bool = False, scored: str = "", held_out: bool = False
) -> SiteTable:
    """Compare a figure of sites, see ``fedshift.lab.tables.compare.by_site``."""
    name, _, label = figure.partition(":")
    allowed = BY_CLASS if label else OVERALL
    if name not in allowed or figure.endswith(":"):
        forms = [*OVERALL, *(f"{kind}:CLASS" for kind in BY_CLASS)]
        raise ConfigError(f"--sites is {as_found(figure)}; allowed are {', '.join(forms)}{meant(name, OVERALL)}")
    compared = numbers(
        paths, paper="", score="last5", allow_different=allow_different, scored=scored, held_out=held_out, of_kept=True
    )
    runs = [(row, part) for row in compared.rows for part in row.runs]
    have = [(row, run, run.results.site_figures) for row, run in runs if run.results.site_figures is not None]
    if not have:
        raise ConfigError(
            f"--sites {plain(figure, MOST_NAME)}: none of these runs has metrics of sites (evaluate.site_figures=true; "
            "runs of earlier versions have none)"
        )
    entries: list[Entry] = []
    for row, run, sites in have:
        chosen = _held_out(sites, run.config[HELD_OUT]) if held_out else sites
        entries += _entries(row, run.results.seed, chosen, name, label)
    if not entries:
        raise ConfigError(
            f"--sites {plain(figure, MOST_NAME)} --unseen: these runs have metrics of sites, but of no domain that was "
            "held out"
        )
    lacking = [run.name for row, run in runs if run.results.site_figures is None]
    order = dict.fromkeys(sorted((entry.site for entry in entries), key=ALL.__eq__))  # all of them last
    return SiteTable(
        title=f"{name.replace('_', ' ')}{f' of {label}' if label else ''} (0 to 1) of each site"
        f"{' of a domain that no node held' if held_out else ''}, by method, in the {LAST_OR_KEPT}",
        figure=figure,
        sites=tuple(order),
        rows=tuple(dict.fromkeys(entry.row for entry in entries)),
        entries=tuple(entries),
        notes=tuple(_notes(entries, [sites for _, _, sites in have], lacking)),
        warnings=(*mix_warnings([run for _, run, _ in have]), *compared.warnings),
        unreadable=compared.unreadable,
    )


def _held_out(sites: Sites, domains: Collection[str]) -> Sites:
    """Return the sites of domains that no node of a run held; figures of all sites are of others, too."""
    return sites.model_copy(
        update={"sites": tuple(site for site in sites.sites if site.domain in domains), "overall": None}
    )


def _entries(row: Row, seed: int, sites: Sites, name: str, label: str) -> list[Entry]:
    """Return the figure of each site of a run, and of all of them."""
    entries, classes = [], len(sites.classes)
    for site in (*sites.sites, *([sites.overall] if sites.overall is not None else [])):
        if not label:
            entries.append(Entry(site.site, named(row), seed, site.images, site.patients, site.figure(name), classes))
        elif site is not sites.overall or name in site.per_class:
            images, figure = _of_class(site, sites.classes, name, label)
            entries.append(Entry(site.site, named(row), seed, images, site.patients, figure))
    return entries


def _of_class(site: Site, classes: Sequence[str], name: str, label: str) -> tuple[int | None, Figure]:
    if not site.per_class:
        raise ConfigError("--sites: files that --keep wrote have no metrics of classes; name the run folders")
    if label not in classes:
        raise ConfigError(
            f"--sites {name}: there is no class {as_found(label)}; the classes are {', '.join(classes)}"
            f"{meant(label, tuple(classes))}"
        )
    k = classes.index(label)
    column = site.per_class.get(name)
    images = site.images_of_class[k] if k < len(site.images_of_class) else None
    if column is None or k >= len(column.value):
        return images, Figure(value=None, low=None, high=None)
    return images, column.at(k)


def _notes(entries: Sequence[Entry], runs: Iterable[Sites], lacking: Sequence[str]) -> list[str]:
    notes = [
        f"95 %, worked out on the nodes (docs/guide/figures.md): {how_intervals(runs)}; patients: -, where a site does "
        "not know"
    ]
    seeds = {entry.seed for entry in entries}
    if len(seeds) > 1:
        notes.append("of several seeds: the mean of the values, and of the limits of their intervals")
    ways = sorted({entry.figure.how for entry in entries if entry.figure.how})
    if ways:
        notes.append(f"{ALL}: {' or '.join(ways)}")
    if lacking:
        notes.append(f"left out, without metrics of sites: {', '.join(lacking)}")
    return notes


def _cell(entries: Sequence[Entry], seeds: int) -> str:
    """Return a figure over seeds with its interval, and with the numbers of classes and seeds where some are left out.

    Args:
        entries: Of the site and row.
        seeds: The seeds of the row.
    """
    figures = [entry.figure for entry in entries]
    known = [(f.value, f.low, f.high) for f in figures if None not in (f.value, f.low, f.high)]
    if not known:
        return next((figure.mark for figure in figures if figure.mark), "-")
    value, low, high = (statistics.fmean(column) for column in zip(*known, strict=True))
    fewer = [e for e in entries if e.figure.classes is not None and e.figure.classes < e.of_classes]
    classes = (
        f", {_range(e.figure.classes for e in fewer)} of {plural(fewer[0].of_classes, 'class', 'classes')}"
        if fewer
        else ""
    )
    of_seeds = f", {len(known)} of {plural(seeds, 'seed')}" if len(known) < seeds else ""
    return f"{value:.3f} ({low:.3f} to {high:.3f}){classes}{of_seeds}"


def _range(numbers: Any) -> str:
    known = sorted({number for number in numbers if number is not None})
    if not known:
        return "-"
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
