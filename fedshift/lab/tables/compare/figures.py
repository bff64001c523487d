"""The figures of a comparison, for its page and as files: each is drawn once, with its name and what is said of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.cbook import pts_to_poststep

from fedshift.lab.tables.compare import tradeoff
from fedshift.lab.tables.compare.paper_names import column as column_name
from fedshift.lab.tables.compare.paper_names import row_text, text_of
from fedshift.lab.tables.compare.rows import Row, baseline, named
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
    legend_above,
    shown_rounds,
    style,
    titled,
)
from fedshift.run.html.naming import name_points
from fedshift_core.accuracies import OVERALL, STD
from fedshift_core.limits import MOST_NAME, plain, shortened
from fedshift_core.plural import capital, plural

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS, MOST_COLUMNS = 60, 12  # that have figures
MOST_POINTS = 150  # of a curve: more would be nearer to each other than pixels
LABEL, LONGEST = 28, 48  # characters of a row's name next to a figure: of the page, of a file
SHORT_NAME, LETTER = 16, 0.075  # characters for which the page's width is enough; inches of a further one
AXIS_LETTERS = 11  # characters of an axis' label in an inch
MOST_DESCRIBED = 12  # rows whose numbers the text alternative of a figure contains
BELOW = 0.28  # distance of the seeds below their mean, as a share of a row
LOG_FROM = 20  # ratio of the largest to the smallest cost from which the axis is logarithmic
PANELS, PANEL_TITLE = 3, 22  # panels in a line; characters of a line of a panel's title
OURS, PAPERS = domain_colour(0), domain_colour(1)
#: Scores that are the accuracies of rounds, whose curves they belong to.
BY_ROUND = ("last5", "final", "best", "validation")
_COSTS = {tradeoff.BYTES: "bytes", tradeoff.SECONDS: "seconds", tradeoff.FLOPS: "flops"}


@dataclass(frozen=True)
class Figures:
    """The figures of a comparison.

    Attributes:
        overall: The difference to the baseline, and the curves.
        columns: One of each column of the table; as files, one of all domains too.
        prices: The headline against each cost.
        lacking: What the numbers of groups stand for, and reasons why figures are missing.
    """

    overall: list[Any] = field(default_factory=list)
    columns: list[Any] = field(default_factory=list)
    prices: list[Any] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Look:
    """The numbers of figures, with rows named as the page or as papers name them.

    Attributes:
        numbers: The comparison.
        what: What the numbers are, such as "top-1 accuracy (%), mean of the last five rounds".
        base: The name of the baseline.
        column: Returns the title of a column.
        most: Characters of a row's name next to a figure.
        width: In inches.
    """

    numbers: Numbers
    what: str
    base: str = BASELINE
    column: Callable[[str], str] = str
    most: int = LABEL
    width: float = WIDTH

    @property
    def dashed(self) -> str:
        """What a dashed line is, in captions."""
        where = " of the row's group" if len({row.group for row in self.numbers.rows}) > 1 else ""
        return f" Dashed: {self.base}{where}."


def plots(numbers: Numbers, *, files: bool = False) -> Figures:
    """Draw the figures for which the runs have numbers.

    Args:
        numbers: The comparison.
        files: Whether rows are named as papers print them, in full, and all domains stand side by side too.
    """
    if len(numbers.rows) > MOST_ROWS:
        return Figures(lacking=[f"More than {MOST_ROWS} rows: no figures."])
    numbers, groups = _numbered(numbers, files)
    what = numbers.title.partition(": ")[2]
    if files:
        longest = min(LONGEST, max(len(named(row)) for row in numbers.rows))
        width = WIDTH + LETTER * max(0, longest - SHORT_NAME)
        look = _Look(numbers, what, text_of(BASELINE), column_name, LONGEST, width)
    else:
        look = _Look(numbers, what)
    columns = sorted((name for name in numbers.columns if name != STD), key=lambda name: name != numbers.headline)
    shown = columns[:MOST_COLUMNS]
    domains = [column for column in shown if column not in OVERALL]
    with style():
        overall = [*_difference(look), *_curves(look)]
        several = [_dots(look, "domains", domains)] if files and domains else []
        prices = list(_prices(look))
        taken = {plot.name for plot in (*overall, *several, *prices)}
        singles = [_dots(look, _file_name(column, taken), [column]) for column in shown]
    lacking = [*filter(None, [groups]), *_lacking(look, overall, prices, len(columns) - len(shown))]
    return Figures(overall, [*several, *singles], prices, lacking)


def _lacking(look: _Look, overall: Sequence[Plot], prices: Sequence[Plot], more: int) -> Iterator[str]:
    """Yield why figures are missing."""
    numbers = look.numbers
    if more:
        yield f"no figure of {plural(more, 'more column')} of the table."
    if numbers.score in BY_ROUND and not any(plot.name == "curves" for plot in overall):
        yield "No curves over the rounds: the files of these runs have none."
    if numbers.costs is not None and not prices:
        yield "No figure of costs: none of these rows was measured as it is."
    if refused := [named(row) for row in numbers.rows if row.refused]:
        yield f"No difference to {look.base} of {_few(refused)}: {OTHER_IMAGES}."


def _numbered(numbers: Numbers, files: bool) -> tuple[Numbers, str]:
    """Return a comparison whose groups are numbers, with their key, if a name of a row does not fit next to a figure.

    Cut names of groups are often the same: what differs stands in their middle.
    """
    rows = [replace(row, label=row_text(row)) for row in numbers.rows] if files else numbers.rows
    if not any(row.group and len(named(row)) > (LONGEST if files else LABEL) for row in rows):
        return replace(numbers, rows=tuple(rows)), ""
    places = {group: str(i) for i, group in enumerate(dict.fromkeys(row.group for row in rows), 1)}
    key = "; ".join(f"[{place}] {plain(group, 4 * MOST_NAME)}" for group, place in places.items())
    return replace(numbers, rows=tuple(replace(row, group=places[row.group]) for row in rows)), f"Groups: {key}."


class _Mark(NamedTuple):
    """What a figure shows of a row: the numbers of its seeds, the reach of their mean, and what it is compared with."""

    each: "pd.Series[float]"
    low: float
    high: float
    base: float = nan
    printed: float = nan


def _difference(look: _Look) -> list[Plot]:
    """Draw the difference of the headline to the baseline, with its interval, row by row."""
    headline, rows = look.numbers.headline, look.numbers.rows

    def mark(row: Row, _: str) -> _Mark:
        base, interval = baseline(row, rows), row.difference and row.difference.interval
        assert base is not None
        return _Mark((_seeds(row, headline) - _seeds(base, headline)).dropna(), *(interval or (nan, nan)), 0)

    shown = [row for row in rows if row.difference and row.difference.seeds]
    what = f"percentage points of {look.what.replace(' (%)', '')}"
    reach = "interval of 95 % (Student's t, not corrected for several methods; none for fewer than three common seeds)."
    return [_by_row(look, "difference", [f"{headline} - {look.base}"], shown, mark, what, reach)] if shown else []


def _dots(look: _Look, name: str, columns: Sequence[str]) -> Plot:
    """Draw mean, spread and seeds of columns row by row, with the paper's printed numbers."""
    rows = look.numbers.rows

    def mark(row: Row, column: str) -> _Mark:
        each, base = _seeds(row, column), baseline(row, rows)
        mean, std, printed = each.mean(), each.std(), None if row.paper is None else row.paper.values[column]
        low, high = max(mean - std, min(mean, 0)), min(mean + std, max(mean, 100))  # no share is beyond
        dashed = nan if base is None else _seeds(base, column).mean()
        return _Mark(each, low, high, dashed, nan if printed is None else printed)

    dashed = look.dashed if any(row.is_baseline for row in rows) else ""
    paper = " Diamonds: the paper's." if any(row.paper for row in rows) else ""
    return _by_row(look, name, columns, rows, mark, look.what, f"standard deviation.{dashed}{paper}")


def _by_row(
    look: _Look,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    of: Callable[[Row, str], _Mark],
    what: str,
    reach: str,
) -> Plot:
    """Draw the marks of columns side by side, row by row."""
    across = 2 if len(columns) == 4 else min(PANELS, len(columns))  # no line of one panel
    lines = -(-len(columns) // across)
    figure, places = canvas(0.2 + lines * (0.95 + 0.24 * len(rows)), lines, across, look.width, sharey=True)
    titles, texts = [plain(look.column(column), MOST_NAME) for column in columns], []
    sign = "+" if name == "difference" else ""
    for axes, column, title in zip(places, columns, titles, strict=False):
        for i, row in enumerate(rows):
            each, low, high, base, printed = of(row, column)
            mean, colour = each.mean(), TEXT if row.is_baseline else OURS
            axes.plot([base, base], [i - 0.5, i + 0.5], color=TEXT, linestyle="--", linewidth=0.8)
            axes.plot(each, [i + BELOW] * len(each), "o", color=GRID, markersize=3)
            axes.errorbar(mean, i, xerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=3)
            axes.plot(printed, i, "D", color=PAPERS, fillstyle="none", markersize=6)
            reached = f" ({low:{sign}.2f} to {high:{sign}.2f})" if low < high else ""
            texts += [f"{_label(row)} {mean:{sign}.2f}{reached}"] if len(each) else []
        axes.set_yticks(range(len(rows)), [shortened(_label(row), look.most) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=6 if across == 1 else 3)
        axes.set_title(title, loc="left")
    for axes in places[len(columns) :]:
        axes.set_visible(False)
    figure.supxlabel(titled(what, int(AXIS_LETTERS * look.width)), fontsize="medium")
    head = f"{', '.join(titles)}: {what}"
    caption = f"{head}; seeds (small), mean and {reach}"
    return Plot(figure, name, f"{head}, mean and {reach.partition(' (')[0].partition('.')[0]}: {_few(texts)}.", caption)


def _curves(look: _Look) -> Iterator[Plot]:
    """Draw AVG of each row over the rounds, of scores that are taken from rounds.

    Up to eight rows share one panel; otherwise each has its own, next to its baseline.
    """
    rows = look.numbers.rows if look.numbers.score in BY_ROUND else ()
    drawn = {id(row): (row, frame) for row in rows if (frame := _rounds(row)).size}
    if not drawn:
        return
    across, most = (1, len(drawn)) if len(drawn) <= DOMAINS else (PANELS, 1)
    lines = -(-len(drawn) // (across * most))
    height = 3.4 if across == 1 else 0.8 + 1.25 * lines
    figure, places = canvas(height, lines, across, look.width, sharex=True, sharey=True)
    dashed, texts = "", []
    for i, (row, frame) in enumerate(drawn.values()):
        axes, base = places[i // most], baseline(row, rows)
        if across > 1 and base is not row and id(base) in drawn:
            axes.plot(drawn[id(base)][1].mean(), color=GRID, linestyle="--", linewidth=1)
            dashed = look.dashed
        _curve(axes, row, frame, TEXT if row.is_baseline else domain_colour(i % most))
        if across > 1:
            axes.set_title(titled(_label(row), PANEL_TITLE), loc="left", fontsize=8)
        texts.append(f"{_label(row)} {frame.iloc[:, -1].mean():.2f} in round {frame.columns[-1]}")
    for axes in places:
        shown_rounds(axes, max(frame.columns[-1] for _, frame in drawn.values()))
        axes.set_xlabel("")
        axes.grid(axis="y")
        axes.set_visible(bool(axes.lines))
    if across == 1:
        legend_above(figure, places[0])
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("AVG (%)", fontsize="medium")
    lacking = len(rows) - len(drawn)
    band = " Bands: ± standard deviation over seeds." * any(len(frame) > 1 for _, frame in drawn.values())
    without = f" {plural(lacking, 'row has', 'rows have')} files without rounds." if lacking else ""
    what = capital(measure("final", [run for row, _ in drawn.values() for run in row.runs]))
    caption = f"{what} (%) of each round, mean over domains and seeds.{band}{dashed}{without}"
    yield Plot(figure, "curves", f"AVG over the rounds: {_few(texts)}.", caption)


def _curve(axes: Axes, row: Row, frame: "pd.DataFrame", colour: str) -> None:
    mean, std = frame.mean(), frame.std()  # of one seed no deviation, which draws nothing
    marker, line = "." if len(mean) == 1 else "", "--" if row.is_baseline else "-"
    axes.plot(mean, color=colour, label=_label(row), marker=marker, linestyle=line)
    low, high = (mean - std).clip(lower=0), (mean + std).clip(upper=100)
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)


def _rounds(row: Row) -> "pd.DataFrame":
    """Return the accuracies of runs by round, of rounds that all of them scored."""
    import pandas as pd

    frame = pd.DataFrame(row.curves()).dropna(axis=1).sort_index(axis=1)
    rounds = frame.shape[1]
    return frame.iloc[:, sorted({*range(0, rounds, rounds // (MOST_POINTS + 1) + 1), rounds - 1} - {-1})]


def _prices(look: _Look) -> Iterator[Plot]:
    """Draw the headline against each cost and name the methods on the Pareto front."""
    numbers, rows = look.numbers, look.numbers.rows
    paid = tradeoff.paid(rows, numbers.costs, numbers.headline) if numbers.costs is not None else {}
    for what, points in paid.items():
        figure, (axes,) = canvas(3.6, width=look.width)
        fronts = tradeoff.on_fronts(points, numbers.score in LOWEST_IS_BEST)
        colours = {i: domain_colour(place) for place, front in enumerate(fronts) for i in front}
        steps = [pts_to_poststep(*zip(*(points[i][:2] for i in front), strict=True)).T.tolist() for front in fronts]
        for front, corners in zip(fronts, steps, strict=True):
            axes.plot(*zip(*corners, strict=True), color=colours[front[0]], linewidth=1)
        names: list[tuple[float, float, str]] = []
        for i, (x, y, row) in enumerate(points):
            tagged = i in colours or row.is_baseline or not colours
            axes.plot(x, y, "o" if i in colours else "x", color=colours.get(i, TEXT if tagged else GRID))
            names += [(x, y, shortened(_label(row), look.most))] * tagged
        xs = [x for x, *_ in points]
        axes.set_xscale("log" if max(xs) > LOG_FROM * min(xs) > 0 else "linear")
        axes.margins(x=0.18, y=0.12)
        axes.set(xlabel=what, ylabel=titled(f"{numbers.headline}, {look.what}", 3 * AXIS_LETTERS))
        axes.grid()
        name_points(axes, names)
        best = [f"{_label(row)} {y:.2f} at {x:.4g}" for x, y, row in (points[i] for i in colours)]
        of_group = " of its group" * (len({row.group for row in rows}) > 1)
        alike = " that is scored as it is" * (len({row.scored for row in rows}) > 1)
        front_text = "the Pareto fronts, each in a colour of its own" if len(fronts) > 1 else "the Pareto front"
        against = f"{numbers.headline} against {what}"
        title = f"{against}; Pareto-optimal: {_few(best) or 'none, as rows are of other images'}."
        caption = (
            f"{against}: {look.what}. Dots and steps: {front_text}, where no other row{of_group}{alike} is better for "
            "as little or less. Crosses: the others."
        )
        yield Plot(figure, f"tradeoff-{_COSTS[what]}", title, caption)


def _seeds(row: Row, column: str) -> "pd.Series[float]":
    """Return the known numbers of a column by seed."""
    import pandas as pd

    return pd.Series(row.headline(column), dtype=float).dropna()


def _label(row: Row) -> str:
    return plain(named(row), 4 * MOST_NAME)


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_DESCRIBED
    return "; ".join(texts[:MOST_DESCRIBED]) + (f"; and {more} more" if more > 0 else "")


def _file_name(column: str, taken: set[str]) -> str:
    """Return a column's name as that of a file, with a number where another figure has it; it is taken then."""
    name = re.sub(r"[^\w.=-]+", "-", plain(column, MOST_NAME)).strip("-.") or "column"
    numbered = chain([name], (f"{name}-{number}" for number in count(2)))
    unlike = next(each for each in numbered if each.lower() not in taken)
    taken.add(unlike.lower())
    return unlike
