"""``fedshift claims``: printed gains over FedAvg, our gains and a verdict by a fixed rule.

The rule (``RULE``) was written down on 2026-11-23; docs/guide/compare.md (Claims) says which kept runs are older.
"""

import json
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import catalog
from fedshift.compare import formats
from fedshift.compare.rows import OVERALL, PaperRow, Row, baseline, named, of_seeds
from fedshift.compare.table import numbers_of
from fedshift.papers import printed as printed_module
from fedshift.papers.deviations import HELD_OUT
from fedshift.results import contents, grouping
from fedshift.results import loading as reading
from fedshift.results import metrics as run_metrics
from fedshift.results.loading import Run
from fedshift.results.settings import BASELINE, NODES
from fedshift.results.statistics import LEAST_FOR_TEST, Paired, paired
from fedshift.tables import columns
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.paths import user_path

SEEN, NOT_SEEN, REVERSED, NOT_COMPARABLE = "seen", "not seen", "reversed", "not comparable"
#: Each verdict, as JSON has it, and its words in tables.
VERDICTS = {SEEN: "confirmed", NOT_SEEN: "not significant", REVERSED: "reversed", NOT_COMPARABLE: "not comparable"}
LEVEL = 0.05  # of p
LEAST_DOMAINS = 2
#: Settings that define another task: the network and the corruption of the test images.
ANOTHER_TASK = ("model.name", "shift.name", "shift.corruption", "shift.severity")
#: Settings in which leave-one-out runs of one row may differ: the held-out domain and the remaining nodes.
FREE = (HELD_OUT, "allocation.counts", NODES)
HEAD = ("table", "row", "paper's gain", "our gain", "n", "p", "verdict", "on", "differ", "runs")
WIDTH = 100  # of the notes
RULE = (
    "gain: accuracy less FedAvg's in the same table, mean over the domains that table and runs have",
    f"not comparable: fewer than {LEAST_FOR_TEST} seeds that the row and FedAvg share, fewer than {LEAST_DOMAINS} "
    "common domains, another network or other corruptions than the paper's, an approximation, a label that is a "
    "reading, or no gain printed",
    f"confirmed: the sign that is printed, with p < {LEVEL} of a two-sided paired t-test over seeds; reversed: the "
    "other sign with such a p; not significant: all else, which does not refute the gain: few seeds have little power",
    "where all seeds differ by the same, to which there is no test, the sign decides",
    "the size decides no verdict; p is not corrected for the number of rows",
)


@dataclass(frozen=True)
class Claim:
    """A printed gain over FedAvg and ours.

    Attributes:
        table: Id of the printed table.
        row: Its label in that table.
        own: Whether the paper proposes the method; otherwise it is a baseline of the paper.
        printed_gain: The printed gain in points.
        our_gain: Our gain, seed by seed.
        domains: Over which both are means.
        all_domains: Whether these are all domains that the table prints.
        runs: The folder of our runs, and our row.
        differ: How many values of our runs are not the paper's.
        left_open: How many others, which the paper leaves open, are not our reading of it.
        verdict: One of ``VERDICTS``.
        why: Reason why the row is not comparable; empty otherwise.
    """

    table: str
    row: str
    own: bool
    printed_gain: float
    our_gain: Paired
    domains: tuple[str, ...]
    all_domains: bool
    runs: str
    differ: int
    left_open: int
    verdict: str
    why: str = ""


@dataclass(frozen=True)
class Claims:
    """All claims, in the order of papers, tables and rows.

    Attributes:
        claims: The claims.
        score: The score of our runs that is compared.
        without: Number of printed gains without a run of ours.
        lacking: Folders whose runs lack this score.
        unreadable: Runs that were left out because they cannot be read, each with the reason.
        warnings: Runs with other images and runs whose results contradict their rounds.
        own: Whether only the rows of the papers' own methods are shown.
        comparable: Whether only rows that compare are shown.
    """

    claims: tuple[Claim, ...]
    score: str
    without: int
    lacking: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    own: bool = False
    comparable: bool = False

    @property
    def shown(self) -> tuple[Claim, ...]:
        """The claims to show; the counts in the notes include all claims."""
        return tuple(
            claim for claim in self.claims
            if (claim.own or not self.own) and not (self.comparable and claim.verdict == NOT_COMPARABLE)
        )  # fmt: skip

    def text(self) -> str:
        """Return aligned lines."""
        lines = columns([HEAD, *map(_cells, self.shown)], "", ruled=True)
        notes = [line for note in self._notes() for line in textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ")]
        return formats.harmless("\n".join([self._title(), "", *lines, "", *notes]))

    def markdown(self) -> str:
        """Return a table and its notes; rows of a paper's own method in bold."""
        rows = []
        for claim in self.shown:
            cells = [formats.escaped(cell) for cell in _cells(claim)]
            rows.append(formats.piped([cells[0], f"**{cells[1]}**" if claim.own else cells[1], *cells[2:]]))
        rule = formats.piped(["---", "---", "--:", "--:", "--:", "--:", *("---" for _ in HEAD[6:])])
        notes = [f"- {formats.escaped(note)}" for note in self._notes()]
        title = f"**{formats.escaped(self._title())}**"
        return formats.harmless("\n".join([title, "", formats.piped(HEAD), rule, *rows, "", *notes]))

    def json(self) -> str:
        """Return the claims that are shown, with numbers in full, and the rule."""
        records = [_record(claim) for claim in self.shown]
        return json.dumps({
            "score": self.score, "claims": records, "without_runs": self.without, "not_scored_so": self.lacking,
            "unreadable": self.unreadable, "warnings": self.warnings, "rule": RULE,
        }, indent=2)  # fmt: skip

    def _title(self) -> str:
        return f"gains over FedAvg that the papers print, and ours ({run_metrics.score(self.score)[1]})"

    def _notes(self) -> list[str]:
        notes = []
        if len(self.shown) < len(self.claims):
            notes.append(f"{len(self.claims)} rows, of which {len(self.shown)} are shown")
        for who, own in (("the papers' own methods", True), ("baselines", False)):
            counted = Counter(claim.verdict for claim in self.claims if claim.own is own)
            if counted:
                counts = ", ".join(
                    f"{counted[verdict]} {words}" for verdict, words in VERDICTS.items() if counted[verdict]
                )
                notes.append(f"{who}{' (bold)' if own else ''}: {counts}")
        notes += self._gain_notes()
        notes.append(f"printed gains without a run here: {self.without}")
        if self.lacking:
            notes.append(f"left out, not all scored {self.score}: {', '.join(self.lacking)}")
        notes += [*self.unreadable, *self.warnings]
        notes += RULE
        notes.append(
            "* mean over some of the printed domains alone; differ: values of our runs that are not the paper's, where "
            "it has one"
        )
        return notes

    def _gain_notes(self) -> list[str]:
        """Return notes on printed gains that have comparable rows from several folders."""
        verdicts: dict[tuple[str, str], list[str]] = {}
        for claim in self.claims:
            if claim.verdict != NOT_COMPARABLE:
                verdicts.setdefault((claim.table, claim.row), []).append(claim.verdict)
        if all(len(same_gain) == 1 for same_gain in verdicts.values()):
            return []
        rows = sum(map(len, verdicts.values()))
        notes = [f"{rows} comparable rows, of {len(verdicts)} printed gains: one for each folder of runs"]
        if split := [f"{table} {row}" for (table, row), same_gain in verdicts.items() if len(set(same_gain)) > 1]:
            notes.append(f"not the same verdict in all folders: {', '.join(split)}")
        return notes


def claims(folders: Sequence[Path], *, score: str = "last5") -> Claims:
    """Compare runs with each printed gain over FedAvg.

    Args:
        folders: Folders of runs to compare (``results.loading.read``), or folders of such folders.
        score: A score of ``results.metrics.SCORES`` that is an accuracy by domain.

    Raises:
        ConfigError: If a folder holds no finished run, no folder has this score, or the score is no accuracy.
    """
    if score in run_metrics.MEASURES or score in run_metrics.LOWEST_IS_BEST or score in run_metrics.FIGURES:
        raise ConfigError(
            f"--score {score}: the papers' gains are in accuracy; take last5, final, bn=WAY or validation"
        )
    run_metrics.score(score)
    results: list[Claim] = []
    lacking: list[str] = []
    unreadable: list[str] = []
    warnings: list[str] = []
    tables = printed_module.all_tables()
    given = _folders(folders)
    for folder in given:
        try:
            given_runs = reading.read([folder])
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
    results.sort(key=lambda claim: (order[claim.table], claim.runs, labels[claim.table, claim.row]))
    covered = {(claim.table, claim.row) for claim in results}
    printed = {(table.id, label) for table in tables for label in _gains(table)}
    return Claims(tuple(results), score, len(printed - covered), tuple(lacking), tuple(unreadable), tuple(warnings))


def _folders(given: Sequence[Path]) -> list[Path]:
    """Return the folders that hold runs: the given folders, or their subfolders where they hold none."""
    folders = []
    for path in map(user_path, given):
        if path.is_file():
            raise ConfigError(f"{path} is a file; claims takes folders of runs, or a folder of such folders")
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}")
        inner = (
            [] if reading.held(path) else [sub for sub in sorted(path.iterdir()) if sub.is_dir() and reading.held(sub)]
        )
        folders += inner or [path]
    return folders


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
    runs, unfinished = given.runs, given.unfinished
    config = runs[0].config
    has = {domain for run in runs for domain in run.results.domains}
    parts = bool(config[HELD_OUT]) and all(key.startswith(FREE) for key in grouping.differing(runs))
    for table in tables:
        column_map = table.stands_for(config)
        if column_map is None or column_map.unseen != bool(config[HELD_OUT]) or not has & {*_domains(column_map)}:
            continue
        rows = numbers_of(runs, unfinished, paper=table.id, score=score, allow_different=True).rows
        printed = [row for row in rows if row.paper is not None]
        best: dict[str, Claim] = {}
        members: dict[str, list[tuple[Row, Row]]] = {}
        for row in rows:
            if not row.is_baseline and (base := baseline(row, printed)) is not None:
                members.setdefault(row.label if parts else named(row), []).append((row, base))
        for label, pairs in members.items():
            claim = _claim(table, column_map, pairs, f"{folder.name}: {label}")
            if claim is not None and (claim.row not in best or _distance(claim) < _distance(best[claim.row])):
                best[claim.row] = claim
        yield from best.values()


def _claim(
    table: printed_module.Table, column_map: printed_module.ColumnMap, pairs: Sequence[tuple[Row, Row]], our_runs: str
) -> Claim | None:
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
    verdict, why = _verdict(gain, our_gain, row, printed, len(printed_gains))
    if contents.unlike(of_seeds((member for pair in pairs for member in pair), our_gain.seeds)):
        our_gain, verdict, why = paired({}, {}), NOT_COMPARABLE, contents.OTHER_IMAGES
    domains = tuple(domain for domain in _domains(column_map) if domain in printed_gains)
    return Claim(
        table.id, printed.label, row.method == table.paper.key, gain, our_gain, domains,
        set(domains) == {*_domains(column_map)}, our_runs, len(printed.altered), len(printed.readings),
        verdict, why,
    )  # fmt: skip


def _distance(claim: Claim) -> tuple[int, int]:
    """Return how many values differ from the paper's values, then from our readings of open values."""
    return claim.differ, claim.left_open


def _means(values: Mapping[int, Sequence[float | None]], domains: int) -> dict[int, float | None]:
    """Return the mean over the domains by seed; None where a domain is missing."""
    return {
        seed: statistics.fmean(known) if len(known := [v for v in each if v is not None]) == domains else None
        for seed, each in values.items()
    }


def _verdict(gain: float, our_gain: Paired, row: Row, printed: PaperRow, domains: int) -> tuple[str, str]:
    """Return the verdict by ``RULE`` and, if the row is not comparable, the reason."""
    other = [deviation.text for deviation in (*printed.altered, *printed.readings) if deviation.key in ANOTHER_TASK]
    seeds = len(our_gain.seeds)
    reasons = (
        (seeds < LEAST_FOR_TEST, f"{seeds} {'seed' if seeds == 1 else 'seeds'}"),
        (domains < LEAST_DOMAINS, f"{domains} common domain"),
        (bool(other), ", ".join(other)),
        (bool(registry.approximation_line(row.method)), "an approximation"),
        (not printed.certain, "the label is a reading"),
        (gain == 0, "no gain printed"),
    )
    if why := next((reason for holds, reason in reasons if holds), ""):
        return NOT_COMPARABLE, why
    mean = our_gain.difference.mean or 0.0
    if mean == 0 or (our_gain.p is not None and our_gain.p >= LEVEL):  # p is None where all seeds differ by the same
        return NOT_SEEN, ""
    return (SEEN if (mean > 0) == (gain > 0) else REVERSED), ""


def _cells(claim: Claim) -> tuple[str, ...]:
    gain = claim.our_gain
    ours = "-" if gain.difference.mean is None else formats.number(gain.difference.mean, gain.difference.std, "+")
    words = VERDICTS[claim.verdict]
    verdict = f"{words}: {claim.why}" if claim.why else words
    return (
        claim.table, claim.row, f"{claim.printed_gain:+.2f}", ours, str(len(gain.seeds)),
        "" if gain.p is None else formats.p_value(gain.p), verdict,
        f"{', '.join(claim.domains)}{'' if claim.all_domains else ' *'}", str(claim.differ), claim.runs,
    )  # fmt: skip


def _record(claim: Claim) -> dict[str, Any]:
    gain = claim.our_gain
    return {
        "table": claim.table, "row": claim.row, "own": claim.own, "there": claim.printed_gain,
        "here": gain.difference.mean, "here_std": gain.difference.std, "seeds": gain.seeds, "p": gain.p,
        "interval": gain.interval, "domains": claim.domains, "all_printed_domains": claim.all_domains,
        "runs": claim.runs, "values_not_the_papers": claim.differ, "values_left_open": claim.left_open,
        "verdict": claim.verdict, "why": claim.why,
    }  # fmt: skip
