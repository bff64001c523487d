"""The figures of a comparison: the difference to the baseline, curves over the rounds, each column with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from matplotlib.axes import Axes

from fedshift.lab.tables.compare import tradeoff
from fedshift.lab.tables.compare.rows import Row, baseline, named
from fedshift.lab.tables.compare.table import Numbers, measure
from fedshift.lab.tables.results import contents
from fedshift.lab.tables.results.loading import curve
from fedshift.lab.tables.results.metrics import LOWEST_IS_BEST, MEASURES
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
from fedshift_core.accuracies import STD
from fedshift_core.limits import MOST_NAME, plain, shortened
from fedshift_core.plural import plural

MOST_ROWS = 60  # rows of a figure
MOST_PANELS = 12  # columns of the table that have a figure
MOST_POINTS = 150  # of a curve: more would be nearer to each other than pixels
LABEL = 28  # characters of a row's name next to a figure
MOST_DESCRIBED = 12  # rows whose numbers the text alternative of a figure contains
BELOW = 0.28  # distance of the seeds below their mean, as a share of a row
LOG_FROM = 20  # ratio of the largest to the smallest cost from which the axis is logarithmic
PANEL_TITLE = 22  # characters of a line of a panel's title
LABEL_SIZE = 11  # of the label of an axis that panels share
PANELS = 3  # panels in a line, where the curves would hide each other in one panel
OURS, PAPERS = domain_colour(0), domain_colour(1)
#: Scores that are the accuracies of rounds, whose curves they belong to.
BY_ROUND = ("last5", "final", "best", "validation")


@dataclass(frozen=True)
class _Curve:
    """AVG over the rounds: mean over the seeds and, for several seeds, its spread."""

    label: str
    baseline: bool
    seeds: int
    rounds: list[int]
    means: list[float]
    spreads: list[float]


@dataclass(frozen=True)
class Form:
    """How figures name rows, and how wide they are.

    Attributes:
        base: The name of the baseline in texts.
        most: Characters of a row's name next to a figure.
        width: In inches.
    """

    base: str = BASELINE
    most: int = LABEL
    width: float = WIDTH


@dataclass(frozen=True)
class Plots:
    """The figures of a comparison in placeholder colours.

    Attributes:
        differences: The difference to the baseline; one figure, or none.
        curves: AVG over the rounds; one figure, or none.
        columns: One of each column of the table, by its name.
        prices: The headline against each cost, by its name.
        lacking: Reasons why figures are missing.
        groups: What the numbers of groups stand for; empty where rows have the groups' whole names.
    """

    differences: list[Plot] = field(default_factory=list)
    curves: list[Plot] = field(default_factory=list)
    columns: dict[str, Plot] = field(default_factory=dict)
    prices: dict[str, Plot] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    groups: str = ""


@dataclass(frozen=True)
class Drawn:
    """The figures of a comparison.

    Attributes:
        overall: The difference to the baseline, and the curves.
        columns: One of each column of the table.
        lacking: What the numbers of groups stand for, and reasons why figures are missing.
        prices: The headline against each cost.
    """

    overall: list[Plot] = field(default_factory=list)
    columns: list[Plot] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    prices: list[Plot] = field(default_factory=list)


def draw(numbers: Numbers) -> Drawn:
    """Draw the figures for which the runs have numbers, as elements of a page."""
    plotted = plots(numbers)
    with style():
        overall, columns, prices = (
            list(some)
            for some in ((*plotted.differences, *plotted.curves), plotted.columns.values(), plotted.prices.values())
        )
    return Drawn(overall, columns, [*filter(None, [plotted.groups]), *plotted.lacking], prices)


def plots(numbers: Numbers, form: Form | None = None) -> Plots:
    """Draw the figures for which the runs have numbers, by default as the page has them."""
    form = form or Form()
    if len(numbers.rows) > MOST_ROWS:
        return Plots(lacking=[f"More than {MOST_ROWS} rows: no figures."])
    numbers, groups = numbered(numbers, form.most)
    notes = []
    with style():
        columns = [column for column in numbers.columns if column != STD]
        columns.sort(key=lambda column: column != numbers.headline)
        if len(columns) > MOST_PANELS:
            notes.append(f"no figure of {plural(len(columns) - MOST_PANELS, 'more column')} of the table.")
        curves = _curves(numbers, form)
        if not curves and numbers.score in BY_ROUND:
            notes.append("No curves over the rounds: the files of these runs have none.")
        notes += _lacking_costs(numbers)
        if refused := [named(row) for row in numbers.rows if row.refused]:
            notes.append(f"No difference to {form.base} of {_few(refused)}: {contents.OTHER_IMAGES}.")
        dots = {column: _dots(numbers, column, place, form) for place, column in enumerate(columns[:MOST_PANELS])}
        return Plots(_differences(numbers, form), curves, dots, _prices(numbers, form), notes, groups)


def numbered(numbers: Numbers, most: int) -> tuple[Numbers, str]:
    """Return a comparison whose groups are numbers, with their key, if a name of a row does not fit into ``most``.

    Cut names of groups are often the same: what differs stands in their middle.
    """
    if not any(row.group and len(named(row)) > most for row in numbers.rows):
        return numbers, ""
    places = {group: str(i) for i, group in enumerate(dict.fromkeys(row.group for row in numbers.rows), 1)}
    key = "; ".join(f"[{place}] {plain(group, 4 * MOST_NAME)}" for group, place in places.items())
    rows = tuple(replace(row, group=places[row.group]) for row in numbers.rows)
    return replace(numbers, rows=rows), f"Groups: {key}."


def _differences(numbers: Numbers, form: Form) -> list[Plot]:
    """Draw the difference of the headline to the baseline, with its interval, row by row."""
    rows = [
        (row, row.difference) for row in numbers.rows if row.difference and row.difference.difference.mean is not None
    ]
    if not rows:
        return []
    figure, (axes,) = canvas(_height(len(rows)), width=form.width)
    axes.axvline(0, color=TEXT, linewidth=1, linestyle="--")
    descriptions = []
    for i, (row, paired) in enumerate(rows):
        mean = paired.difference.mean
        assert mean is not None
        base = baseline(row, numbers.rows)
        assert base is not None
        ours, theirs = row.headline(numbers.headline), base.headline(numbers.headline)
        each = [
            value - other
            for seed in paired.seeds
            if (value := ours[seed]) is not None and (other := theirs[seed]) is not None
        ]
        axes.plot(each, [i + BELOW] * len(each), "o", color=GRID, markersize=3)
        reach = None if paired.interval is None else [[mean - paired.interval[0]], [paired.interval[1] - mean]]
        axes.errorbar(mean, i, xerr=reach, fmt="o", color=OURS, capsize=3)
        interval = "" if paired.interval is None else f" ({paired.interval[0]:+.2f} to {paired.interval[1]:+.2f})"
        descriptions.append(f"{_label(row)} {mean:+.2f}{interval}")
    _name_rows(axes, [row for row, _ in rows], form)
    axes.set_title(f"{numbers.headline} - {form.base}", loc="left")
    axes.set_xlabel("percentage points")
    title = f"Difference of {numbers.headline} to {form.base} with 95 % intervals: {_few(descriptions)}."
    caption = (
        f"{numbers.headline} - {form.base} in percentage points, seed by seed (small), their mean and its 95 % "
        "interval (Student's t; like p not corrected for several methods). No interval: fewer than three common "
        "seeds, or all differences equal."
    )
    return [Plot(figure, "differences", title, caption)]


def _lacking_costs(numbers: Numbers) -> list[str]:
    if numbers.costs is None or tradeoff.paid(numbers.rows, numbers.costs, numbers.headline):
        return []
    return ["No figure of costs: none of these rows was measured as it is."]


def _prices(numbers: Numbers, form: Form) -> dict[str, Plot]:
    """Draw the headline against each cost and name the methods on the Pareto front."""
    if numbers.costs is None:
        return {}
    drawn = {}
    for place, (what, points) in enumerate(tradeoff.paid(numbers.rows, numbers.costs, numbers.headline).items()):
        figure, (axes,) = canvas(3.6, width=form.width)
        xs, ys, rows = [point[0] for point in points], [point[1] for point in points], [point[2] for point in points]
        fronts = tradeoff.on_fronts(points, numbers.score in LOWEST_IS_BEST)
        steps = [_steps([points[i][:2] for i in front]) for front in fronts]
        colours = {i: domain_colour(place) for place, front in enumerate(fronts) for i in front}
        for front, corners in zip(fronts, steps, strict=True):
            axes.plot(*zip(*corners, strict=True), color=colours[front[0]], linewidth=1)
        on = [i for front in fronts for i in front]
        tagged: list[int] = []
        anonymous: list[int] = []
        for i, row in enumerate(rows):
            named = i in on or row.is_baseline or not on
            axes.plot(xs[i], ys[i], "o" if i in on else "x", color=colours.get(i, TEXT if named else GRID))
            (tagged if named else anonymous).append(i)
        if min(xs) > 0 and max(xs) / min(xs) > LOG_FROM:
            axes.set_xscale("log")
        axes.margins(x=0.18, y=0.12)
        axes.set_xlabel(what)
        axes.set_ylabel(f"{numbers.headline} (%)")
        axes.grid()
        name_points(
            axes, [(xs[i], ys[i], shortened(_label(rows[i]), form.most)) for i in tagged],
            [points[i][:2] for i in anonymous], steps,
        )  # fmt: skip
        descriptions = [f"{_label(rows[i])} {ys[i]:.2f} at {xs[i]:.4g}" for i in on]
        on_front = _few(descriptions) or "none, as rows are of other images"
        title = f"{numbers.headline} against {what}; Pareto-optimal: {on_front}."
        caption = (
            f"{numbers.headline} against {what}. Dots and steps: {_fronts_text(rows, len(fronts))} Crosses: the others."
        )
        drawn[what] = Plot(figure, f"prices{place}", title, caption)
    return drawn


def _fronts_text(rows: Sequence[Row], fronts: int) -> str:
    """Return what a Pareto front is, in a sentence: one of rows of a group that were scored alike."""
    of_group = " of its group" if len({row.group for row in rows}) > 1 else ""
    alike = " that is scored as it is" if len({row.scored for row in rows}) > 1 else ""
    several = ", each in a colour of its own" if fronts > 1 else ""
    front = "the Pareto fronts" if fronts > 1 else "the Pareto front"
    return f"{front}, where no other row{of_group}{alike} is better for as little or less{several}."


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a staircase from point to point: first along, then up."""
    corners = [points[0]]
    for x, y in points[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    return corners


def _dots(numbers: Numbers, column: str, place: int, form: Form) -> Plot:
    """Draw mean, spread and seeds of a column row by row, with the paper's printed numbers."""
    figure, (axes,) = canvas(_height(len(numbers.rows)), width=form.width)
    descriptions = plot_dots(axes, numbers, column, form)
    name = plain(column, MOST_NAME)
    axes.set_title(name, loc="left")
    axes.set_xlabel(unit(numbers))
    title = f"{name} of each row, mean and spread over seeds: {_few(descriptions)}."
    return Plot(figure, f"dots{place}", title, f"{name}: {dots_caption(numbers, form)}")


def dots_caption(numbers: Numbers, form: Form) -> str:
    """Return what the marks of :func:`plot_dots` mean."""
    dashed = f" Dashed: {form.base}{_of_group(numbers)}." if any(row.is_baseline for row in numbers.rows) else ""
    paper = " Diamonds: the paper's." if any(row.paper for row in numbers.rows) else ""
    return f"{measure(numbers.score)} in %, seeds (small), mean ± standard deviation.{dashed}{paper}"


def unit(numbers: Numbers) -> str:
    """Return the label of an axis of the numbers."""
    return f"{measure(numbers.score)} (%)"


def plot_dots(axes: Axes, numbers: Numbers, column: str, form: Form) -> list[str]:
    """Plot mean, spread and seeds of a column row by row; return its numbers by row as texts."""
    descriptions = []
    accuracy = numbers.score not in MEASURES
    for i, row in enumerate(numbers.rows):
        base = baseline(row, numbers.rows)
        if base is not None and (base_value := base.values.get(column)) and base_value.mean is not None:
            axes.vlines(base_value.mean, i - 0.5, i + 0.5, color=GRID, linestyle="--", linewidth=1)
        value = row.values.get(column)
        if value is None or value.mean is None:
            continue
        seeds = [number for number in row.headline(column).values() if number is not None]
        axes.plot(seeds, [i + BELOW] * len(seeds), "o", color=GRID, markersize=3)
        reach = None
        if value.std is not None:
            low, high = (min(value.std, value.mean), min(value.std, 100 - value.mean)) if accuracy else (value.std,) * 2
            reach = [[low], [high]]  # no accuracy lies beyond 0 and 100
        axes.errorbar(value.mean, i, xerr=reach, fmt="o", color=TEXT if row.is_baseline else OURS, capsize=3)
        descriptions.append(f"{_label(row)} {value.mean:.2f}" + ("" if value.std is None else f" ± {value.std:.2f}"))
        if row.paper is not None and (printed := row.paper.values[column]) is not None:
            axes.plot(printed, i, "D", color=PAPERS, fillstyle="none", markersize=6)
    _name_rows(axes, numbers.rows, form)
    return descriptions


def _curves(numbers: Numbers, form: Form) -> list[Plot]:
    """Draw AVG of each row over the rounds.

    There is no figure if the score is not taken from rounds, or no run has records of its rounds.
    """
    if numbers.score not in BY_ROUND:
        return []
    of_rows = [(row, entry) for row in numbers.rows if (entry := _curve(row)) is not None]
    if not of_rows:
        return []
    drawn = [entry for _, entry in of_rows]
    dashed = False
    last = max(entry.rounds[-1] for entry in drawn)
    if len(drawn) <= DOMAINS:
        figure, (axes,) = canvas(3.4)
        for i, entry in enumerate(drawn):
            _plot(axes, entry, TEXT if entry.baseline else domain_colour(i))
        _rounds_axis(axes, last)
        axes.set_ylabel("AVG (%)")
        legend_above(figure, axes)
    else:
        lines = -(-len(drawn) // PANELS)
        figure, places = canvas(0.8 + 1.25 * lines, lines, PANELS, sharex=True, sharey=True)
        known = {id(row): entry for row, entry in of_rows}
        for axes, (row, entry) in zip(places, of_rows, strict=False):
            base = known.get(id(baseline(row, numbers.rows)))
            if base is not None and base is not entry:
                axes.plot(base.rounds, base.means, color=GRID, linestyle="--", linewidth=1)
                dashed = True
            _plot(axes, entry, TEXT if entry.baseline else OURS)
            axes.set_title(titled(entry.label, PANEL_TITLE), loc="left", fontsize=9)
            _rounds_axis(axes, last)
            axes.set_xlabel("")
        for axes in places[len(drawn) :]:
            axes.set_visible(False)
        figure.supxlabel("round", fontsize=LABEL_SIZE)
        figure.supylabel("AVG (%)", fontsize=LABEL_SIZE)
    descriptions = [f"{entry.label} {entry.means[-1]:.2f} in round {entry.rounds[-1]}" for entry in drawn]
    lacking = len(numbers.rows) - len(drawn)
    band = " Bands: ± standard deviation over seeds." if any(entry.seeds > 1 for entry in drawn) else ""
    many = f" Dashed: {form.base}{_of_group(numbers)}." if dashed else ""
    without = f" {plural(lacking, 'row has', 'rows have')} files without rounds." if lacking else ""
    title = f"AVG over the rounds: {_few(descriptions)}."
    caption = f"Top-1 accuracy in % over the rounds, mean over domains and seeds.{band}{many}{without}"
    return [Plot(figure, "curves", title, caption)]


def _of_group(numbers: Numbers) -> str:
    return " of the row's group" if len({row.group for row in numbers.rows}) > 1 else ""


def _curve(row: Row) -> _Curve | None:
    """Return the mean over the seeds for the rounds that all seeds scored."""
    each = [curve(run) for run in row.runs]
    common = sorted(set.intersection(*(set(by_round) for by_round in each)))
    if not common:
        return None
    step = -(-len(common) // MOST_POINTS)
    rounds = [n for i, n in enumerate(common) if i % step == 0 or i == len(common) - 1]
    values = [[by_round[n] for by_round in each] for n in rounds]
    spreads = [statistics.stdev(at_round) if len(at_round) > 1 else 0.0 for at_round in values]
    return _Curve(
        _label(row), row.is_baseline, len(each), rounds, [statistics.fmean(at_round) for at_round in values], spreads
    )


def _plot(axes: Axes, entry: _Curve, colour: str) -> None:
    marker = "." if len(entry.rounds) == 1 else ""
    axes.plot(
        entry.rounds,
        entry.means,
        color=colour,
        label=entry.label,
        marker=marker,
        linestyle="--" if entry.baseline else "-",
    )
    if entry.seeds > 1:
        low = [max(mean - std, 0) for mean, std in zip(entry.means, entry.spreads, strict=True)]
        high = [min(mean + std, 100) for mean, std in zip(entry.means, entry.spreads, strict=True)]
        axes.fill_between(entry.rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _rounds_axis(axes: Axes, last: int) -> None:
    shown_rounds(axes, last)
    axes.grid(axis="y")


def _name_rows(axes: Axes, rows: Sequence[Row], form: Form) -> None:
    axes.set_yticks(range(len(rows)), [shortened(_label(row), form.most) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=6)


def _label(row: Row) -> str:
    return plain(named(row), 4 * MOST_NAME)


def _height(rows: int) -> float:
    return 0.95 + 0.24 * rows


def _few(descriptions: Sequence[str]) -> str:
    more = len(descriptions) - MOST_DESCRIBED
    return "; ".join(descriptions[:MOST_DESCRIBED]) + (f"; and {more} more" if more > 0 else "")
