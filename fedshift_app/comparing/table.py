"""The numbers of a comparison: a row per method, with mean and spread over seeds, beside a paper's printed row."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift_app.comparing import grouping, papers, paying
from fedshift_app.comparing import runs as reading
from fedshift_app.comparing.altered import Altered, altered, listed
from fedshift_app.comparing.papers import PLAIN
from fedshift_app.comparing.runs import BASELINE, NODES, Run
from fedshift_app.comparing.seeds import LEAST_FOR_TEST, Paired, Spread, paired, spread
from fedshift_app.config import registry
from fedshift_app.run.choosing import stop_told
from fedshift_app.run.folder import ON_ALL, lost_told
from fedshift_app.run.scores import worst
from fedshift_wire.bounds import as_found
from fedshift_wire.errors import ConfigError
from fedshift_wire.names import AVERAGED, BN_SCORE
from fedshift_wire.spelling import meant
from strategies.federation.schedule import BN_WAYS_TOLD, LAST_ROUNDS

AVG, STD, WORST = "AVG", "STD", "WORST"
OVERALL = (AVG, STD, WORST)  # columns that are no domain
#: What may be asked for alone: which models a run scored.
SCORED = ("global", "personal")


@dataclass(frozen=True)
class PaperRow:
    """A printed row, by our columns; None where the paper prints nothing that our column is.

    Attributes:
        label: As printed.
        values: Printed numbers.
        spreads: Printed spreads.
        difference: Ours less the paper's.
        altered: The values of our runs that are not the paper's.
        certain: Whether its label can be read in the paper's text.
    """

    label: str
    values: Mapping[str, float | None]
    spreads: Mapping[str, float | None]
    difference: Mapping[str, float | None]
    altered: tuple[Altered, ...] = ()
    certain: bool = True


@dataclass(frozen=True)
class Row:
    """A method with its parameters, over seeds.

    Attributes:
        label: The method, and the parameters in which runs of it differ.
        group: The settings in which its runs differ from others; empty if there are none.
        scored: ``global`` or ``personal`` models.
        runs: Its runs, by seed.
        by_seed: The numbers of each seed by column.
        values: Mean and spread by column.
        difference: The headline less that of the baseline; None where there is none.
        best: The columns in which it is the best of its group.
        paper: The printed row.
        worst: The domain that is the worst in all its runs; empty where it is not the same.
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
        """Whether the others of its group are compared with it."""
        return self.method == BASELINE and all(self.runs[0].config[key] == value for key, value in PLAIN.items())

    def headline(self, column: str) -> dict[int, float | None]:
        """Return the numbers of a column by seed."""
        return {seed: values.get(column) for seed, values in self.by_seed.items()}


@dataclass(frozen=True)
class Numbers:
    """All numbers of a comparison.

    Attributes:
        title: What is compared.
        columns: Domains or measures, in the order of the table.
        headline: The column whose difference to the baseline is told.
        rows: By group, the baseline first.
        notes: What a reader must know of the numbers.
        warnings: What should be looked into.
        paper: The id of the paper's table, empty without one.
        score: Which numbers they are, see ``comparing.runs.SCORES``.
        costs: What the methods cost, where that was given.
    """

    title: str
    columns: tuple[str, ...]
    headline: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    paper: str = ""
    score: str = "last5"
    costs: paying.Costs | None = None


def numbers(
    paths: Sequence[Path], *, paper: str, score: str, allow_different: bool, costs: Path | None = None, scored: str = ""
) -> Numbers:
    """Read and compare runs, see ``fedshift_app.comparing.compare``."""
    if paper:
        papers.get(paper)
    reading.score(score)  # a mistake in a name is told before anything is read
    if scored and scored not in SCORED:
        raise ConfigError(f"--scored is {as_found(scored)}; allowed are {', '.join(SCORED)}{meant(scored, SCORED)}")
    runs, unfinished = reading.read(paths)
    taken = [run for run in runs if _scored(run).startswith(scored) or run.results.method == BASELINE]
    found = numbers_of(taken, unfinished, paper=paper, score=score, allow_different=allow_different, costs=costs)
    others = sorted({run.results.method for run in runs if run not in taken})
    if not others:
        return found
    return replace(found, notes=(*found.notes, f"left out, not scored {scored}: {', '.join(others)}"))


def numbers_of(
    runs: Sequence[Run], unfinished: Sequence[str], *, paper: str, score: str, allow_different: bool,
    costs: Path | None = None,
) -> Numbers:  # fmt: skip
    """Compare runs that were read (``runs.read``), see ``fedshift_app.comparing.compare``."""
    table = papers.get(paper) if paper else None
    take, called = reading.score(score)
    if score.startswith(BN_SCORE):  # what the numbers are scored with, whichever was the first way of a run
        way = score.removeprefix(BN_SCORE)
        runs = [replace(run, config={**run.config, reading.WAYS: way}) for run in runs]
    differences = grouping.differing(runs)
    if differences and not allow_different:
        raise ConfigError(
            "these runs differ in more than method and seed (--allow-different makes rows of them): "
            + grouping.told(runs, differences)
        )
    unnamed = grouping.usual_parameters(runs)
    runs = sorted(runs, key=lambda run: grouping.order(run, list(registry.METHODS), unnamed))
    differences = grouping.differing(runs)
    labels = grouping.row_labels(runs, unnamed)
    members: dict[tuple[str, str], list[Run]] = {}
    for group, label, run in zip(grouping.group_labels(runs, differences), labels, runs, strict=True):
        members.setdefault((group, label), []).append(run)
    notes: list[str] = []
    accuracy = score not in reading.MEASURES
    lowest = score in reading.LOWEST_IS_BEST
    rows = [
        _row(label, group, _once_per_seed(label, same, notes), take, accuracy, lowest)
        for (group, label), same in sorted(members.items(), key=lambda item: item[0][0])
    ]
    headline = reading.MEASURES.get(score, AVG)
    columns = tuple(dict.fromkeys(column for row in rows for column in row.values if column not in OVERALL))
    if accuracy:
        columns += (AVG, STD) if len(columns) < 2 else OVERALL
    rows = [_with_best(_with_difference(row, rows, headline), rows, columns, lowest) for row in rows]
    if table is not None:
        rows = [_beside(row, table, columns) for row in rows]
    title = f"{', '.join(dict.fromkeys(run.results.dataset for run in runs))}: {_measure(score)} (%), {called}"
    notes = [*_notes(rows, headline, accuracy, lowest), *notes]
    notes += [
        f"{method}, where a row does not name it: "
        + ", ".join(f"{grouping.parameter(key)}={grouping.shown(value)}" for key, value in values.items())
        for method, values in unnamed.items()
    ]
    approximations = map(registry.approximation_told, dict.fromkeys(row.method for row in rows))
    notes += [told for told in approximations if told]
    notes += [f"{method}, as the method or its experiment asks: {_settings(own)}" for method, own in
              grouping.own(runs).items()]  # fmt: skip
    if differences:
        notes.append(f"rows of different groups do not compare; they differ in {', '.join(differences)}")
    if unfinished:
        notes.append(f"left out, not finished: {', '.join(unfinished)}")
    if table is not None:
        notes += _paper_notes(rows, table)
    paid = (
        None
        if costs is None
        else paying.read(costs, list(dict.fromkeys(str(run.config["experiment"]) for run in runs)))
    )
    if paid is not None:
        notes += paying.notes(rows, paid, headline)
    return Numbers(
        title, columns, headline, tuple(rows), tuple(notes), tuple(grouping.warnings(runs, labels)),
        table.id if table else "", score, paid,
    )  # fmt: skip


def _measure(score: str) -> str:
    return "scores" if score in reading.MEASURES else reading.FIGURES.get(score, "top-1 accuracy")


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={grouping.shown(value)}" for key, value in settings.items())


def _once_per_seed(label: str, runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Return one run per seed; a repetition with the same numbers is told, one with others is refused."""
    kept: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run.results.seed):
        first = kept.setdefault(run.results.seed, run)
        if first is run:
            continue
        same = (first.results.weights_sha256, first.results.domains) == (
            run.results.weights_sha256,
            run.results.domains,
        )
        if not same:
            raise ConfigError(
                f"{label}: seed {run.results.seed} comes twice, with different numbers: {first.name} and {run.name}"
            )
        notes.append(f"{run.name} repeats {first.name} with the same numbers and counts once")
    return list(kept.values())


def _row(label: str, group: str, runs: list[Run], take: reading.Score, accuracy: bool, lowest: bool) -> Row:
    taken = {run.results.seed: take(run) for run in runs}
    by_seed = {seed: _with_average(one, lowest) if accuracy else one for seed, one in taken.items()}
    columns = dict.fromkeys(column for values in by_seed.values() for column in values)
    values = {column: spread([values.get(column) for values in by_seed.values()]) for column in columns}
    scored = "/".join(dict.fromkeys(_scored(run) for run in runs))
    worsts = {_worst(one, lowest) for one in taken.values()} if accuracy else set()
    worst = (worsts.pop() or "") if len(worsts) == 1 else ""
    return Row(label, group, scored, tuple(runs), by_seed, values, worst=worst)


def _scored(run: Run) -> str:
    kind = run.results.evaluated.split()[0]
    return f"{kind} on all" if run.results.evaluated == ON_ALL else kind


def _worst(domains: Mapping[str, float | None], lowest: bool) -> str | None:
    """Return the worst domain; None where a domain is unknown, or there is one only."""
    return None if None in domains.values() else worst(domains, lowest=not lowest)


def _with_average(domains: Mapping[str, float | None], lowest: bool) -> dict[str, float | None]:
    """Add average, spread and worst of the domains; unknown where a domain is: over a part it is another quantity."""
    known = [value for value in domains.values() if value is not None]
    full = len(known) == len(domains)
    return dict(domains) | {
        AVG: statistics.fmean(known) if full else None,
        STD: statistics.stdev(known) if full and len(known) > 1 else None,
        WORST: None if (least := _worst(domains, lowest)) is None else domains[least],
    }


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row that another is compared with: of rows whose values a search chose, such a one where there is."""
    found = [other for other in rows if other.is_baseline and other.group == row.group]
    return min(found, key=lambda other: other.tuned != row.tuned, default=None)


def _with_difference(row: Row, rows: Sequence[Row], headline: str) -> Row:
    base = _baseline(row, rows)
    if base is None or base is row:
        return row
    return replace(row, difference=paired(row.headline(headline), base.headline(headline)))


def _with_best(row: Row, rows: Sequence[Row], columns: Sequence[str], lowest: bool) -> Row:
    """Mark the columns in which the row has the best mean of its group: the lowest STD, the highest of all else.

    Where ``lowest`` is the best, that of all.
    """
    group = [other for other in rows if other.group == row.group]
    best = set()
    for column in columns:
        means = [m for other in group if (found := other.values.get(column)) and (m := found.mean) is not None]
        own = row.values.get(column)
        if len(means) > 1 and own is not None and own.mean == (min(means) if lowest or column == STD else max(means)):
            best.add(column)
    return replace(row, best=frozenset(best))


def _beside(row: Row, table: papers.Table, columns: Sequence[str]) -> Row:
    """Put the printed row beside ours."""
    beside = table.beside(row.runs[0].config)
    standing = table.standing(row.runs[0].config)
    stands = _comparable(row, beside)
    if not stands:
        raise ConfigError(
            f"--paper {table.id}: its columns stand for {', '.join(beside.columns.values())}; the runs have "
            f"{', '.join(row.values)}; --score clients has the measures of client models"
        )
    if standing is None:
        return row
    printed = standing.row
    values = {column: printed.value(stands[column]) if column in stands else None for column in columns}
    spreads = {column: printed.spread(stands[column]) if column in stands else None for column in columns}
    difference = {column: _less(row.values.get(column), values[column]) for column in columns}
    others = altered([run.config for run in row.runs], table, beside, standing)
    return replace(
        row, paper=PaperRow(printed.method, values, spreads, difference, others, printed.label_certain)
    )  # fmt: skip


def _less(ours: Spread | None, printed: float | None) -> float | None:
    return None if ours is None or ours.mean is None or printed is None else ours.mean - printed


def _comparable(row: Row, beside: papers.Beside) -> dict[str, str]:
    """Return the printed column of each of our columns that means the same.

    Averages over other domains than ours are left out, and so are seen domains where the paper's are unseen.
    """
    ours = {column: printed for printed, column in beside.columns.items() if column in row.values}
    if beside.unseen:
        held_out = row.runs[0].config["allocation.held_out"]
        return {column: printed for column, printed in ours.items() if column in held_out}
    domains = set(beside.columns.values()) - {*OVERALL}
    if domains and AVG in row.values and domains != row.values.keys() - {*OVERALL}:
        return {column: printed for column, printed in ours.items() if column not in OVERALL}
    return ours


def _notes(rows: Sequence[Row], headline: str, accuracy: bool, lowest: bool) -> list[str]:
    found = ["mean ± sample standard deviation (ddof=1) over n seeds; one seed has no spread"]
    ways = {run.results.scored_with for row in rows for run in row.runs} - {AVERAGED}
    if accuracy and ways:
        told = " and ".join(sorted(f"{way} ({BN_WAYS_TOLD.get(way, way)})" for way in ways))
        found.append(f"all but --score bn=WAY are scored with BatchNorm's statistics {told}")
    rounds = {run.results.averaged_rounds for row in rows for run in row.runs} - {LAST_ROUNDS}
    if rounds:
        found.append(f"runs with fewer scored rounds than five: {', '.join(map(str, sorted(rounds)))} are averaged")
    if accuracy:
        found.append("STD: over the domains of a run, then mean and spread over seeds")
        if any(WORST in row.values and row.values[WORST].n for row in rows):
            least = "highest" if lowest else "lowest"
            same = same_worst(rows)
            where = f", {same} in all" if same else "; named where it is the same in all runs of a row"
            found.append(f"WORST: the {least} domain of each run{where}")
    found += _images(rows)
    if any(row.best for row in rows):
        found.append("marked: the best mean of a column, which says nothing of significance")
    if any(row.difference is not None for row in rows):
        found.append(
            f"difference: {headline} less that of {BASELINE}, seed by seed; p: two-sided paired t-test over "
            f"{LEAST_FOR_TEST} or more common seeds, not corrected for several methods; few seeds have little power"
        )
    else:
        found.append(f"no difference to {BASELINE}: there is no other method beside it, or no run of it")
    if any(row.tuned and row.difference is not None and (b := _baseline(row, rows)) and b.tuned for row in rows):
        found.append(
            f"difference of a row named {grouping.TUNED}: to {BASELINE} {grouping.TUNED}, which had the same search"
        )
    found += [
        f"{named(row)}, chosen on validation images: {grouping.tuned_told(row.runs[0])}" for row in rows if row.tuned
    ]  # fmt: skip
    for row in rows:
        base = _baseline(row, rows)
        if row.difference is not None and base is not None and set(row.seeds) != set(base.seeds):
            common = ", ".join(map(str, row.difference.seeds)) or "none"
            found.append(
                f"{named(row)} has the seeds {', '.join(map(str, row.seeds))}, {BASELINE} "
                f"{', '.join(map(str, base.seeds))}: paired on {common}"
            )
        for seed, values in row.by_seed.items():
            missing = [column for column, value in values.items() if value is None and column not in OVERALL]
            if missing:
                found.append(f"{named(row)}, seed {seed}: no {', '.join(missing)}; no average over the rest is taken")
    found += [
        f"{named(row)}, seed {run.results.seed} is degraded: {lost_told(run.results.lost)}"
        for row in rows for run in row.runs if run.results.lost
    ]  # fmt: skip
    found += [
        f"{named(row)}, seed {run.results.seed} {stop_told(run.results.stopped_early.model_dump())}"
        for row in rows for run in row.runs if run.results.stopped_early is not None
    ]  # fmt: skip
    if len({row.scored for row in rows}) > 1:
        found.append("scored personal: each node's own model, on its own domain; that is not the global model's task")
    for row in rows:
        spreads = [run.results.spread_over_nodes for run in row.runs if run.results.spread_over_nodes]
        if spreads:
            known = {name: [value for one in spreads if (value := one.get(name)) is not None] for name in spreads[0]}
            each = ", ".join(f"{name} {statistics.fmean(values):.1f}" for name, values in known.items() if values)
            found.append(
                f"{named(row)}, scored personal on all: each node's own model on every domain, mean over nodes; "
                f"standard deviation over nodes {each}"
            )
    return found


def same_worst(rows: Sequence[Row]) -> str:
    """Return the domain that is the worst of all runs; empty where there is none such."""
    named = {row.worst for row in rows}
    return named.pop() if len(named) == 1 else ""


def _images(rows: Sequence[Row]) -> list[str]:
    """Return how many test images are behind the numbers, of runs that tell it; rows with the same numbers together."""
    told: dict[str, list[str]] = {}
    for row in rows:
        for run in row.runs:
            if run.results.figures is not None:
                known = {name: one.n for name, one in run.results.figures.domains.items() if one is not None}
                who = told.setdefault(", ".join(f"{name} {number}" for name, number in known.items()), [])
                if named(row) not in who:
                    who.append(named(row))
    if len(told) == 1:
        return [f"test images: {next(iter(told))}"]
    return [f"test images of {', '.join(who)}: {images}" for images, who in told.items()]


def named(row: Row) -> str:
    """Return the label of a row with its group."""
    return f"{row.label} [{row.group}]" if row.group else row.label


def _paper_notes(rows: Sequence[Row], table: papers.Table) -> list[str]:
    paper, printed = table.paper, table.printed
    beside = table.beside(rows[0].runs[0].config)
    found = [f"{table.id}: {paper.paper} ({paper.venue}), {printed.id}, {printed.dataset}: {printed.metric}"]
    found += [f"the paper: {text}" for text in (printed.statistic, printed.scenario) if text]
    config = rows[0].runs[0].config
    ours = {"rounds": config["rounds"], "epochs": config["train.epochs"], "nodes": config[NODES]}
    asked = printed.budget.model_dump()
    told = ", ".join(f"{key} {ours[key]} (paper {asked[key] or 'not stated'})" for key in ours)
    found.append(f"budget: {told}; network {config['model.name']} (paper {paper.backbone})")
    if printed.model_evaluated:
        found.append(f"the paper scores {printed.model_evaluated}")
    domains = {column for row in rows for column in row.values} - {*OVERALL}
    theirs = set(beside.columns.values()) - {*OVERALL}
    for names, who in ((theirs - domains, "in the paper only"), (domains - theirs, "in the runs only")):
        if names and theirs:
            found.append(f"{who}: {', '.join(sorted(names))}")
    if beside.unseen:
        found.append("the paper's columns are unseen domains: only a run's held-out domain stands beside one")
    found += _altered_notes(rows, table)
    without = [row.label for row in rows if row.paper is None]
    if without:
        found.append(f"the paper prints no row of {', '.join(without)}")
    used = {row.paper.label for row in rows if row.paper is not None}
    others = [row.method for row in printed.rows if row.method not in used]
    if others:
        found.append(f"printed too: {', '.join(others)}")
    return found + [f"print error: {check}" for check in table.checks()]


def _altered_notes(rows: Sequence[Row], table: papers.Table) -> list[str]:
    """Return what a reader must know of the rows that stand beside a printed one: which values are not the paper's."""
    pairs = [(row, row.paper) for row in rows if row.paper is not None]
    configs = [row.runs[0].config for row, _ in pairs]
    experiments = dict.fromkeys(table.experiment(table.beside(one), table.standing(one)) for one in configs)
    if not pairs:
        return []
    found = [f"the paper's values are those of conf/experiments/{' and '.join(experiments)}"]
    shared = [one for one in pairs[0][1].altered if len(pairs) > 1 and all(one in paper.altered for _, paper in pairs)]
    if shared:
        found.append(f"not the paper's, in every row beside a printed one: {listed(shared)}")
    faithful = []
    for row, paper in pairs:
        own = [one for one in paper.altered if one not in shared]
        if own:
            found.append(f"not the paper's, {named(row)} beside {paper.label}: {listed(own)}")
        else:
            faithful.append(f"{named(row)} beside {paper.label}")
    if faithful:
        found.append(f"{'nothing else differs' if shared else 'all as in the paper'}: {', '.join(faithful)}")
    lost = [paper.label for _, paper in pairs if not paper.certain]
    if lost:
        found.append(f"the label of {', '.join(lost)} is lost in the paper's text, and this is a reading: "
                     f"{table.printed.about}")  # fmt: skip
    return found
