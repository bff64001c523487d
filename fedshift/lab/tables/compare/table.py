"""The numbers of a comparison: one row per method over seeds, with the paper's printed row."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fedshift.lab.tables.compare import leave_one_out, tradeoff
from fedshift.lab.tables.compare import notes as remarks
from fedshift.lab.tables.compare import rows as rowing
from fedshift.lab.tables.compare.rows import Row
from fedshift.lab.tables.papers import printed
from fedshift.lab.tables.results import differences, metrics, row_names
from fedshift.lab.tables.results import loading as reading
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import BASELINE
from fedshift_app.config import registry
from fedshift_core.accuracies import AVG, OVERALL, STD
from fedshift_core.errors import ConfigError
from fedshift_core.features import task_of
from fedshift_core.limits import as_found, some
from fedshift_core.spelling import meant
from fedshift_core.wire.names import BN_SCORE

#: A run that is shown, after the group and label of its row.
Chosen = tuple[str, str, Run]
#: Values of ``--scored``: which models a run scored.
SCORED = ("global", "personal")
#: Up to how many settings a refusal names with their values; of more, as of other experiments, how many without.
_FEW, _NAMED = 2, 6


@dataclass(frozen=True)
class Numbers:
    """All numbers of a comparison.

    Attributes:
        title: What is compared.
        columns: The columns in their order.
        headline: The column whose difference to the baseline is shown.
        rows: The rows, the baseline first.
        notes: What a reader must know about the numbers.
        warnings: What may make them wrong.
        paper: The printed table; empty without one.
        score: The score.
        costs: Measured costs of its methods.
        unreadable: A line for each run that was left out because it cannot be read.
    """

    title: str
    columns: tuple[str, ...]
    headline: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    paper: str
    score: str
    costs: tradeoff.Costs | None
    unreadable: tuple[str, ...]


class Asked(NamedTuple):
    """The arguments of a comparison, see :func:`fedshift.compare`; ``of_kept``: ``results.metrics.as_scored``."""

    paper: str = ""
    score: str = "last5"
    scored: str = ""
    held_out: bool = False
    allow_different: bool = False
    costs: Path | None = None
    of_kept: bool = False


def numbers(paths: Sequence[Path], asked: Asked) -> Numbers:
    """Read and compare runs."""
    if asked.paper:
        printed.get(asked.paper).check_of_runs()
    metrics.check(asked.score)  # reports a wrong name before any file is read
    if asked.held_out and asked.score == "clients":
        raise ConfigError("--unseen: the measures of --score clients are over all domains; give one of the two")
    if asked.scored and asked.scored not in SCORED:
        found = f"{as_found(asked.scored)}; allowed are {', '.join(SCORED)}{meant(asked.scored, SCORED)}"
        raise ConfigError(f"--scored is {found}")
    return numbers_of(reading.read(paths), asked)


def numbers_of(given: reading.Given, asked: Asked) -> Numbers:
    """Compare runs that were read."""
    score, held_out = asked.score, asked.held_out
    runs = metrics.as_scored(given.runs, score, of_kept=asked.of_kept)
    domains: list[str] = []
    if held_out:
        runs, domains = leave_one_out.folds(runs)
    groups = differences.differing(runs)
    if groups and not asked.allow_different:
        raise _differ(runs, groups)
    names = row_names.Names(runs)
    chosen, left_out = _chosen(runs, names, groups, score, asked.scored)
    rows, repeats = _rows(chosen, score, domains)
    headline = metrics.MEASURES.get(score, AVG)
    lowest = score in metrics.LOWEST_IS_BEST
    columns = tuple(dict.fromkeys(column for row in rows for column in row.values if column not in OVERALL))
    if score not in metrics.MEASURES:
        columns += (AVG, STD) if len(columns) < 2 else OVERALL
    rows = [rowing.with_best(row, rows, columns, lowest) for row in rowing.with_differences(rows, headline)]
    table = printed.get(asked.paper) if asked.paper else None
    if table is not None:
        rows = [rowing.with_printed_row(row, table, columns) for row in rows]
    runs, labels = [run for _, _, run in chosen], [label for _, label, _ in chosen]
    paid = None
    if asked.costs is not None:
        paid = tradeoff.read(asked.costs, list(dict.fromkeys(str(run.config["experiment"]) for run in runs)))
    warnings = [*differences.surroundings(runs), *differences.unlike(runs)]
    warnings += [run.contradiction for run in runs if run.contradiction]
    warnings += differences.same_weights(runs, labels)
    warnings += mix_warnings(runs) if score in metrics.OVER_CLASSES else []
    notes = [
        *([leave_one_out.NOTE] if held_out else []),
        *remarks.of_rows(rows, headline, score),
        *left_out,
        *repeats,
        *names.notes(runs, labels),
        *remarks.of_groups(groups),
        *given.unfinished,
        *([] if table is None else remarks.of_paper(rows, table)),
        *([] if paid is None else tradeoff.notes(rows, paid, headline, lowest)),
    ]
    return Numbers(
        title(runs, score, held_out=held_out),
        columns,
        headline,
        tuple(rows),
        tuple(notes),
        (*warnings, *given.unreadable),
        asked.paper,
        score,
        paid,
        given.unreadable,
    )


def title(runs: Sequence[Run], score: str, *, held_out: bool) -> str:
    """Return what is compared: data set, measure, and over which rounds it is averaged."""
    called = metrics.called_of(metrics.SCORES[score], runs, score)
    unseen = "of domains that no node held, " if held_out else ""
    datasets = ", ".join(dict.fromkeys(run.results.dataset for run in runs))
    return f"{datasets}: {measure(score, runs)} (%), {unseen}{called}"


def measure(score: str, runs: Sequence[Run]) -> str:
    """Return what a score of runs measures, in percent."""
    names = dict.fromkeys(task_of(run.resolved.task).score for run in runs)
    return "scores" if score in metrics.MEASURES else metrics.FIGURES.get(score, " or ".join(names))


def _differ(runs: Sequence[Run], groups: dict[str, list[object]]) -> ConfigError:
    held_out = ", --unseen one of runs that leave out a domain each" if leave_one_out.foldable(groups) else ""
    keys = list(groups)
    which = differences.line(groups, [run.name for run in runs]) if len(keys) <= _FEW else some(keys, _NAMED)
    return ConfigError(
        f"these runs differ in more than method and seed (--allow-different makes rows of them{held_out}): " + which
    )


def _chosen(
    runs: Sequence[Run], names: row_names.Names, groups: Collection[str], score: str, scored: str
) -> tuple[list[Chosen], list[str]]:
    """Choose the runs that were scored so, and note who was left out; a row's name does not depend on this."""
    methods = list(registry.METHODS)
    each = sorted(
        zip(differences.group_labels(runs, groups), map(names.label, runs), runs, strict=True),
        key=lambda chosen: names.order(chosen[2], methods),
    )
    taken = [
        (group, label, run)
        for group, label, run in each
        if rowing.scored(run).startswith(scored) or run.results.method == BASELINE
    ]
    if not taken:
        raise ConfigError(f"--scored {scored}: no run was scored so, and none is of {BASELINE}")
    notes = [f"left out, not scored {scored}: {', '.join(left)}"] if (left := _without(each, taken)) else []
    if score.startswith(BN_SCORE):  # a method may have no such statistics; no row is over some of its seeds alone
        having = {(group, label) for group, label, run in taken if score in run.scores}
        able = [(group, label, run) for group, label, run in taken if (group, label) in having]
        for _, _, run in able or taken:
            metrics.taken(run, score)  # raises how a run has it
        if left := _without(taken, able):
            how = metrics.remedy(taken[0][2], score).replace("\n", "; ")
            notes.append(f"left out, not scored {score}: {', '.join(left)} ({how})")
        taken = able
    return taken, notes


def _without(all_rows: Sequence[Chosen], taken: Sequence[Chosen]) -> list[str]:
    """Return the rows that are among the first but not among the second."""
    rows, kept = ({f"{label} [{group}]" if group else label for group, label, _ in some} for some in (all_rows, taken))
    return sorted(rows - kept)


def _rows(chosen: Sequence[Chosen], score: str, domains: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Return a row for each group and label of runs, and what counts once."""
    members = grouped(((group, label), run) for group, label, run in chosen)
    notes: list[str] = []
    rows = [
        rowing.made(label, group, rowing.once(label, same, score, notes), score, domains)
        for (group, label), same in sorted(members.items(), key=lambda item: item[0][0])
    ]
    return rows, notes


def with_columns(numbers: Numbers, names: Sequence[str]) -> Numbers:
    """Return a comparison with these columns in this order; the difference goes with the column that it is of.

    Raises:
        ConfigError: If one is no column, comes twice, or none is named.
    """
    if not names:
        raise ConfigError(f"--columns: no column is named; there are {', '.join(numbers.columns)}")
    for i, name in enumerate(names):
        if name not in numbers.columns:
            there = f"there are {', '.join(numbers.columns)}{meant(name, numbers.columns)}"
            raise ConfigError(f"--columns: {as_found(name)} is no column; {there}")
        if name in names[:i]:
            raise ConfigError(f"--columns: {as_found(name)} comes twice")
    of_others = tuple(f"{column}:" for column in OVERALL if column not in names)
    notes = tuple(note for note in numbers.notes if not note.startswith(of_others))
    return replace(numbers, columns=tuple(names), notes=notes)


def mix_warnings(runs: Sequence[Run]) -> list[str]:
    """Return a line for each way in which the class mixes of sites differ, each once."""
    sites = [run.results.site_figures for run in runs]
    return list(dict.fromkeys(figures.mix.warning for figures in sites if figures and figures.mix.warning))
