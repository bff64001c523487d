"""The figures of a comparison, for its page and as files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.lab.tables.compare import tradeoff
from fedshift.lab.tables.compare.paper_names import column as column_name
from fedshift.lab.tables.compare.paper_names import row_text, text_of
from fedshift.lab.tables.compare.rows import Row, baseline, runs_of
from fedshift.lab.tables.compare.table import Numbers, measure
from fedshift.lab.tables.results.differences import OTHER_IMAGES
from fedshift.lab.tables.results.metrics import LOWEST_IS_BEST
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.run.html.drawing import (
    DOMAINS,
    GRID,
    TEXT,
    WIDTH,
    Plot,
    canvas,
    domain_colour,
    domain_marker,
    legend_above,
    shown_rounds,
    style,
    titled,
)
from fedshift_core.accuracies import STD
from fedshift_core.limits import MOST_NAME, plain, shortened, some
from fedshift_core.plural import capital, plural

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS, MOST_COLUMNS = 60, 12  # that have figures
LABEL, SHORT_NAME, LETTER = 48, 16, 0.075  # characters of a row's name; for which the usual width is enough; inches
AXIS_LETTERS = 11  # characters of an axis' label in an inch
MOST_NAMED = 12  # rows that a line names
BELOW = 0.28  # distance of the seeds below their mean, as a share of a row
LOG_FROM = 20  # ratio of the largest to the smallest cost from which the axis is logarithmic
PANELS, PANEL_TITLE = 3, 22  # panels in a line; characters of a line of a panel's title
OURS, PAPERS = domain_colour(0), domain_colour(1)
#: What a dashed line is, in captions.
DASHED = f" Dashed: {text_of(BASELINE)} of the row's group."
#: Scores that are the accuracies of rounds, whose curves they belong to.
BY_ROUND = ("last5", "final", "best", "validation")
_COSTS = {tradeoff.BYTES: "bytes", tradeoff.SECONDS: "seconds", tradeoff.FLOPS: "flops"}


class Figures(NamedTuple):
    """The figures of a comparison.

    Attributes:
        drawn: Difference to the baseline, curves, columns, and the headline against each cost.
        lacking: What the numbers of groups stand for, and reasons why figures are missing.
    """

    drawn: list[Plot]
    lacking: list[str]


def plots(numbers: Numbers) -> Figures:
    """Draw the figures for which the runs have numbers; rows are named as papers print them."""
    if len(numbers.rows) > MOST_ROWS:
        return Figures([], [f"More than {MOST_ROWS} rows: no figures."])
    numbers, lacking = _numbered(numbers)
    columns = sorted((name for name in numbers.columns if name != STD), key=lambda name: name != numbers.headline)
    with style():
        curves, prices = list(_curves(numbers)), list(_prices(numbers))
        drawn = [*_difference(numbers), *curves, *_columns(numbers, columns[:MOST_COLUMNS]), *prices]
    if (more := len(columns) - MOST_COLUMNS) > 0:
        lacking.append(f"no figure of {plural(more, 'more column')} of the table.")
    if numbers.score in BY_ROUND and not curves:
        lacking.append("No curves over the rounds: the files of these runs have none.")
    if numbers.costs is not None and not prices:
        lacking.append("No figure of costs: none of these rows was measured as it is.")
    if refused := [row.name for row in numbers.rows if row.refused]:
        lacking.append(f"No difference to {text_of(BASELINE)} of {some(refused, MOST_NAMED)}: {OTHER_IMAGES}.")
    return Figures(drawn, lacking)


def _numbered(numbers: Numbers) -> tuple[Numbers, list[str]]:
    """Return a comparison with the names of figures, in which groups are numbers, and the key of these."""
    groups = list(dict.fromkeys(row.group for row in numbers.rows if row.group))
    numbered = {group: str(i) for i, group in enumerate(groups, 1)}
    rows = [replace(row, label=row_text(row), group=numbered.get(row.group, "")) for row in numbers.rows]
    key = "; ".join(f"[{number}] {plain(group, 4 * MOST_NAME)}" for group, number in numbered.items())
    return replace(numbers, rows=tuple(rows)), [f"Groups: {key}."] if key else []


def _canvas(
    numbers: Numbers, height: float, lines: int = 1, across: int = 1, **more: object
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with its axes; long names of rows make it wider."""
    longest = min(LABEL, max(len(row.name) for row in numbers.rows))
    return canvas(height, lines, across, WIDTH + LETTER * max(0, longest - SHORT_NAME), **more)


def _what(numbers: Numbers) -> str:
    """Return what the numbers are, such as "top-1 accuracy (%), mean of the last five rounds"."""
    return numbers.title.partition(": ")[2]


class _Mark(NamedTuple):
    """What a figure shows of a row: the numbers of its seeds, the reach of their mean, and what it is compared with."""

    each: "pd.Series[float]"
    low: float
    high: float
    base: float = nan
    printed: float = nan


def _difference(numbers: Numbers) -> Iterator[Plot]:
    """Draw the difference of the headline to the baseline, with its interval, row by row."""
    headline, rows = numbers.headline, numbers.rows

    def mark(row: Row, _: str) -> _Mark:
        base, interval = baseline(row, rows), row.difference and row.difference.interval
        assert base is not None
        return _Mark((_seeds(row, headline) - _seeds(base, headline)).dropna(), *(interval or (nan, nan)), 0)

    shown = [row for row in rows if row.difference and row.difference.seeds]
    what = f"percentage points of {_what(numbers).replace(' (%)', '')}"
    reach = "interval of 95 % (Student's t, not corrected for several methods; none for fewer than three common seeds)."
    if shown:
        title = f"{headline} - {text_of(BASELINE)}"
        yield _by_row(numbers, "difference", {headline: title}, shown, mark, what, reach)


def _columns(numbers: Numbers, columns: Sequence[str]) -> Iterator[Plot]:
    """Draw mean, spread and seeds of columns row by row, with the paper's printed numbers."""
    rows = numbers.rows

    def mark(row: Row, column: str) -> _Mark:
        each, base = _seeds(row, column), baseline(row, rows)
        mean, std, printed = each.mean(), each.std(), None if row.paper is None else row.paper.values[column].mean
        low, high = max(mean - std, min(mean, 0)), min(mean + std, max(mean, 100))  # no share is beyond
        dashed = nan if base is None else _seeds(base, column).mean()
        return _Mark(each, low, high, dashed, nan if printed is None else printed)

    dashed = DASHED if any(row.is_baseline for row in rows) else ""
    paper = " Diamonds: the paper's." if any(row.paper for row in rows) else ""
    if columns:
        titles = {column: plain(column_name(column), MOST_NAME) for column in columns}
        yield _by_row(numbers, "columns", titles, rows, mark, _what(numbers), f"standard deviation.{dashed}{paper}")


def _by_row(
    numbers: Numbers,
    name: str,
    columns: Mapping[str, str],
    rows: Sequence[Row],
    of: Callable[[Row, str], _Mark],
    what: str,
    reach: str,
) -> Plot:
    """Draw the marks of columns, each with its title, side by side, row by row."""
    across = 2 if len(columns) == 4 else min(PANELS, len(columns))  # no line of one panel
    lines = -(-len(columns) // across)
    figure, places = _canvas(numbers, 0.2 + lines * (0.95 + 0.24 * len(rows)), lines, across, sharey=True)
    for axes, (column, title) in zip(places, columns.items(), strict=False):
        for i, row in enumerate(rows):
            each, low, high, base, printed = of(row, column)
            mean, colour = each.mean(), TEXT if row.is_baseline else OURS
            axes.plot([base, base], [i - 0.5, i + 0.5], color=TEXT, linestyle="--", linewidth=0.8)
            axes.plot(each, [i + BELOW] * len(each), "o", color=GRID, markersize=3)
            axes.errorbar(mean, i, xerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=3)
            axes.plot(printed, i, "D", color=PAPERS, fillstyle="none", markersize=6)
        axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=6 if across == 1 else 3)
        axes.set_title(title, loc="left")
    for axes in places[len(columns) :]:
        axes.set_visible(False)
    figure.supxlabel(titled(what, int(AXIS_LETTERS * figure.get_figwidth())), fontsize="medium")
    return Plot(figure, name, f"{', '.join(columns.values())}: {what}; seeds (small), mean and {reach}")


def _curves(numbers: Numbers) -> Iterator[Plot]:
    """Draw AVG of each row over the rounds, of scores that are taken from rounds.

    Up to eight rows share one panel; otherwise each has its own, next to its baseline.
    """
    rows = numbers.rows if numbers.score in BY_ROUND else ()
    drawn = {id(row): (row, frame) for row in rows if (frame := _rounds(row)).size}
    if not drawn:
        return
    across, most = (1, len(drawn)) if len(drawn) <= DOMAINS else (PANELS, 1)
    lines = -(-len(drawn) // (across * most))
    height = 3.4 if across == 1 else 0.8 + 1.25 * lines
    figure, places = _canvas(numbers, height, lines, across, sharex=True, sharey=True)
    for i, (row, frame) in enumerate(drawn.values()):
        axes, base = places[i // most], baseline(row, rows)
        if across > 1 and base is not row and id(base) in drawn:
            axes.plot(drawn[id(base)][1].mean(), color=GRID, linestyle="--", linewidth=1)
        _curve(axes, row, frame, TEXT if row.is_baseline else domain_colour(i % most))
        if across > 1:
            axes.set_title(titled(_label(row), PANEL_TITLE), loc="left", fontsize=8)
    for axes in places:
        shown_rounds(axes, max(frame.columns[-1] for _, frame in drawn.values()))
        axes.set_xlabel("")
        axes.grid(axis="y")
        axes.set_visible(bool(axes.lines))
    if across == 1:
        legend_above(figure, places[0])
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("AVG (%)", fontsize="medium")
    dashed = DASHED if across > 1 and any(row.is_baseline for row, _ in drawn.values()) else ""
    band = " Bands: ± standard deviation over seeds." * any(len(frame) > 1 for _, frame in drawn.values())
    lacking = len(rows) - len(drawn)
    without = f" {plural(lacking, 'row has', 'rows have')} files without rounds." if lacking else ""
    what = capital(measure("final", runs_of(row for row, _ in drawn.values())))
    yield Plot(figure, "curves", f"{what} (%) of each round, mean over domains and seeds.{band}{dashed}{without}")


def _curve(axes: Axes, row: Row, frame: "pd.DataFrame", colour: str) -> None:
    mean, std = frame.mean(), frame.std()  # of one seed no deviation, which draws nothing
    marker, line = "." if len(mean) == 1 else "", "--" if row.is_baseline else "-"
    axes.plot(mean, color=colour, label=_label(row), marker=marker, linestyle=line)
    low, high = (mean - std).clip(lower=0), (mean + std).clip(upper=100)
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)


def _rounds(row: Row) -> "pd.DataFrame":
    """Return the accuracies of runs by round, of rounds that all of them scored."""
    import pandas as pd

    return pd.DataFrame([run.curve for run in row.runs]).dropna(axis=1).sort_index(axis=1)


def _prices(numbers: Numbers) -> Iterator[Plot]:
    """Draw the headline against each cost; a key names the rows on a Pareto front and the baseline."""
    rows = numbers.rows
    paid = tradeoff.paid(rows, numbers.costs, numbers.headline) if numbers.costs is not None else {}
    for what, points in paid.items():
        figure, (axes,) = _canvas(numbers, 4.2)
        fronts = tradeoff.on_fronts(points, numbers.score in LOWEST_IS_BEST)
        place = {i: (of, k) for of, front in enumerate(fronts) for k, i in enumerate(front)}
        for of, front in enumerate(fronts):
            axes.step(*zip(*(points[i][:2] for i in front), strict=True), where="post", color=domain_colour(of), lw=1)
        for i, (x, y, row) in sorted(enumerate(points), key=lambda point: place.get(point[0], (len(fronts), 0))):
            of, k = place.get(i, (i, i))  # without a front all are named
            marker, colour = "x", TEXT if row.is_baseline else GRID
            if i in place or not fronts:
                marker, colour = domain_marker(k), domain_colour(of)
            axes.plot(x, y, marker, color=colour, markersize=6, label=None if colour == GRID else _label(row))
        xs = [x for x, *_ in points]
        axes.set_xscale("log" if max(xs) > LOG_FROM * min(xs) > 0 else "linear")
        axes.margins(x=0.08, y=0.12)
        axes.set(xlabel=what, ylabel=titled(f"{numbers.headline}, {_what(numbers)}", 3 * AXIS_LETTERS))
        axes.grid()
        legend_above(figure, axes)
        caption = (
            f"{numbers.headline} against {what}: {_what(numbers)}. Steps: the Pareto front, where no other row of its "
            "group that is scored alike is better for as little or less; its rows are named. Crosses: the others."
        )
        yield Plot(figure, f"tradeoff-{_COSTS[what]}", caption)


def _seeds(row: Row, column: str) -> "pd.Series[float]":
    """Return the known numbers of a column by seed."""
    import pandas as pd

    return pd.Series(row.headline(column), dtype=float).dropna()


def _label(row: Row) -> str:
    return shortened(plain(row.name, 4 * MOST_NAME), LABEL)
