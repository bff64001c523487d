"""``fedshift compare --sites``: a figure that sites worked out themselves, sites by method, with 95 % intervals."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.lab.tables.compare import frame
from fedshift.lab.tables.compare.formats import escaped, markdown_table, text_table
from fedshift.lab.tables.compare.table import Asked, mix_warnings, numbers
from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results.metrics import LAST_OR_KEPT
from fedshift_app.features.site_figures.show import Figure, Site, Sites, how_intervals
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, as_found, plain
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_core.wire.site_figures import BY_CLASS, OVERALL

if TYPE_CHECKING:
    import pandas as pd

ALL = "all sites"
COLUMNS = (
    *("site", "row", "seed", "figure", "value", "low", "high", "mark", "images", "patients", "classes", "how"),
)  # of a line of CSV


@dataclass(frozen=True)
class SiteTable:
    """A figure of each site by method.

    Attributes:
        title: What is compared.
        figure: Its name, with the class of a figure of one.
        values: One row per site and run: value with its interval (0 to 1), images, patients, classes; missing is NaN,
            and its mark says why.
        notes: What a reader must know of the numbers.
        warnings: What misleads.
        unreadable: Runs that cannot be read.
    """

    title: str
    figure: str
    values: "pd.DataFrame"
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    unreadable: tuple[str, ...]

    def grid(self) -> list[list[str]]:
        """Return the head and the lines of the table: the sites, all of them last, by row of the comparison."""
        rows = list(dict.fromkeys(self.values["row"]))
        seeds = self.values.groupby("row")["seed"].nunique()
        lines = [["site", "images", "patients", *rows]]
        for site in sorted(dict.fromkeys(self.values["site"]), key=ALL.__eq__):
            mine = self.values[self.values["site"] == site]
            cells = [_cell(mine[mine["row"] == row], int(seeds[row])) for row in rows]
            lines.append([site, _range(mine["images"]), _range(mine["patients"]), *cells])
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
        return frame.csv(self.values[list(COLUMNS)])

    def json(self) -> str:
        """Return all numbers, notes and warnings; an unknown value is null, and its mark says why."""
        values = json.loads(self.values[list(COLUMNS)].to_json(orient="records", double_precision=15))
        content = {"title": self.title, "figure": self.figure, "values": values, "notes": self.notes}
        return json.dumps(content | {"warnings": self.warnings}, indent=2)


def table(
    paths: Sequence[Path], figure: str, *, allow_different: bool = False, scored: str = "", held_out: bool = False
) -> SiteTable:
    """Compare a figure of each site, as it worked it out itself, by method.

    Args:
        paths: As ``runs`` of ``compare``.
        figure: A figure over all classes, such as ``auroc``, or of one class, such as ``sensitivity:benign``.
        allow_different: As of ``compare``.
        scored: As of ``compare``.
        held_out: As of ``compare``.

    Raises:
        ConfigError: As ``compare``; if the figure is unknown, or no run has it.
    """
    name, _, label = figure.partition(":")
    allowed = BY_CLASS if label else OVERALL
    if name not in allowed or figure.endswith(":"):
        forms = [*OVERALL, *(f"{kind}:CLASS" for kind in BY_CLASS)]
        raise ConfigError(f"--sites is {as_found(figure)}; allowed are {', '.join(forms)}{meant(name, OVERALL)}")
    asked = Asked(allow_different=allow_different, scored=scored, held_out=held_out, of_kept=True)
    compared = numbers(paths, asked)
    runs = [(row, part) for row in compared.rows for part in row.runs]
    have = [(row, run, run.results.site_figures) for row, run in runs if run.results.site_figures is not None]
    if not have:
        raise ConfigError(
            f"--sites {plain(figure, MOST_NAME)}: none of these runs has metrics of sites (evaluate.site_figures=true; "
            "runs of earlier versions have none)"
        )
    import pandas as pd

    records = [
        {"row": row.name, "seed": run.results.seed, "figure": figure, **record}
        for row, run, sites in have
        for record in _records(_held_out(sites, run.config[HELD_OUT]) if held_out else sites, name, label)
    ]
    if not records:
        raise ConfigError(
            f"--sites {plain(figure, MOST_NAME)} --unseen: these runs have metrics of sites, but of no domain that was "
            "held out"
        )
    values = pd.DataFrame(records).astype(dict.fromkeys(("images", "patients", "classes", "of_classes"), "Int64"))
    lacking = [run.name for row, run in runs if run.results.site_figures is None]
    return SiteTable(
        title=f"{name.replace('_', ' ')}{f' of {label}' if label else ''} (0 to 1) of each site"
        f"{' of a domain that no node held' if held_out else ''}, by method, in the {LAST_OR_KEPT}",
        figure=figure,
        values=values,
        notes=tuple(_notes(values, [sites for _, _, sites in have], lacking)),
        warnings=(*mix_warnings([run for _, run, _ in have]), *compared.warnings),
        unreadable=compared.unreadable,
    )


def _held_out(sites: Sites, domains: Collection[str]) -> Sites:
    """Return the sites of domains that no node of a run held; figures of all sites are of others, too."""
    held_out = tuple(site for site in sites.sites if site.domain in domains)
    return sites.model_copy(update={"sites": held_out, "overall": None})


def _records(sites: Sites, name: str, label: str) -> list[dict[str, Any]]:
    """Return the figure of each site of a run, and of all of them."""
    if label and not any(site.per_class for site in sites.sites):
        raise ConfigError("--sites: files that --keep wrote have no metrics of classes; name the run folders")
    if label and label not in sites.classes:
        there = f"the classes are {', '.join(sites.classes)}{meant(label, tuple(sites.classes))}"
        raise ConfigError(f"--sites {name}: there is no class {as_found(label)}; {there}")
    records: list[dict[str, Any]] = []
    images: int | None
    for site in (*sites.sites, *filter(None, [sites.overall])):
        if not label:
            (images, figure), classes = (site.images, site.figure(name)), len(sites.classes)
        elif site is not sites.overall or name in site.per_class:
            (images, figure), classes = _of_class(site, sites.classes.index(label), name), 0
        else:
            continue
        of_site = {"site": site.site, "images": images, "patients": site.patients, "of_classes": classes}
        records.append(of_site | figure.model_dump())
    return records


def _of_class(site: Site, k: int, name: str) -> tuple[int | None, Figure]:
    column = site.per_class.get(name)
    images = site.images_of_class[k] if k < len(site.images_of_class) else None
    if column is None or k >= len(column.value):
        return images, Figure(value=None, low=None, high=None)
    return images, column.at(k)


def _notes(values: "pd.DataFrame", runs: Iterable[Sites], lacking: Sequence[str]) -> list[str]:
    notes = [
        f"95 %, worked out on the nodes (docs/guide/figures.md): {how_intervals(runs)}; patients: -, where a site does "
        "not know"
    ]
    if values["seed"].nunique() > 1:
        notes.append("of several seeds: the mean of the values, and of the limits of their intervals")
    if ways := sorted({how for how in values["how"] if how}):
        notes.append(f"{ALL}: {' or '.join(ways)}")
    if lacking:
        notes.append(f"left out, without metrics of sites: {', '.join(lacking)}")
    return notes


def _cell(values: "pd.DataFrame", seeds: int) -> str:
    """Return a figure over seeds with its interval, and with the numbers of classes and seeds where some are left out.

    Args:
        values: Of the site and row.
        seeds: The seeds of the row.
    """
    known = values.dropna(subset=["value", "low", "high"])
    if known.empty:
        return next((mark for mark in values["mark"] if mark), "-")
    value, low, high = known[["value", "low", "high"]].mean()
    fewer = values[(values["classes"] < values["of_classes"]).fillna(value=False)]
    of_all = "" if fewer.empty else plural(int(fewer["of_classes"].iloc[0]), "class", "classes")
    classes = f", {_range(fewer['classes'])} of {of_all}" if of_all else ""
    of_seeds = f", {len(known)} of {plural(seeds, 'seed')}" if len(known) < seeds else ""
    return f"{value:.3f} ({low:.3f} to {high:.3f}){classes}{of_seeds}"


def _range(numbers: "pd.Series[Any]") -> str:
    known = numbers.dropna()
    if known.empty:
        return "-"
    least, most = known.min(), known.max()
    return str(least) if least == most else f"{least} to {most}"
