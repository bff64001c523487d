"""``fedshift claims``: printed gains over FedAvg, our gains and a verdict by a fixed rule (``claim_rule``).

Runs are compared wherever they lie: those with equal settings form one comparison (``pools``).
"""

import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from fedshift.lab.tables.compare import pools
from fedshift.lab.tables.compare.claim_rule import (
    NOT_COMPARABLE,
    Claim,
    chosen,
    is_pretrained,
    unlike,
    verdict,
    with_corrected,
)
from fedshift.lab.tables.compare.claim_table import Claims
from fedshift.lab.tables.compare.rows import Row, baseline, of_seeds, with_printed_row
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results import differences as contents
from fedshift.lab.tables.results import loading as reading
from fedshift.lab.tables.results import metrics as run_metrics
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.places import with_inner
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.lab.tables.results.statistics import paired
from fedshift_core.accuracies import OVERALL, average
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog


def claims(folders: Sequence[Path], *, score: str = "last5") -> Claims:
    """Compare runs with each printed gain over FedAvg.

    Args:
        folders: Folders of runs to compare (``results.loading.read``), or folders of such folders.
        score: A score of ``results.metrics.SCORES`` that is an accuracy by domain.

    Raises:
        ConfigError: If a named folder holds no finished run, no folder has this score, or the score is no accuracy of a
            round that is chosen without test results.
    """
    if score in run_metrics.MEASURES or score in run_metrics.LOWEST_IS_BEST or score in run_metrics.FIGURES:
        raise ConfigError(
            f"--score {score}: the papers' gains are in accuracy; take last5, final, bn=WAY or validation"
        )
    if score == "best":
        raise ConfigError(
            "--score best: these rounds are chosen after seeing test results, so they judge no gain; take last5, "
            "final, bn=WAY or validation"
        )
    run_metrics.check(score)
    given = reading.read(with_inner(folders))
    of_folders = grouped((run.place.parent.name, run) for run in given.runs)
    warnings = [
        f"{name}: {line}"
        for name, runs in of_folders.items()
        for line in (*contents.unlike(runs), *filter(None, [run.contradiction for run in runs]))
    ]
    runs = [run for run in given.runs if score in run.scores]
    if not runs:
        run_metrics.taken(given.runs[0], score)
    lacking = [name for name, runs in of_folders.items() if any(score not in run.scores for run in runs)]
    runs = run_metrics.as_scored(runs, score)
    tables = printed_module.all_tables()
    results = chosen(
        [claim for table in tables for claim in _in_table(numbers, table)]
        for _, numbers in pools.comparisons(runs, score, warnings)
    )
    order = {table.id: i for i, table in enumerate(tables)}
    labels = {(table.id, row.method): i for table in tables for i, row in enumerate(table.printed.rows)}
    results.sort(key=lambda claim: (order[claim.table], claim.pretrained, claim.runs, labels[claim.table, claim.row]))
    covered = {(claim.table, claim.row) for claim in results}
    printed = {(table.id, label) for table in tables for label in _gains(table)}
    return Claims(
        tuple(with_corrected(results)),
        score,
        len(printed - covered),
        tuple(lacking),
        given.unreadable,
        tuple(warnings),
    )


def _gains(table: printed_module.Table) -> list[str]:
    """Return the labels of printed rows that have a gain in accuracy over a printed row of FedAvg."""
    readings = [(row, table.readings(row)) for row in table.printed.rows]
    plain = [{"method.name": BASELINE}]
    has_plain = any(list(settings) == plain for _, settings in readings)
    if not has_plain or not any(map(_domains, table.printed.column_maps)):
        return []
    return [row.method for row, settings in readings if list(settings) != plain]


def _domains(column_map: printed_module.ColumnMap) -> list[str]:
    """Return our columns that are domains."""
    known = {domain for name in column_map.dataset for domain in catalog.get(name).domains}
    return [column for column in column_map.columns.values() if column in known]


def _in_table(numbers: Numbers, table: printed_module.Table) -> Iterator[Claim]:
    """Yield the claims of a printed table of which a comparison has rows."""
    config = numbers.rows[0].runs[0].config
    column_map = table.stands_for(config)
    domains = [] if column_map is None else _domains(column_map)
    if column_map is None or column_map.unseen != bool(config[HELD_OUT]) or not {*numbers.columns} & {*domains}:
        return
    rows = [with_printed_row(row, table, numbers.columns) for row in numbers.rows]
    printed = [row for row in rows if row.paper is not None]
    for row in printed:
        plain = None if row.is_baseline else baseline(row, printed)
        if plain is not None and (claim := _claim(table, domains, row, plain, numbers.score)) is not None:
            yield claim


def _claim(table: printed_module.Table, domains: Sequence[str], row: Row, plain: Row, score: str) -> Claim | None:
    """Compare our row and our row of FedAvg with the printed ones."""
    ours, base = row.paper, plain.paper
    if ours is None or base is None:
        return None
    gains = {
        column: value.mean - of_plain
        for column, value in ours.values.items()
        if column not in OVERALL and value.mean is not None and (of_plain := base.values[column].mean) is not None
    }
    if not gains:
        return None
    our_gain = paired(_means(row, gains), _means(plain, gains))
    gain = statistics.fmean(gains.values())
    judged, why = verdict(gain, our_gain, row, ours, len(gains))
    if contents.unlike(of_seeds((row, plain), our_gain.seeds)):
        our_gain, judged, why = paired({}, {}), NOT_COMPARABLE, contents.OTHER_IMAGES
    runs = of_seeds((row, plain), our_gain.seeds) or row.runs
    common = tuple(domain for domain in domains if domain in gains)
    return Claim(
        table.id,
        ours.label,
        row.method == table.paper.key,
        gain,
        our_gain,
        common,
        len(common) == len({*domains}),
        f"{_folder_names(runs)}: {row.label}",
        len(ours.altered),
        len(ours.readings),
        judged,
        why,
        unlike(row, ours),
        is_pretrained(row, ours),
        run_metrics.other_rounds(runs, score),
    )


def _folder_names(runs: Iterable[Run]) -> str:
    """Return the folders in which runs lie; of a run folder the one around it."""
    return " + ".join(dict.fromkeys(part.place.parent.name for part in runs))


def _means(row: Row, domains: Collection[str]) -> dict[int, float | None]:
    """Return the mean over the domains by seed; None where a domain is missing."""
    return {seed: average({name: values.get(name) for name in domains}) for seed, values in row.by_seed.items()}
