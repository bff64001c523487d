"""The figures of a comparison: the difference to the baseline, curves over the rounds, each column with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes

from fedshift.compare import tradeoff
from fedshift.compare.rows import Row, baseline, named
from fedshift.compare.table import Numbers
from fedshift.html.drawing import (
    DOMAINS,
    GRID,
    TEXT,
    WIDTH,
    Drawing,
    Plot,
    canvas,
    domain_colour,
    legend_above,
    shown_rounds,
    style,
    titled,
)
from fedshift.html.naming import name_points
from fedshift.results import contents
from fedshift.results.loading import curve
from fedshift.results.metrics import LOWEST_IS_BEST, MEASURES
from fedshift.results.settings import BASELINE
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
    """

    differences: list[Plot] = field(default_factory=list)
    curves: list[Plot] = field(default_factory=list)
    columns: dict[str, Plot] = field(default_factory=dict)
    prices: dict[str, Plot] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Drawn:
    """The figures of a comparison.

    Attributes:
        overall: The difference to the baseline, and the curves.
        columns: One of each column of the table.
        lacking: Reasons why figures are missing.
        prices: The headline against each cost.
    """

    overall: list[Drawing] = field(default_factory=list)
    columns: list[Drawing] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    prices: list[Drawing] = field(default_factory=list)


def draw(numbers: Numbers) -> Drawn:
    """Draw the figures for which the runs have numbers, as elements of a page."""
    plotted = plots(numbers)
    with style():
        overall, columns, prices = (
            [plot.drawing() for plot in some]
            for some in ((*plotted.differences, *plotted.curves), plotted.columns.values(), plotted.prices.values())
        )
    return Drawn(overall, columns, plotted.lacking, prices)


def plots(numbers: Numbers, form: Form | None = None) -> Plots:
    """Draw the figures for which the runs have numbers, by default as the page has them."""
    form = form or Form()
    if len(numbers.rows) > MOST_ROWS:
        return Plots(lacking=[f"More than {MOST_ROWS} rows: no figures."])
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
        return Plots(_differences(numbers, form), curves, dots, _prices(numbers, form), notes)


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
    title = f"Difference of {numbers.headline} to {form.base} with 95 % intervals: {_few(descriptions)}."
    caption = (
        f"{numbers.headline} - {form.base}, seed by seed (small), their mean and its 95 % interval "
        "(Student's t; like p not corrected for several methods). No interval: fewer than three common seeds, or "
        "all differences equal."
    )
    return [Plot(figure, "differences", title, caption)]


def _lacking_costs(numbers: Numbers) -> list[str]:
    if numbers.costs is None or tradeoff.paid(numbers.rows, numbers.costs, numbers.headline):
        return []
    return ["No figure of costs: none of these methods is in the file."]


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
        for corners in steps:
            axes.plot(*zip(*corners, strict=True), color=OURS, linewidth=1)
        on = [i for front in fronts for i in front]
        tagged: list[int] = []
        anonymous: list[int] = []
        for i, row in enumerate(rows):
            named = i in on or row.is_baseline or not on
            axes.plot(xs[i], ys[i], "o" if i in on else "x", color=OURS if i in on else TEXT if named else GRID)
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
            f"{numbers.headline} against {what}. Dots and steps: the Pareto front, where no other row of its group is "
            "better for as little or less. Crosses: the others."
        )
        drawn[what] = Plot(figure, f"prices{place}", title, caption)
    return drawn


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
    title = f"{name} of each row, mean and spread over seeds: {_few(descriptions)}."
    return Plot(figure, f"dots{place}", title, f"{name}: {dots_caption(numbers, form)}")


def dots_caption(numbers: Numbers, form: Form) -> str:
    """Return what the marks of :func:`plot_dots` mean."""
    dashed = f" Dashed: {form.base}." if sum(row.is_baseline for row in numbers.rows) == 1 else ""
    paper = " Diamonds: the paper's." if any(row.paper for row in numbers.rows) else ""
    return f"seeds (small), mean ± standard deviation.{dashed}{paper}"


def plot_dots(axes: Axes, numbers: Numbers, column: str, form: Form) -> list[str]:
    """Plot mean, spread and seeds of a column row by row; return its numbers by row as texts."""
    descriptions = []
    accuracy = numbers.score not in MEASURES
    base = [row for row in numbers.rows if row.is_baseline]
    if len(base) == 1 and (base_value := base[0].values.get(column)) and base_value.mean is not None:
        axes.axvline(base_value.mean, color=GRID, linestyle="--", linewidth=1)
    for i, row in enumerate(numbers.rows):
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
    drawn = [entry for row in numbers.rows if (entry := _curve(row)) is not None]
    if not drawn:
        return []
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
        figure, places = canvas(0.6 + 1.25 * lines, lines, PANELS, sharex=True, sharey=True)
        base = next((entry for entry in drawn if entry.baseline), None)
        for axes, entry in zip(places, drawn, strict=False):
            if base is not None and entry is not base:
                axes.plot(base.rounds, base.means, color=GRID, linestyle="--", linewidth=1)
            _plot(axes, entry, TEXT if entry.baseline else OURS)
            axes.set_title(titled(entry.label, PANEL_TITLE), loc="left", fontsize=9)
            _rounds_axis(axes, last)
            axes.set_xlabel("")
        for axes in places[len(drawn) :]:
            axes.set_visible(False)
    descriptions = [f"{entry.label} {entry.means[-1]:.2f} in round {entry.rounds[-1]}" for entry in drawn]
    lacking = len(numbers.rows) - len(drawn)
    band = " Bands: ± standard deviation over seeds." if any(entry.seeds > 1 for entry in drawn) else ""
    many = f" Dashed: {form.base}." if len(drawn) > DOMAINS else ""
    without = f" {plural(lacking, 'row has', 'rows have')} files without rounds." if lacking else ""
    title = f"AVG over the rounds: {_few(descriptions)}."
    caption = f"Top-1 accuracy over the rounds, mean over domains and seeds.{band}{many}{without}"
    return [Plot(figure, "curves", title, caption)]


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
    return 0.75 + 0.24 * rows


def _few(descriptions: Sequence[str]) -> str:
    more = len(descriptions) - MOST_DESCRIBED
    return "; ".join(descriptions[:MOST_DESCRIBED]) + (f"; and {more} more" if more > 0 else "")
