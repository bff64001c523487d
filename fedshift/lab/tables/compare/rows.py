"""The rows of a comparison: a method over seeds, its difference to the baseline, its printed row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import Altered, altered
from fedshift.lab.tables.papers.printed import PLAIN
from fedshift.lab.tables.results import metrics
from fedshift.lab.tables.results.differences import unlike
from fedshift.lab.tables.results.loading import Run, curve
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
        values: Printed means.
        spreads: Printed spreads.
        difference: Our mean less the printed one.
        altered: Values of our runs that are not the paper's.
        readings: Values that the paper leaves open, with our reading of it.
        certain: Whether the label is the paper's own, not a reading of a damaged text.
    """

    label: str
    values: Mapping[str, float | None]
    spreads: Mapping[str, float | None]
    difference: Mapping[str, float | None]
    altered: tuple[Altered, ...] = ()
    readings: tuple[Altered, ...] = ()
    certain: bool = True


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
        difference: That of the headline to the baseline of its group.
        best: Columns in which its mean is the best of its group and task.
        paper: Its printed row.
        worst: The domain that is the worst in all its seeds; empty if it is not the same.
        refused: Why there is no difference: rows of other images.
        mixed: Why its own mean is over other images.
        marks: By column what its cell carries, where a domain has fewer rounds or images than its neighbours.
    """

    label: str
    group: str
    scored: str
    runs: tuple[Run, ...]
    by_seed: Mapping[int, Mapping[str, float | None]]
    values: Mapping[str, Spread]
    difference: Paired | None = None
    best: frozenset[str] = frozenset()
    paper: PaperRow | None = None
    worst: str = ""
    refused: str = ""
    mixed: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)

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
    def unseen(self) -> bool:
        """Whether it has of each run the domains alone that no node held."""
        return bool(self.runs[0].only)

    @property
    def is_baseline(self) -> bool:
        """Whether the other rows of its group are compared with it."""
        return self.method == BASELINE and all(self.runs[0].config[key] == value for key, value in PLAIN.items())

    def headline(self, column: str) -> dict[int, float | None]:
        """Return the numbers of a column by seed."""
        return {seed: values.get(column) for seed, values in self.by_seed.items()}

    def scored_by(self, seed: int, column: str) -> Run:
        """Return the run behind a number: of leave-one-out runs the one that held the domain out."""
        same = [run for run in self.runs if run.results.seed == seed]
        return next((run for run in same if column in run.only), same[0])

    def curves(self) -> list[dict[int, float]]:
        """Return AVG by round of each seed; of leave-one-out runs, which train apart, none."""
        return [{} if run.only else curve(run) for run in self.runs]


def named(row: Row) -> str:
    """Return the label of a row with its group."""
    return f"{row.label} [{row.group}]" if row.group else row.label


def same_worst(rows: Sequence[Row]) -> str:
    """Return the domain that is the worst of all rows; empty if the rows differ."""
    named = {row.worst for row in rows}
    return named.pop() if len(named) == 1 else ""


def once(label: str, runs: Sequence[Run], score: str, notes: list[str]) -> list[Run]:
    """Return one run for each seed, and of leave-one-out runs for each held-out domain, the first by name.

    Raises:
        ConfigError: If two stand for the same numbers and have others, or other images.
    """
    take, _ = metrics.score(score)
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
            if (first.results.weights_sha256, take(first)) != (run.results.weights_sha256, take(run)):
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
    accuracy, lowest = score not in metrics.MEASURES, score in metrics.LOWEST_IS_BEST
    of_seed: dict[int, list[Run]] = {}
    for run in runs:
        of_seed.setdefault(run.results.seed, []).append(run)
    taken = {seed: _taken(parts, score, domains) for seed, parts in of_seed.items()}
    is_mean = metrics.is_mean(score)
    lacking = {seed: {name for run in parts for name in run.results.unscored} for seed, parts in of_seed.items()}
    complete = {
        seed: {name: None if is_mean and name in lacking[seed] else value for name, value in scores.items()}
        for seed, scores in taken.items()
    }
    by_seed = {
        seed: {**scores, **_overall(complete[seed], lowest)} if accuracy else scores for seed, scores in taken.items()
    }
    columns = dict.fromkeys(column for values in by_seed.values() for column in values)
    values = {column: spread([values.get(column) for values in by_seed.values()]) for column in columns}
    worsts = {worst(scores, lowest=not lowest) for scores in complete.values()} if accuracy else set()
    return Row(
        label,
        group,
        "/".join(dict.fromkeys(map(scored, runs))),
        tuple(runs),
        by_seed,
        values,
        worst=(worsts.pop() or "") if len(worsts) == 1 else "",
        mixed="; ".join(unlike(runs)),
        marks=_marks(runs, columns) if is_mean else {},
    )


def _taken(parts: Sequence[Run], score: str, domains: Sequence[str]) -> dict[str, float | None]:
    """Return the numbers of a seed by column; of leave-one-out runs each domain from the run that held it out."""
    if not parts[0].only:
        return dict(metrics.score(score)[0](parts[0]))
    kinds = set.intersection(*(set(run.scores) for run in parts))
    scores = {
        name: {domain: value for run in parts for domain, value in run.scores[name].items()}
        for name in kinds  # each run has the domains that it held out
    }
    if score == "bn":
        return metrics.all_statistics(scores, len(domains))
    if score not in scores:
        for run in parts:
            metrics.score(score)[0](run)  # raises the reason
    return {domain: scores[score].get(domain) for domain in domains}


def _marks(runs: Sequence[Run], columns: Iterable[str]) -> dict[str, str]:
    marks = {
        column: "/".join(
            dict.fromkeys(
                mark for run in runs if not run.only or column in run.only if (mark := run.results.losses.mark(column))
            )
        )
        for column in columns
    }
    return {column: mark for column, mark in marks.items() if mark}


def scored(run: Run) -> str:
    """Return which models a run scored: ``global``, ``personal`` or ``personal on all``."""
    kind = run.results.evaluated.split()[0]
    return f"{kind} on all" if run.results.evaluated == ON_ALL else kind


def _overall(domains: Mapping[str, float | None], lowest: bool) -> dict[str, float | None]:
    """Return average, spread and worst of the domains; None if a domain is missing."""
    least = worst(domains, lowest=not lowest)
    return {AVG: average(domains), STD: domain_spread(domains), WORST: None if least is None else domains[least]}


def baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the baseline of a row; None if its group has none.

    Of several baselines, a tuned row gets a tuned one. Next, the baseline with the most similar averaging, server steps
    and scores is taken, then the first.
    """
    baselines = [other for other in rows if other.is_baseline and other.group == row.group]
    settings = [_other_settings(other) for other in baselines]
    varied = {
        key
        for candidate in settings
        for key in candidate
        if any(other.get(key) != candidate[key] for other in settings)
    }
    ours = {} if row.is_baseline else _other_settings(row)

    def distance(other: Row) -> tuple[bool, int]:
        its = _other_settings(other)
        return other.tuned != row.tuned, sum(key in ours and ours[key] != its.get(key) for key in varied)

    return min(baselines, key=distance, default=None)


def _other_settings(row: Row) -> dict[str, Any]:
    """Return the settings of a row other than the method's parameters: averaging, server steps, scores."""
    settings = row.runs[0].row_settings
    return {key: value for key, value in settings.items() if not key.startswith("method.")}


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


def of_seeds(rows: Iterable[Row], seeds: Collection[int]) -> list[Run]:
    """Return the runs of rows with one of these seeds."""
    return [run for row in rows for run in row.runs if run.results.seed in seeds]


def with_best(row: Row, rows: Sequence[Row], columns: Sequence[str], lowest: bool) -> Row:
    """Mark the columns in which the row has the best mean of its group and task.

    The best STD is the lowest one. Of all other columns the best is the highest, or with ``lowest`` the lowest.
    Personal models have another task than the global model. Rows with other images have no best.
    """
    group = [other for other in rows if (other.group, other.scored) == (row.group, row.scored)]
    if unlike(run for other in group for run in other.runs):
        return row
    best = set()
    for column in columns:
        means = [m for other in group if (value := other.values.get(column)) and (m := value.mean) is not None]
        own = row.values.get(column)
        if len(means) > 1 and own is not None and own.mean == (min(means) if lowest or column == STD else max(means)):
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
    printed = standing.row
    values = {column: printed.value(stands[column]) if column in stands else None for column in columns}
    spreads = {column: printed.spread(stands[column]) if column in stands else None for column in columns}
    ours = {column: value.mean for column, value in row.values.items()}
    difference = {
        column: None if printed_mean is None or (mean := ours.get(column)) is None else mean - printed_mean
        for column, printed_mean in values.items()
    }
    configs = [run.config for run in row.runs]
    others = altered(configs, table, column_map, standing)
    stated, left_open = (
        tuple(deviation for deviation in others if not deviation.why),
        tuple(deviation for deviation in others if deviation.why),
    )
    return replace(
        row, paper=PaperRow(printed.method, values, spreads, difference, stated, left_open, printed.label_certain)
    )


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
