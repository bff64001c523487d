"""The rows of a comparison: a method over seeds, its difference to the baseline, its printed row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import Altered, altered
from fedshift.lab.tables.papers.printed import PLAIN
from fedshift.lab.tables.results import metrics
from fedshift.lab.tables.results.differences import unlike
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.lab.tables.results.statistics import Paired, Spread, corrected, paired, spread
from fedshift_app.run.files import ON_ALL
from fedshift_core.accuracies import AVG, OVERALL, STD, WORST, average, worst
from fedshift_core.accuracies import spread as domain_spread
from fedshift_core.errors import ConfigError


@dataclass(frozen=True)
class PaperRow:
    """A printed row by our columns; None where the paper does not print a column.

    Attributes:
        label: Its label in the paper.
        values: Printed means and spreads.
        difference: Our mean less the printed one.
        altered: Values of our runs that are not the paper's.
        readings: Values that the paper leaves open, with our reading of it.
        certain: Whether the label is the paper's own, not a reading of a damaged text.
        experiment: The experiment with the paper's settings for it.
        prints: Printed values of its method that differ from those of the experiment, by dotted key.
    """

    label: str
    values: Mapping[str, Spread]
    difference: Mapping[str, float | None]
    altered: tuple[Altered, ...]
    readings: tuple[Altered, ...]
    certain: bool
    experiment: str
    prints: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A method with its parameters, over seeds.

    Attributes:
        label: Method and differing parameters.
        group: The settings in which groups of rows differ; empty if there is one group.
        scored: Which models were scored: ``global``, ``personal`` or ``personal on all``.
        runs: Its runs; of leave-one-out runs a seed has several.
        by_seed: Its numbers by seed and column, in percent; None where missing.
        values: Mean and spread over seeds by column.
        worst: The domain that is the worst in all its seeds; empty if it is not the same.
        mixed: Why its own mean is over other images.
        marks: By column what its cell carries, where a domain has fewer rounds or images than its neighbours.
        difference: That of the headline to the baseline of its group.
        refused: Why there is no difference: rows of other images.
        best: Columns in which its mean is the best of its group and task.
        paper: Its printed row.
    """

    label: str
    group: str
    scored: str
    runs: tuple[Run, ...]
    by_seed: Mapping[int, Mapping[str, float | None]]
    values: Mapping[str, Spread]
    worst: str
    mixed: str
    marks: Mapping[str, str]
    difference: Paired | None = None
    refused: str = ""
    best: frozenset[str] = frozenset()
    paper: PaperRow | None = None

    @property
    def name(self) -> str:
        """Its label with its group."""
        return f"{self.label} [{self.group}]" if self.group else self.label

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.runs[0].results.method

    @property
    def tuned(self) -> bool:
        """Whether a search chose its values."""
        return bool(self.runs[0].tuned)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(self.by_seed)

    @property
    def is_baseline(self) -> bool:
        """Whether the other rows of its group are compared with it."""
        return self.method == BASELINE and all(self.runs[0].config[key] == value for key, value in PLAIN.items())

    def value(self, column: str) -> Spread:
        """Return mean and spread over seeds of a column, both None if the row lacks it."""
        return self.values.get(column, Spread())

    def headline(self, column: str) -> dict[int, float | None]:
        """Return the numbers of a column by seed."""
        return {seed: values.get(column) for seed, values in self.by_seed.items()}

    def scored_by(self, seed: int, column: str) -> Run:
        """Return the run behind a number: of leave-one-out runs the one that held the domain out."""
        same = [run for run in self.runs if run.results.seed == seed]
        return next((run for run in same if column in run.only), same[0])


def same_worst(rows: Sequence[Row]) -> str:
    """Return the domain that is the worst of all rows; empty if the rows differ."""
    named = {row.worst for row in rows}
    return named.pop() if len(named) == 1 else ""


def once(label: str, runs: Sequence[Run], score: str, notes: list[str]) -> list[Run]:
    """Return one run for each seed, and of leave-one-out runs for each held-out domain, the first by name.

    Raises:
        ConfigError: If two stand for the same numbers and have others, or other images.
    """
    kept: dict[tuple[int, str], Run] = {}
    repeats: dict[str, None] = {}
    for run in sorted(runs, key=lambda run: run.results.seed):
        for domain in run.only or ("",):
            first = kept.setdefault((run.results.seed, domain), run)
            if first is run:
                continue
            twice = f"{label}: seed {run.results.seed} comes twice" + (f", without {domain}" if domain else "")
            if sorted(first.only) != sorted(run.only):
                raise ConfigError(f"{twice}, with other held-out domains: {first.name} and {run.name}")
            ends = [(each.results.weights_sha256, metrics.taken(each, score)) for each in (first, run)]
            if ends[0] != ends[1]:
                raise _other_numbers(twice, first, run)
            if other := unlike([first, run]):
                raise ConfigError(f"{twice}: {'; '.join(other)}")
            repeats[f"{run.name} repeats {first.name} with the same numbers and counts once"] = None
    notes += repeats
    return list({id(run): run for run in kept.values()}.values())


def _other_numbers(text: str, first: Run, run: Run) -> ConfigError:
    again = [
        f"{each.name} is the model of {each.scored_again} scored again (fedshift rescore), with scores of one round "
        "alone; compare with --score final, or without that folder"
        for each in (first, run)
        if each.scored_again
    ]
    return ConfigError(f"{text}, with different numbers: {first.name} and {run.name}", remedy="\n".join(again))


def made(label: str, group: str, runs: Sequence[Run], score: str, domains: Sequence[str]) -> Row:
    """Return the row of runs that differ only in their seed, and of leave-one-out runs in the held-out domain.

    Args:
        label: Its name.
        group: Its group.
        runs: Each once.
        score: A name of ``results.metrics.SCORES``.
        domains: Of leave-one-out runs, the columns; a domain that no run of a seed held out is missing.
    """
    is_mean = metrics.is_mean(score)
    by_seed: dict[int, dict[str, float | None]] = {}
    worsts: set[str] = set()
    for seed, parts in grouped((run.results.seed, run) for run in runs).items():
        by_seed[seed] = _taken(parts, score, domains)
        if score in metrics.MEASURES:
            continue
        lacking = {name for run in parts for name in run.results.unscored} if is_mean else ()
        complete = {name: None if name in lacking else value for name, value in by_seed[seed].items()}
        least = worst(complete, lowest=score not in metrics.LOWEST_IS_BEST)
        worsts.add(least or "")
        lowest = None if least is None else complete[least]
        by_seed[seed] |= {AVG: average(complete), STD: domain_spread(complete), WORST: lowest}
    columns = dict.fromkeys(column for values in by_seed.values() for column in values)
    return Row(
        label,
        group,
        "/".join(dict.fromkeys(map(scored, runs))),
        tuple(runs),
        by_seed,
        {column: spread([values.get(column) for values in by_seed.values()]) for column in columns},
        worsts.pop() if len(worsts) == 1 else "",
        "; ".join(unlike(runs)),
        _marks(runs, columns) if is_mean else {},
    )


def _taken(parts: Sequence[Run], score: str, domains: Sequence[str]) -> dict[str, float | None]:
    """Return the numbers of a seed by column; of leave-one-out runs each domain from the run that held it out."""
    if not parts[0].only:
        return dict(metrics.taken(parts[0], score))
    kinds = set.intersection(*(set(run.scores) for run in parts))
    scores = {
        name: {domain: value for run in parts for domain, value in run.scores[name].items()}
        for name in kinds  # each run has the domains that it held out
    }
    if score == "bn":
        return metrics.all_statistics(scores, len(domains))
    if score not in scores:
        for run in parts:
            metrics.taken(run, score)  # raises the reason
    return {domain: scores[score].get(domain) for domain in domains}


def _marks(runs: Sequence[Run], columns: Iterable[str]) -> dict[str, str]:
    marks = grouped(
        (column, mark)
        for column in columns
        for run in runs
        if (not run.only or column in run.only) and (mark := run.results.losses.mark(column))
    )
    return {column: "/".join(dict.fromkeys(each)) for column, each in marks.items()}


def scored(run: Run) -> str:
    """Return which models a run scored: ``global``, ``personal`` or ``personal on all``."""
    kind = run.results.evaluated.split()[0]
    return f"{kind} on all" if run.results.evaluated == ON_ALL else kind


def baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the baseline of a row; None if its group has none.

    Of several baselines, a tuned row gets a tuned one. Next, the baseline with the most similar averaging, server steps
    and scores is taken, then the first.
    """
    settings = {} if row.is_baseline else row.runs[0].row_settings
    ours = {key: value for key, value in settings.items() if not key.startswith("method.")}

    def distance(other: Row) -> tuple[bool, int]:
        its = other.runs[0].row_settings
        return other.tuned != row.tuned, sum(its.get(key) != value for key, value in ours.items())

    baselines = (other for other in rows if other.is_baseline and other.group == row.group)
    return min(baselines, key=distance, default=None)


def with_differences(rows: Sequence[Row], headline: str) -> list[Row]:
    """Return the rows with the difference of each to the baseline of its group, seed by seed, p corrected for all.

    A row without a baseline is returned as it is. If the runs of the common seeds have other images, the row has the
    reason instead of the difference.
    """
    rows = [_with_difference(row, rows, headline) for row in rows]
    differences = corrected([row.difference for row in rows])
    return [replace(row, difference=difference) for row, difference in zip(rows, differences, strict=True)]


def _with_difference(row: Row, rows: Sequence[Row], headline: str) -> Row:
    base = baseline(row, rows)
    if base is None or base is row:
        return row
    difference = paired(row.headline(headline), base.headline(headline))
    if other := unlike(of_seeds((row, base), difference.seeds)):
        return replace(row, refused="; ".join(other))
    return replace(row, difference=difference)


def runs_of(rows: Iterable[Row]) -> list[Run]:
    """Return the runs of rows."""
    return [run for row in rows for run in row.runs]


def of_seeds(rows: Iterable[Row], seeds: Collection[int]) -> list[Run]:
    """Return the runs of rows with one of these seeds."""
    return [run for run in runs_of(rows) if run.results.seed in seeds]


def with_best(row: Row, rows: Sequence[Row], columns: Sequence[str], lowest: bool) -> Row:
    """Mark the columns in which the row has the best mean of its group and task.

    The best STD is the lowest one. Of all other columns the best is the highest, or with ``lowest`` the lowest.
    Personal models have another task than the global model. Rows with other images have no best.
    """
    group = [other for other in rows if (other.group, other.scored) == (row.group, row.scored)]
    if unlike(runs_of(group)):
        return row
    best = set()
    for column in columns:
        means = [mean for other in group if (mean := other.value(column).mean) is not None]
        if len(means) > 1 and row.value(column).mean == (min(means) if lowest or column == STD else max(means)):
            best.add(column)
    return replace(row, best=frozenset(best))


def with_printed_row(row: Row, table: printed_module.Table, columns: Sequence[str]) -> Row:
    """Return the row with the printed row that is comparable with it."""
    column_map = table.column_map(row.runs[0].config)
    standing = table.standing(row.runs[0].config)
    stands = _comparable(row, column_map)
    if not stands and column_map.unseen and row.values.keys() & {*column_map.columns.values()} - {*OVERALL}:
        return row  # it held out a domain that the paper lacks
    if not stands:
        raise ConfigError(
            f"--paper {table.id}: its columns stand for {', '.join(column_map.columns.values())}; the runs have "
            f"{', '.join(row.values)}; --score clients has the measures of client models"
        )
    if standing is None:
        return row
    values = {column: standing.row.number(stands.get(column)) for column in columns}
    difference = {
        column: None if theirs.mean is None or (ours := row.value(column).mean) is None else ours - theirs.mean
        for column, theirs in values.items()
    }
    deviations = altered([run.config for run in row.runs], table, column_map, standing)
    stated, left_open = (
        tuple(deviation for deviation in deviations if bool(deviation.why) is open) for open in (False, True)
    )
    paper = PaperRow(
        standing.row.method,
        values,
        difference,
        stated,
        left_open,
        standing.row.label_certain,
        table.experiment(column_map, standing),
        table.prints_of(str(standing.settings["method.name"])),
    )
    return replace(row, paper=paper)


def _comparable(row: Row, column_map: printed_module.ColumnMap) -> dict[str, str]:
    """Return the printed column for each of our columns with the same meaning.

    Averages over other domains than ours are left out, and so are seen domains where the paper's are unseen.
    """
    ours = {column: printed for printed, column in column_map.columns.items() if column in row.values}
    if column_map.unseen:
        held_out = {domain for run in row.runs for domain in run.config["allocation.held_out"]}
        return {column: printed for column, printed in ours.items() if column in held_out}
    domains = set(column_map.columns.values()) - {*OVERALL}
    if domains and AVG in row.values and domains != row.values.keys() - {*OVERALL}:
        return {column: printed for column, printed in ours.items() if column not in OVERALL}
    return ours
