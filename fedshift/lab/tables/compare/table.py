"""The numbers of a comparison: one row per method over seeds, with the paper's printed row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift.lab.tables.compare import bn_statistics, leave_one_out, tradeoff
from fedshift.lab.tables.compare import footnotes as remarks
from fedshift.lab.tables.compare import rows as rowing
from fedshift.lab.tables.compare.rows import Row
from fedshift.lab.tables.papers import printed
from fedshift.lab.tables.results import grouping, row_names
from fedshift.lab.tables.results import loading as reading
from fedshift.lab.tables.results import metrics as run_metrics
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import BASELINE, BN_ORDER, BN_STATISTICS
from fedshift_app.config import registry
from fedshift_core.accuracies import AVG, OVERALL, STD
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.rounds import span
from fedshift_core.spelling import meant
from fedshift_core.wire.names import BN_SCORE

#: Values of ``--scored``: which models a run scored.
SCORED = ("global", "personal")


@dataclass(frozen=True)
class Numbers:
    """All numbers of a comparison.

    Attributes:
        title: What is compared.
        columns: Domains or measures, in the order of the table.
        headline: The column whose difference to the baseline is shown.
        rows: By group, the baseline first.
        notes: What a reader must know about the numbers.
        warnings: Problems that the user should look into.
        paper: The id of the paper's table, empty without one.
        score: The score that is compared, see ``results.metrics.SCORES``.
        costs: The costs of the methods; None if no file was given.
        unreadable: Runs of the given folders that cannot be read, each with the reason; they are also in ``warnings``.
    """

    title: str
    columns: tuple[str, ...]
    headline: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    paper: str = ""
    score: str = "last5"
    costs: tradeoff.Costs | None = None
    unreadable: tuple[str, ...] = ()


def numbers(
    paths: Sequence[Path], *, paper: str, score: str, allow_different: bool, costs: Path | None = None,
    scored: str = "", held_out: bool = False, of_kept: bool = False,
) -> Numbers:  # fmt: skip
    """Read and compare runs, see :func:`fedshift.compare` and, of ``of_kept``, ``results.metrics.with_rounds``."""
    if paper:
        printed.get(paper).check_of_runs()
    run_metrics.score(score)  # reports a wrong name before any file is read
    if held_out and score == "clients":
        raise ConfigError(
            "--unseen: the measures of --score clients are over all domains of a run; give one of the two"
        )
    if scored and scored not in SCORED:
        raise ConfigError(f"--scored is {as_found(scored)}; allowed are {', '.join(SCORED)}{meant(scored, SCORED)}")
    given = reading.read(paths)
    result = numbers_of(
        given.runs, given.unfinished, paper=paper, score=score, allow_different=allow_different, costs=costs,
        scored=scored, held_out=held_out, of_kept=of_kept,
    )  # fmt: skip
    unreadable = tuple(given.left_out())
    return replace(result, warnings=(*result.warnings, *unreadable), unreadable=unreadable)


def numbers_of(
    runs: Sequence[Run], unfinished: Sequence[str], *, paper: str, score: str, allow_different: bool,
    costs: Path | None = None, scored: str = "", held_out: bool = False, of_kept: bool = False,
) -> Numbers:  # fmt: skip
    """Compare runs that were read (``results.loading.read``), see :func:`numbers`."""
    table = printed.get(paper) if paper else None
    _, called = run_metrics.score(score)
    runs = run_metrics.with_rounds(runs, score, of_kept=of_kept)
    repeated: list[str] = []
    repetitions: list[Run] = []
    if held_out:
        runs, repeated, repetitions = leave_one_out.folded(runs)
        called = f"of domains that no node held, {called}"
    runs, repetitions = (with_statistics(some, score) for some in (runs, repetitions))
    made = _rows(runs, score, scored, allow_different=allow_different)
    rows, runs = made.rows, made.runs
    if table is not None:
        rows = [rowing.with_printed_row(row, table, made.columns) for row in rows]
    called = run_metrics.called_of(called, runs, score)
    title = f"{', '.join(dict.fromkeys(run.results.dataset for run in runs))}: {measure(score)} (%), {called}"
    notes = [leave_one_out.NOTE] if held_out else []
    notes += remarks.of_rows(rows, made.headline, made.accuracy, made.lowest)
    notes += [*_rounds(rows, score), *made.notes, *repeated, *remarks.of_test_images(rows, made.headline, score)]
    notes += bn_statistics.other_orders(runs) if score == bn_statistics.ALL else []
    notes += _values(made)
    notes += grouping.harmless(runs, repetitions)
    if unfinished:
        notes.append(f"left out, not finished: {', '.join(unfinished)}")
    if table is not None:
        notes += remarks.of_paper(rows, table)
    paid = None
    if costs is not None:
        paid = tradeoff.read(costs, list(dict.fromkeys(str(run.config["experiment"]) for run in runs)))
        notes += tradeoff.notes(rows, paid, made.headline, made.lowest)
    warnings = grouping.warnings(runs, made.labels, repetitions)
    if score in run_metrics.OVER_CLASSES:
        warnings += mix_warnings(runs)
    return Numbers(
        title, made.columns, made.headline, tuple(rows), tuple(notes), tuple(warnings),
        table.id if table else "", score, paid,
    )  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """The rows of a comparison without a paper's.

    Attributes:
        rows: The rows.
        columns: As of :class:`Numbers`.
        headline: As of :class:`Numbers`.
        accuracy: Whether the columns are accuracies of domains.
        lowest: Whether the lowest number is the best.
        runs: The runs that are in the rows, in their order.
        labels: The row of each.
        names: By what rows are named.
        differences: ``grouping.differing``.
        notes: What was left out or counts once.
    """

    rows: list[Row]
    columns: tuple[str, ...]
    headline: str
    accuracy: bool
    lowest: bool
    runs: list[Run]
    labels: list[str]
    names: row_names.Naming
    differences: dict[str, list[Any]]
    notes: list[str]


def with_statistics(runs: Sequence[Run], score: str) -> list[Run]:
    """Return runs with the BatchNorm statistics behind a score, whichever kind the run lists first."""
    if not score.startswith(BN_SCORE):
        return list(runs)
    kind = score.removeprefix(BN_SCORE)
    return [
        replace(run, config={**run.config, BN_STATISTICS: kind, BN_ORDER: reading.order_behind(run.resolved, kind)})
        for run in runs
    ]


def _rows(runs: Sequence[Run], score: str, scored: str, *, allow_different: bool) -> _Rows:
    """Make the rows of runs; arguments and errors as of ``fedshift.lab.tables.compare.compare``."""
    differences = grouping.differing(runs)
    if differences and not allow_different:
        held_out = ", --unseen one of runs that leave out a domain each" if leave_one_out.foldable(differences) else ""
        raise ConfigError(
            f"these runs differ in more than method and seed (--allow-different makes rows of them{held_out}): "
            + grouping.differences_line(runs, differences)
        )
    names = row_names.naming(runs)
    methods = list(registry.METHODS)
    groups = grouping.group_labels(runs, differences)
    # Of all runs: the name of a row does not depend on which rows are shown.
    named = sorted(
        zip(groups, map(names.label, runs), runs, strict=True), key=lambda each: names.order(each[2], methods)
    )
    taken = [each for each in named if rowing.scored(each[2]).startswith(scored) or each[2].results.method == BASELINE]
    if not taken:
        raise ConfigError(f"--scored {scored}: no run was scored so, and none is of {BASELINE}")
    left = sorted({label for _, label, _ in named} - {label for _, label, _ in taken})
    notes = [f"left out, not scored {scored}: {', '.join(left)}"] if left else []
    taken, unable = _able(taken, score)
    if unable:
        notes.append(f"left out, cannot be scored {score}: {_reasons(unable)}")
    accuracy = score not in run_metrics.MEASURES
    lowest = score in run_metrics.LOWEST_IS_BEST
    rows = _of_runs(taken, score, accuracy, lowest, notes)
    headline = run_metrics.MEASURES.get(score, AVG)
    columns = tuple(dict.fromkeys(column for row in rows for column in row.values if column not in OVERALL))
    if accuracy:
        columns += (AVG, STD) if len(columns) < 2 else OVERALL
    rows = [rowing.with_best(row, rows, columns, lowest) for row in rowing.with_differences(rows, headline)]
    _, labels, shown = map(list, zip(*taken, strict=True))
    return _Rows(rows, columns, headline, accuracy, lowest, shown, labels, names, differences, notes)


def _of_runs(
    taken: Sequence[tuple[str, str, Run]], score: str, accuracy: bool, lowest: bool, notes: list[str]
) -> list[Row]:
    """Return a row for each group and label of runs; what counts once is added to the notes."""
    take, _ = run_metrics.score(score)
    members: dict[tuple[str, str], list[Run]] = {}
    for group, label, run in taken:
        members.setdefault((group, label), []).append(run)
    return [
        rowing.made(
            label, group, rowing.once_per_seed(label, same, take, notes), take, accuracy, lowest,
            run_metrics.is_mean(score),
        )
        for (group, label), same in sorted(members.items(), key=lambda item: item[0][0])
    ]  # fmt: skip


def with_columns(numbers: Numbers, names: Sequence[str]) -> Numbers:
    """Return a comparison with these columns in this order; the difference goes with the column that it is of.

    Raises:
        ConfigError: If there is no name, or one is no column or comes twice.
    """
    if not names:
        raise ConfigError(f"--columns: no column is named; there are {', '.join(numbers.columns)}")
    for i, name in enumerate(names):
        if name not in numbers.columns:
            raise ConfigError(
                f"--columns: {as_found(name)} is no column; there are {', '.join(numbers.columns)}"
                f"{meant(name, numbers.columns)}"
            )
        if name in names[:i]:
            raise ConfigError(f"--columns: {as_found(name)} comes twice")
    of_others = tuple(f"{column}:" for column in OVERALL if column not in names)
    notes = tuple(note for note in numbers.notes if not note.startswith(of_others))
    return replace(numbers, columns=tuple(names), notes=notes)


def mix_warnings(runs: Sequence[Run]) -> list[str]:
    """Return a line for each way in which the class mixes of sites differ, each once."""
    sites = [part.results.site_figures for run in runs for part in run.singles]
    return list(dict.fromkeys(figures.mix.warning for figures in sites if figures and figures.mix.warning))


def _able(taken: Sequence[tuple[str, str, Run]], score: str) -> tuple[list[tuple[str, str, Run]], dict[str, str]]:
    """Leave out the runs without the BatchNorm statistics of ``--score bn=WAY``.

    Args:
        taken: Runs with their group and row.
        score: The score.

    Returns:
        The remaining runs, and the reasons by row.

    Raises:
        NotScoredError: If no run remains.
    """
    if not score.startswith(BN_SCORE):
        return list(taken), {}
    kind = score.removeprefix(BN_SCORE)
    kept, unable = [], {}
    for group, label, run in taken:
        why = bn_statistics.why_not(run, kind) if run_metrics.with_statistics(run, kind) is None else ""
        if why:
            unable[f"{label} [{group}]" if group else label] = why
        else:
            kept.append((group, label, run))
    if not kept:
        raise run_metrics.NotScoredError(f"--score {score}: none of these runs can be scored so: {_reasons(unable)}")
    return kept, unable


def _reasons(unable: Mapping[str, str]) -> str:
    """Return why rows were left out; rows with the same reason stand together."""
    by_reason: dict[str, list[str]] = {}
    for label, why in unable.items():
        by_reason.setdefault(why, []).append(label)
    return "; ".join(f"{', '.join(labels)} ({why})" for why, labels in by_reason.items())


def measure(score: str) -> str:
    """Return what a score measures, in percent."""
    return "scores" if score in run_metrics.MEASURES else run_metrics.FIGURES.get(score, "top-1 accuracy")


def _rounds(rows: Sequence[Row], score: str) -> list[str]:
    """Return which rows are means over other rounds than the last ones, where not all rows are over the same."""
    by_rounds: dict[tuple[int, ...], list[str]] = {}
    for row in rows if run_metrics.is_mean(score) else ():
        over = {run.results.seed: {part.averaged_in(score) for part in run.singles} for run in row.runs}
        alike = len({rounds for each in over.values() for rounds in each}) == 1
        for seed, each in over.items():
            for rounds in each:
                by_rounds.setdefault(rounds, []).append(
                    rowing.named(row) if alike else f"{rowing.named(row)}, seed {seed}"
                )
    if len(by_rounds) < 2:
        return []  # the title has them
    texts = [
        f"{span(rounds) if rounds else 'the last ones'} ({'; '.join(dict.fromkeys(names))})"
        for rounds, names in sorted(by_rounds.items())
    ]
    return [f"averaged rounds: {', '.join(texts)}"]


def _values(made: _Rows) -> list[str]:
    """Return notes on values that rows do not name, that were set by hand or a method asks for, and on groups."""
    own = row_names.own(made.runs, made.labels, made.names)
    asked = dict(own)
    notes = []
    for method, values in made.names.unnamed.items():
        whose = f"{method}, {row_names.UNNAMED}"
        others = {key: value for key, value in values.items() if key not in asked.get(whose, {})}
        if others and any(row.method == method for row in made.rows):
            notes.append(f"{whose}: {_settings(others)}")
    for of_rows, changed in row_names.by_hand(made.runs).items():
        each = (
            f"{grouping.parameter(key)}={grouping.shown(value)} ({usual})" for key, (value, usual) in changed.items()
        )
        notes.append(f"{of_rows}: {', '.join(each)}")
    approximations = map(registry.approximation_line, dict.fromkeys(row.method for row in made.rows))
    notes += filter(None, approximations)
    notes += [f"{whose}, as the method or its experiment asks: {_settings(settings)}" for whose, settings in own]
    if made.differences:
        one = "; --unseen makes one row of them" if leave_one_out.foldable(made.differences) else ""
        notes.append(f"rows of different groups do not compare; they differ in {', '.join(made.differences)}{one}")
    return notes


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{grouping.parameter(key)}={grouping.shown(value)}" for key, value in settings.items())
