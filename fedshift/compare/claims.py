"""``fedshift claims``: printed gains over FedAvg, our gains and a verdict by a fixed rule (``claim_rule``)."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from datasets import catalog
from fedshift.compare.claim_rule import NOT_COMPARABLE, Claim, chosen, is_pretrained, unlike, verdict
from fedshift.compare.claim_table import Claims
from fedshift.compare.rows import PaperRow, Row, baseline, named, of_seeds, with_printed_row
from fedshift.compare.table import rows_of
from fedshift.papers import printed as printed_module
from fedshift.papers.deviations import HELD_OUT
from fedshift.results import contents, grouping
from fedshift.results import loading as reading
from fedshift.results import metrics as run_metrics
from fedshift.results.loading import Run
from fedshift.results.places import held, holds_runs
from fedshift.results.settings import BASELINE, NODES
from fedshift.results.statistics import paired
from fedshift_core.accuracies import OVERALL
from fedshift_core.errors import ConfigError
from fedshift_core.paths import user_path

#: Settings in which leave-one-out runs of one row may differ: the held-out domain and the remaining nodes.
FREE = (HELD_OUT, "allocation.counts", NODES)


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
    run_metrics.score(score)
    results: list[Claim] = []
    lacking: list[str] = []
    unreadable: list[str] = []
    warnings: list[str] = []
    tables = printed_module.all_tables()
    given = _read(_folders(folders), unreadable)
    for folder, given_runs in given.items():
        try:
            unreadable += [f"{folder.name}: {line}" for line in given_runs.left_out()]
            warnings += [f"{folder.name}: {line}" for line in _doubtful(given_runs.runs)]
            results += list(_in_folder(folder, given_runs, tables, score))
        except run_metrics.NotScoredError as error:
            if len(lacking) == len(given) - 1:
                raise error.under(str(folder)) from None
            lacking.append(folder.name)
        except ConfigError as error:
            raise error.under(str(folder)) from None
    order = {table.id: i for i, table in enumerate(tables)}
    labels = {(table.id, row.method): i for table in tables for i, row in enumerate(table.printed.rows)}
    results = chosen(results)
    results.sort(key=lambda claim: (order[claim.table], claim.pretrained, claim.runs, labels[claim.table, claim.row]))
    covered = {(claim.table, claim.row) for claim in results}
    printed = {(table.id, label) for table in tables for label in _gains(table)}
    return Claims(tuple(results), score, len(printed - covered), tuple(lacking), tuple(unreadable), tuple(warnings))


def _folders(given: Sequence[Path]) -> dict[Path, bool]:
    """Return the folders that hold runs: the given folders, or their subfolders where they hold none.

    Returns:
        For each whether it was named, so that its runs must be readable. A folder of folders is among them if it holds
        a file that cannot be read.
    """
    folders: dict[Path, bool] = {}
    for path in map(user_path, given):
        if path.is_file():
            raise ConfigError(f"{path} is a file; claims takes folders of runs, or a folder of such folders")
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}")
        inner = []
        if not holds_runs(path):
            inner = [sub for sub in sorted(path.iterdir()) if sub.is_dir() and held(sub)]
        if not inner or held(path):
            folders[path] = not inner
        folders |= {sub: folders.get(sub, False) for sub in inner}
    return folders


def _read(folders: Mapping[Path, bool], unreadable: list[str]) -> dict[Path, reading.Given]:
    """Return the runs of each folder; of one that was not named and has none that can be read a line in its place.

    Raises:
        ConfigError: If that is so in a named folder, or in all.
    """
    given: dict[Path, reading.Given] = {}
    problems: list[ConfigError] = []
    for folder, is_named in folders.items():
        try:
            given[folder] = reading.read([folder])
        except ConfigError as error:
            problems.append(error.under(str(folder)))
            if is_named:
                raise problems[-1] from None
            unreadable.append(f"{folder.name}: left out: {' '.join(str(error).split())}")
    if not given:
        raise problems[0]
    return given


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


def _doubtful(runs: Sequence[Run]) -> list[str]:
    """Return warnings about the runs of a folder: other images, results that contradict their rounds."""
    return [*contents.unlike(runs), *(run.contradiction for run in runs if run.contradiction)]


def _in_folder(
    folder: Path, given: reading.Given, tables: Sequence[printed_module.Table], score: str
) -> Iterator[Claim]:  # fmt: skip
    runs = given.runs
    config = runs[0].config
    has = {domain for run in runs for domain in run.results.domains}
    parts = bool(config[HELD_OUT]) and all(key.startswith(FREE) for key in grouping.differing(runs))
    ours: tuple[list[Row], tuple[str, ...]] | None = None  # the same for all tables
    for table in tables:
        column_map = table.stands_for(config)
        if column_map is None or column_map.unseen != bool(config[HELD_OUT]) or not has & {*_domains(column_map)}:
            continue
        ours = ours or rows_of(runs, score)
        rows = [with_printed_row(row, table, ours[1]) for row in ours[0]]
        printed = [row for row in rows if row.paper is not None]
        best: dict[str, Claim] = {}
        members: dict[str, list[tuple[Row, Row]]] = {}
        for row in rows:
            if not row.is_baseline and (base := baseline(row, printed)) is not None:
                members.setdefault(row.label if parts else named(row), []).append((row, base))
        for label, pairs in members.items():
            claim = _claim(table, column_map, pairs, f"{folder.name}: {label}", score)
            if claim is None:
                continue
            if claim.pretrained:  # ``chosen`` compares them with those of other folders
                yield claim
            elif claim.row not in best or claim.distance < best[claim.row].distance:
                best[claim.row] = claim
        yield from best.values()


def _claim(
    table: printed_module.Table, column_map: printed_module.ColumnMap, pairs: Sequence[tuple[Row, Row]], our_runs: str,
    score: str,
) -> Claim | None:  # fmt: skip
    """Compare our row and our row of FedAvg with the printed ones.

    ``pairs`` holds several rows where each held out another domain.
    """
    printed_gains: dict[str, float] = {}
    ours: dict[int, list[float | None]] = {}
    base: dict[int, list[float | None]] = {}
    printed: PaperRow | None = None
    for row, plain in pairs:
        if row.paper is None or plain.paper is None:
            continue
        printed = row.paper
        columns = [column for column in printed.values if column not in OVERALL]
        for column in columns:
            value, of_plain = printed.values[column], plain.paper.values[column]
            if value is None or of_plain is None:
                continue
            printed_gains[column] = value - of_plain
            for seed in row.by_seed.keys() & plain.by_seed.keys():
                ours.setdefault(seed, []).append(row.by_seed[seed].get(column))
                base.setdefault(seed, []).append(plain.by_seed[seed].get(column))
    if printed is None or not printed_gains:
        return None
    our_gain = paired(_means(ours, len(printed_gains)), _means(base, len(printed_gains)))
    gain = statistics.fmean(printed_gains.values())
    row = pairs[0][0]
    judged, why = verdict(gain, our_gain, row, printed, len(printed_gains))
    if contents.unlike(of_seeds((member for pair in pairs for member in pair), our_gain.seeds)):
        our_gain, judged, why = paired({}, {}), NOT_COMPARABLE, contents.OTHER_IMAGES
    domains = tuple(domain for domain in _domains(column_map) if domain in printed_gains)
    rounds = run_metrics.other_rounds([run for pair in pairs for member in pair for run in member.runs], score)
    return Claim(
        table.id, printed.label, row.method == table.paper.key, gain, our_gain, domains,
        set(domains) == {*_domains(column_map)}, our_runs, len(printed.altered), len(printed.readings),
        judged, why, unlike(row, printed), is_pretrained(row, printed), rounds,
    )  # fmt: skip


def _means(values: Mapping[int, Sequence[float | None]], domains: int) -> dict[int, float | None]:
    """Return the mean over the domains by seed; None where a domain is missing."""
    return {
        seed: statistics.fmean(known) if len(known := [v for v in each if v is not None]) == domains else None
        for seed, each in values.items()
    }
