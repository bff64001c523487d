"""The notes below a comparison: what a reader must know about its numbers."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedshift.lab.tables.compare import run_facts
from fedshift.lab.tables.compare.rows import PaperRow, Row, baseline, named, same_worst
from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import HELD_OUT, TEST_BATCH, Altered, listed
from fedshift.lab.tables.results import contents, grouping, metrics
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import BASELINE, BN_STATISTICS, LAST, NODES
from fedshift.lab.tables.results.statistics import LEAST_FOR_TEST
from fedshift_core.accuracies import AVG, OVERALL, WORST
from fedshift_core.plural import plural
from fedshift_core.rounds import LAST_ROUNDS
from fedshift_core.wire.names import BATCH, BN_SCORE

#: First words of the notes about values that the paper leaves open.
OPEN = "where the paper is silent or unclear (our reading in brackets)"


def of_rows(rows: Sequence[Row], headline: str, accuracy: bool, lowest: bool) -> list[str]:
    """Return the notes about our rows: averaging, rows that do not compare, missing scores.

    Args:
        rows: All rows.
        headline: The column whose difference to the baseline is shown.
        accuracy: Whether the columns are accuracies of domains.
        lowest: Whether the lowest number is the best.
    """
    return [
        "mean ± sample standard deviation (ddof=1) over n seeds; one seed has no spread",
        *_test_batches(rows),
        *_rounds([part for row in rows for run in row.runs for part in run.singles]),
        *(_over_domains(rows, lowest) if accuracy else ()),
        *_images(rows),
        *_marked(rows),
        *_differences(rows, headline),
        *_other_images(rows),
        *_baselines(rows),
        *(
            f"{named(row)}, chosen on validation images: {grouping.tuned_values(row.runs[0])}"
            for row in rows
            if row.tuned
        ),
        *_pairings(rows),
        *_lacking(rows),
        *_facts(rows),
        *_personal(rows),
    ]


def _rounds(singles: Sequence[Run]) -> list[str]:
    """Return that fewer rounds than usual are averaged, and that models of other runs were scored again."""
    notes = []
    rounds = {run.results.averaged_rounds for run in singles} - {LAST_ROUNDS}
    if rounds:
        notes.append(f"runs with fewer scored rounds than five: {', '.join(map(str, sorted(rounds)))} are averaged")
    again = [run for run in singles if run.scored_again]
    if again:
        what = "all runs" if len(again) == len(singles) else f"{len(again)} of the runs"
        kept = {run.config["keep"] != LAST for run in again}
        after = " or ".join(["their last round"] * (False in kept) + ["the round that they kept"] * (True in kept))
        notes.append(f"{what}: models of other runs, after {after}, scored again (fedshift rescore)")
    return notes


def _over_domains(rows: Sequence[Row], lowest: bool) -> list[str]:
    """Return what STD and WORST are."""
    notes = ["STD: over the domains of a run, then mean and spread over seeds"]
    if any(WORST in row.values and row.values[WORST].n for row in rows):
        least = "highest" if lowest else "lowest"
        same = same_worst(rows)
        where = f", {same} in all" if same else "; named where it is the same in all runs of a row"
        notes.append(f"WORST: the {least} domain of each run{where}")
    return notes


def _marked(rows: Sequence[Row]) -> list[str]:
    """Return what a mark says, where a mean has one."""
    if not any(row.best for row in rows):
        return []
    tasks = dict.fromkeys(row.scored for row in rows)
    each = f", within each task ({', '.join(tasks)})" if len(tasks) > 1 else ""
    return [f"marked: the best mean of a column{each}; not a test of significance"]


def _differences(rows: Sequence[Row], headline: str) -> list[str]:
    """Return what the differences to the baseline and their p are, or why there are none."""
    differing = [row for row in rows if row.difference is not None]
    notes = []
    if differing:
        tests = sum(row.difference is not None and row.difference.p is not None for row in differing)
        of_tests = (
            f"p: two-sided paired t-test over {LEAST_FOR_TEST} or more common seeds, with few of which it has little "
            f"power; p (Holm): corrected for the {plural(tests, 'test')} here"
        )
        none = f"no p, which needs {LEAST_FOR_TEST} common seeds"
        notes.append(f"{headline} - {BASELINE}: seed by seed; {of_tests if tests else none}")
    elif not any(row.refused for row in rows):
        notes.append(f"no difference to {BASELINE}: there is no other method, or no run of it")
    if any(row.tuned and (base := baseline(row, rows)) and base.tuned for row in differing):
        notes.append(
            f"difference of a row named {grouping.TUNED}: to {BASELINE} {grouping.TUNED}, which had the same search"
        )
    return notes


def _personal(rows: Sequence[Row]) -> list[str]:
    """Return what scores of nodes' own models are, and how they spread over the nodes."""
    notes = []
    if len({row.scored for row in rows}) > 1:
        folded = all(run.parts for row in rows for run in row.runs)
        notes.append(
            "scored personal: each node's own model, on "
            + (
                "the domain that no node held; mean over the nodes"
                if folded
                else "its own domain; that is not the global model's task"
            )
        )
    for row in rows:
        spreads = [run.results.spread_over_nodes for run in row.runs if run.results.spread_over_nodes]
        if not spreads:
            continue
        known = {
            name: [value for by_domain in spreads if (value := by_domain.get(name)) is not None] for name in spreads[0]
        }
        each = ", ".join(f"{name} {statistics.fmean(values):.1f}" for name, values in known.items() if values)
        notes.append(
            f"{named(row)}, scored personal on all: each node's own model on every domain, mean over nodes; "
            f"standard deviation over nodes {each}"
        )
    return notes


def _facts(rows: Sequence[Row]) -> list[str]:
    """Return what changes how numbers are read, by run; once where it is the same in all of several runs."""
    singles = [(row, run, part) for row in rows for run in row.runs for part in run.singles]
    facts = [(fact, row, run, part) for row, run, part in singles for fact in part.facts]
    runs_of = Counter(fact for fact, *_ in facts)
    notes = [
        f"all runs: {fact}" if runs_of[fact] == len(singles) > 1
        else f"{named(row)}, seed {part.results.seed}{_left_out(run, part)}: {fact}"
        for fact, row, run, part in facts
    ]  # fmt: skip
    return list(dict.fromkeys(notes))


def of_test_images(rows: Sequence[Row], headline: str, score: str) -> list[str]:
    """Return the standard error of AVG that comes from the test images, which all seeds share.

    A domain of n images has p (1 - p) / n of a variance; where sites know their patients, n is what their intervals
    count with. There is no line without a difference, or where no run recorded its numbers of images.
    """
    if headline != AVG or score in metrics.FIGURES or all(row.difference is None for row in rows):
        return []
    errors = [error for row in rows if (error := _image_error(row)) is not None]
    if not errors:
        return []
    points = " to ".join(dict.fromkeys(f"{error:.1f}" for error in (min(errors), max(errors))))
    return [
        f"all seeds share the test images: a standard error of {points} points of AVG "
        f"({math.sqrt(2) * max(errors):.1f} of a difference, if rows err independently), which neither ± nor p has"
    ]


def _image_error(row: Row) -> float | None:
    """Return the standard error of a row's AVG by its test images, in points; None where their number is unknown."""
    figures, variances = row.runs[0].results.figures, []
    sites = [
        site for part in row.runs[0].singles if part.results.site_figures for site in part.results.site_figures.sites
    ]
    for domain in row.values.keys() - {*OVERALL}:
        of_domain, accuracy = figures and figures.domains.get(domain), row.values[domain].mean
        if not of_domain or not of_domain.images or accuracy is None:
            return None
        shares = [site.independent for site in sites if site.domain == domain]
        variances.append(accuracy * (100 - accuracy) / (of_domain.images * min(shares, default=1.0)))
    return math.sqrt(sum(variances)) / len(variances) if variances else None


def _other_images(rows: Sequence[Row]) -> list[str]:
    """Return notes about rows whose runs have other images: no difference, no best mean."""
    lines = [
        f"{contents.MARK} {named(row)}: mean and spread are over runs of other images: {row.mixed}"
        for row in rows if row.mixed
    ]  # fmt: skip
    refused: dict[str, list[str]] = {}
    for row in rows:
        if row.refused:
            refused.setdefault(row.refused, []).append(named(row))
    lines += [
        f"no difference to {BASELINE} and no p, {contents.OTHER_IMAGES}: {', '.join(labels)}: {reason}"
        for reason, labels in refused.items()
    ]
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group]
        if len(members) > 1 and contents.unlike(run for row in members for run in row.runs):
            where = f" [{group}]" if group else ""
            lines.append(f"no best mean is marked{where}: its rows are of {contents.OTHER_IMAGES}")
    return lines


def _left_out(run: Run, part: Run) -> str:
    """Return which domains a part of a joined run held out."""
    return f" without {', '.join(part.config[HELD_OUT])}" if run.parts else ""


def _baselines(rows: Sequence[Row]) -> list[str]:
    """Return which baseline row each row is compared with, where a group has several untuned ones."""
    compared: dict[str, list[str]] = {}
    for row in rows:
        base = baseline(row, rows)
        several = sum(other.is_baseline and not other.tuned and other.group == row.group for other in rows) > 1
        if several and row.difference is not None and base is not None and not base.tuned:
            compared.setdefault(base.label, []).append(named(row))
    return [f"difference to {base}: {', '.join(names)}" for base, names in compared.items()]


def _test_batches(rows: Sequence[Row]) -> list[str]:
    """Return the sizes of the test batches from which BatchNorm statistics were computed."""
    sizes = {
        run.config[TEST_BATCH]
        for row in rows for run in row.runs
        if run.config[BN_STATISTICS] == BATCH or (BATCH in row.values and BN_SCORE + BATCH in run.results.others)
    }  # fmt: skip
    return [f"batches of {' and '.join(map(str, sorted(sizes)))} test images, which decide bn={BATCH}"] if sizes else []


def _images(rows: Sequence[Row]) -> list[str]:
    """Return the numbers of test images; rows with the same numbers share a line.

    Runs that do not record these numbers are left out.
    """
    rows_by_images: dict[str, list[str]] = {}
    for row in rows:
        for run in row.runs:
            if run.results.figures is not None:
                known = [
                    f"{name} {figure.images_text}" for name, figure in run.results.figures.domains.items() if figure
                ]
                who = rows_by_images.setdefault(", ".join(known), [])
                if named(row) not in who:
                    who.append(named(row))
    if len(rows_by_images) == 1:
        return [f"test images: {next(iter(rows_by_images))}"]
    return [f"test images of {', '.join(who)}: {images}" for images, who in rows_by_images.items()]


def of_paper(rows: Sequence[Row], table: printed_module.Table) -> list[str]:
    """Return the notes about the printed rows: budget, columns, differing values, print errors."""
    paper, printed = table.paper, table.printed
    column_map = table.column_map(rows[0].runs[0].config)
    notes = [f"{table.id}: {paper.paper} ({paper.venue}), {printed.id}, {printed.dataset}: {printed.metric}"]
    notes += [f"the paper: {text}" for text in (printed.statistic, printed.scenario) if text]
    runs = [run for row in rows for run in row.runs]
    keys = {"rounds": "rounds", "epochs": "train.epochs", "nodes": NODES}
    ours = {name: run_facts.values(run.config[key] for run in runs) for name, key in keys.items()}
    budget = printed.budget.model_dump()
    budgets = ", ".join(f"{key} {ours[key]} (paper {budget[key] or 'not stated'})" for key in ours)
    notes.append(f"budget: {budgets}; network {run_facts.network(runs)} (paper {paper.backbone})")
    if printed.model_evaluated:
        notes.append(f"the paper scores {printed.model_evaluated}")
    domains = {column for row in rows for column in row.values} - {*OVERALL}
    theirs = set(column_map.columns.values()) - {*OVERALL}
    for names, who in ((theirs - domains, "in the paper only"), (domains - theirs, "in the runs only")):
        if names and theirs:
            notes.append(f"{who}: {', '.join(sorted(names))}")
    if column_map.unseen:
        notes.append("the paper's columns are unseen domains: only a run's held-out domain compares with one")
    notes += _altered_notes(rows, table)
    without = [row.label for row in rows if row.paper is None]
    if without:
        notes.append(f"the paper prints no row of {', '.join(without)}")
    used = {row.paper.label for row in rows if row.paper is not None}
    others = [row.method for row in printed.rows if row.method not in used]
    if others:
        notes.append(f"printed too: {', '.join(others)}")
    return notes + [f"print error: {check}" for check in table.checks()]


def _shared(pairs: Sequence[tuple[Row, PaperRow]], of: Callable[[PaperRow], Sequence[Altered]]) -> list[Altered]:
    """Return the deviations that all rows share; none for a single row."""
    first = of(pairs[0][1]) if len(pairs) > 1 else ()
    return [value for value in first if all(value in of(paper) for _, paper in pairs)]


def _prints(table: printed_module.Table, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the printed values of a run's method that differ from those of our experiments."""
    standing = table.standing(config)
    printed = {} if standing is None else table.prints_of(str(standing.settings["method.name"]))
    return {key: value for key, value in printed.items() if key in config}


def _altered_notes(rows: Sequence[Row], table: printed_module.Table) -> list[str]:
    """Return the notes about rows with a printed row: which values are not the paper's."""
    pairs = [(row, row.paper) for row in rows if row.paper is not None]
    configs = [row.runs[0].config for row, _ in pairs]
    experiments = dict.fromkeys(
        table.experiment(table.column_map(config), table.standing(config)) for config in configs
    )
    if not pairs:
        return []
    printed = {key: value for config in configs for key, value in _prints(table, config).items()}
    but = ", ".join(f"{grouping.parameter(key)}={grouping.shown(value)}" for key, value in printed.items())
    notes = [
        f"the paper's values are those of conf/experiments/{' and '.join(experiments)}"
        + (f", but for {but}, which it prints" if but else "")
    ]
    shared = _shared(pairs, lambda paper: paper.altered)
    if shared:
        notes.append(f"not the paper's, in every row with a printed one: {listed(shared)}")
    faithful = []
    for row, paper in pairs:
        own = [deviation for deviation in paper.altered if deviation not in shared]
        if own:
            notes.append(f"not the paper's, {named(row)} with {paper.label}: {listed(own)}")
        else:
            faithful.append(f"{named(row)} with {paper.label}")
    if faithful:
        notes.append(f"{'nothing else differs' if shared else 'all as in the paper'}: {', '.join(faithful)}")
    left_open = _shared(pairs, lambda paper: paper.readings)
    if left_open:
        notes.append(f"{OPEN}: in every row with a printed one: {listed(left_open)}")
    for row, paper in pairs:
        own = [deviation for deviation in paper.readings if deviation not in left_open]
        if own:
            notes.append(f"{OPEN}: {named(row)}: {listed(own)}")
    lost = [paper.label for _, paper in pairs if not paper.certain]
    if lost:
        notes.append(f"the label of {', '.join(lost)} is lost in the paper's text, and this is a reading: "
                     f"{table.printed.about}")  # fmt: skip
    return notes


def _lacking(rows: Sequence[Row]) -> list[str]:
    """Return the columns that runs lack; rows that lack the same columns share a line."""
    rows_by_missing: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        for seed, values in row.by_seed.items():
            missing = ", ".join(column for column, value in values.items() if value is None and column not in OVERALL)
            if missing:
                rows_by_missing.setdefault(missing, {}).setdefault(named(row), []).append(seed)
    return [
        f"{'; '.join(_of_seeds(name, seeds) for name, seeds in by_row.items())}: no {missing}; "
        "no average over the rest is taken"
        for missing, by_row in rows_by_missing.items()
    ]


def _of_seeds(name: str, seeds: Sequence[int]) -> str:
    return f"{name}, seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def _pairings(rows: Sequence[Row]) -> list[str]:
    """Return the common seeds of rows whose seeds differ from those of FedAvg.

    Rows with the same seeds share a line.
    """
    paired: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        base = baseline(row, rows)
        if row.difference is None or base is None or set(row.seeds) == set(base.seeds):
            continue
        seeds = (row.seeds, base.seeds, row.difference.seeds)
        own, of_base, common = (", ".join(map(str, some)) or "none" for some in seeds)
        paired.setdefault((own, of_base, common), []).append(named(row))
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} the seeds {own}, "
        f"{BASELINE} {of_base}: paired on {common}"
        for (own, of_base, common), names in paired.items()
    ]
