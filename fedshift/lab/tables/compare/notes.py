"""The notes below a comparison: what a reader must know about its numbers."""

import math
from collections.abc import Callable, Iterable, Sequence

from fedshift.lab.tables.compare import leave_one_out, run_facts
from fedshift.lab.tables.compare.rows import PaperRow, Row, baseline, runs_of, same_worst
from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import Altered
from fedshift.lab.tables.results import metrics
from fedshift.lab.tables.results.differences import MARK, OTHER_IMAGES, assigned, unlike
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.row_names import TUNED
from fedshift.lab.tables.results.settings import BASELINE, BN_ORDER, LAST, NODES
from fedshift.lab.tables.results.statistics import LEAST_FOR_TEST
from fedshift_app.config import registry
from fedshift_app.features.figures.show import Of
from fedshift_core.accuracies import AVG, OVERALL, WORST, mean
from fedshift_core.limits import some
from fedshift_core.plural import plural
from fedshift_core.rounds import span
from fedshift_core.wire.names import OWN, RETAKEN

#: First words of the notes about values that the paper leaves open.
OPEN = "where the paper is silent or unclear (our reading in brackets)"
_NAMED = 2  # runs of a value


def of_rows(rows: Sequence[Row], headline: str, score: str) -> list[str]:
    """Return the notes about our rows: averaging, rows that do not compare, missing scores.

    Args:
        rows: All rows.
        headline: The column whose difference is shown.
        score: The score.
    """
    return [
        "mean ± sample standard deviation (ddof=1) over n seeds; one seed has no spread",
        *_orders(rows),
        *_rounds(rows, score),
        *([] if score in metrics.MEASURES else _over_domains(rows, lowest=score in metrics.LOWEST_IS_BEST)),
        *_images(rows),
        *_marked(rows),
        *_differences(rows, headline),
        *_other_images(rows),
        *(
            f"{row.name}, chosen on validation images: "
            + ", ".join(
                f"{assigned({key: row.runs[0].config.get(key)})} ({value})" for key, value in row.runs[0].tuned.items()
            )
            for row in rows
            if row.tuned
        ),
        *_lacking(rows),
        *_facts(rows),
        *_personal(rows),
        *filter(None, map(registry.approximation_line, dict.fromkeys(row.method for row in rows))),
        *of_test_images(rows, headline, score),
    ]


def of_groups(keys: Sequence[str] | dict[str, list[object]]) -> list[str]:
    """Return that rows of different groups do not compare, and what they differ in; empty if there is one group."""
    if not keys:
        return []
    one = "; --unseen makes one row of them" if leave_one_out.foldable(keys) else ""
    return [f"rows of different groups do not compare; they differ in {', '.join(keys)}{one}"]


def _by_value(rows: Iterable[Row], value_of: Callable[[Row], str]) -> dict[str, list[str]]:
    """Return the rows by the text that a function gives of each; rows with an empty text are left out."""
    return grouped((text, row.name) for row in rows if (text := value_of(row)))


def _rounds(rows: Sequence[Row], score: str) -> list[str]:
    """Return that other rounds than the last five are averaged, and that models of other runs were scored again."""
    singles = runs_of(rows)
    notes = []
    if again := [run for run in singles if run.scored_again]:
        what = "all runs" if len(again) == len(singles) else f"{len(again)} of the runs"
        kept = {"their last round" if run.config["keep"] == LAST else "the round that they kept" for run in again}
        after = " or ".join(sorted(kept, reverse=True))
        notes.append(f"{what}: models of other runs, after {after}, scored again (fedshift rescore)")
    if metrics.is_mean(score):

        def over(row: Row) -> str:
            each = {run.averaged_in(score) for run in row.runs}
            return " or ".join(sorted(span(rounds) if rounds else "the last ones" for rounds in each))

        if len(by_rounds := _by_value(rows, over)) > 1:  # otherwise the title has them
            texts = sorted(f"{rounds} ({'; '.join(names)})" for rounds, names in by_rounds.items())
            notes.append(f"averaged rounds: {', '.join(texts)}")
    return notes


def _over_domains(rows: Sequence[Row], *, lowest: bool) -> list[str]:
    notes = ["STD: over the domains of a run, then mean and spread over seeds"]
    if any(WORST in row.values and row.values[WORST].n for row in rows):
        same = same_worst(rows)
        where = f", {same} in all" if same else "; named where it is the same in all runs of a row"
        notes.append(f"WORST: the {'highest' if lowest else 'lowest'} domain of each run{where}")
    return notes


def _marked(rows: Sequence[Row]) -> list[str]:
    if not any(row.best for row in rows):
        return []
    tasks = dict.fromkeys(row.scored for row in rows)
    each = f", within each task ({', '.join(tasks)})" if len(tasks) > 1 else ""
    return [f"marked: the best mean of a column{each}; not a test of significance"]


def _differences(rows: Sequence[Row], headline: str) -> list[str]:
    """Return what the differences to the baseline and their p are, or why there are none; and on which seeds."""
    differing = [row for row in rows if row.difference is not None]
    if not differing:
        refused = any(row.refused for row in rows)
        return [] if refused else [f"no difference to {BASELINE}: there is no other method, or no run of it"]
    tests = sum(row.difference is not None and row.difference.p is not None for row in differing)
    of_tests = (
        f"p: two-sided paired t-test over {LEAST_FOR_TEST} or more common seeds, with few of which it has little "
        f"power; p (Holm): corrected for the {plural(tests, 'test')} here"
    )
    no_tests = f"no p, which needs {LEAST_FOR_TEST} common seeds"
    notes = [f"{headline} - {BASELINE}: seed by seed; {of_tests if tests else no_tests}"]
    if any(row.tuned and (base := baseline(row, rows)) and base.tuned for row in differing):
        notes.append(f"difference of a row named {TUNED}: to {BASELINE} {TUNED}, which had the same search")

    def which(row: Row) -> str:
        base = baseline(row, rows)
        several = sum(other.is_baseline and not other.tuned and other.group == row.group for other in rows) > 1
        return base.label if several and base is not None and not base.tuned else ""

    def seeds(row: Row) -> str:
        base = baseline(row, rows)
        if base is None or row.difference is None or set(row.seeds) == set(base.seeds):
            return ""
        own, of_base, common = (
            ", ".join(map(str, each)) or "none" for each in (row.seeds, base.seeds, row.difference.seeds)
        )
        return f"seeds {own}, {BASELINE} {of_base}: paired on {common}"

    notes += [f"difference to {base}: {', '.join(names)}" for base, names in _by_value(differing, which).items()]
    return notes + [f"{', '.join(names)}: {text}" for text, names in _by_value(differing, seeds).items()]


def _personal(rows: Sequence[Row]) -> list[str]:
    """Return what scores of nodes' own models are, and how they spread over the nodes."""
    notes = []
    if len({row.scored for row in rows}) > 1:
        own = "its own domain; that is not the global model's task"
        held_out = "the domain that no node held; mean over the nodes"
        where = held_out if all(row.runs[0].only for row in rows) else own
        notes.append(f"scored personal: each node's own model, on {where}")
    for row in rows:
        spreads = [run.results.spread_over_nodes for run in row.runs if run.results.spread_over_nodes]
        names = dict.fromkeys(name for by_domain in spreads for name in by_domain)
        means = {name: mean(by_domain.get(name) for by_domain in spreads) for name in names}
        each = ", ".join(f"{name} {value:.1f}" for name, value in means.items() if value is not None)
        if spreads:
            notes.append(
                f"{row.name}, scored personal on all: each node's own model on every domain, mean over nodes; "
                f"standard deviation over nodes {each}"
            )
    return notes


def _facts(rows: Sequence[Row]) -> list[str]:
    """Return what changes how numbers are read, by run; once where it is the same in all of several runs."""
    number = len(runs_of(rows))
    having = grouped(
        (fact, f"{row.name}, seed {run.results.seed}" + (f" without {', '.join(run.only)}" if run.only else ""))
        for row in rows
        for run in row.runs
        for fact in run.facts
    )
    return [
        f"{name}: {fact}"
        for fact, who in having.items()
        for name in (["all runs"] if len(who) == number > 1 else dict.fromkeys(who))
    ]


def _figure(row: Row, domain: str) -> Of | None:
    """Return the numbers of test images of a domain behind a row's first seed; None where no run has them."""
    figures = row.scored_by(row.seeds[0], domain).results.figures
    return None if figures is None else figures.domains.get(domain)


def _domains(row: Row) -> list[str]:
    return list(dict.fromkeys(domain for run in row.runs for domain in run.only or run.results.domains))


def of_test_images(rows: Sequence[Row], headline: str, score: str) -> list[str]:
    """Return the standard error of AVG that comes from the test images, which all seeds share.

    It is that of independent images: sqrt(sum of p(1 - p)/n over the domains) / D, with a row's mean p of each domain,
    and n its images, of patients with several fewer (``independent`` of sites).
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
    variances = []
    for domain in _domains(row):
        run, figure, accuracy = row.scored_by(row.seeds[0], domain), _figure(row, domain), row.values[domain].mean
        if not figure or not figure.images or accuracy is None:
            return None
        sites = run.results.site_figures.sites if run.results.site_figures else ()
        shares = [site.independent for site in sites if site.domain == domain]
        variances.append(accuracy * (100 - accuracy) / (figure.images * min(shares, default=1.0)))
    return math.sqrt(sum(variances)) / len(variances) if variances else None


def _other_images(rows: Sequence[Row]) -> list[str]:
    """Return notes about rows whose runs have other images: no difference, no best mean."""
    lines = [
        f"{MARK} {row.name}: mean and spread are over runs of other images: {row.mixed}" for row in rows if row.mixed
    ]
    lines += [
        f"no difference to {BASELINE} and no p, {OTHER_IMAGES}: {', '.join(names)}: {reason}"
        for reason, names in _by_value(rows, lambda row: row.refused).items()
    ]
    for group, members in grouped((row.group, row) for row in rows).items():
        if len(members) > 1 and unlike(runs_of(members)):
            where = f" [{group}]" if group else ""
            lines.append(f"no best mean is marked{where}: its rows are of {OTHER_IMAGES}")
    return lines


def _orders(rows: Sequence[Row]) -> list[str]:
    """Return in which orders of images runs took own and re-estimated BatchNorm statistics, if they differ."""
    orders = grouped(
        (run.resolved.evaluate.bn_order, run.name)
        for run in runs_of(row for row in rows if {OWN, RETAKEN} & row.values.keys())
        if {OWN, RETAKEN} & {*run.resolved.evaluate.bn}
    )
    texts = " and ".join(f"{order} ({some(names, _NAMED)})" for order, names in sorted(orders.items()))
    return [f"own and re-estimated statistics do not compare: {BN_ORDER} is {texts}"] if len(orders) > 1 else []


def _images(rows: Sequence[Row]) -> list[str]:
    """Return the numbers of test images; rows with the same numbers share a line."""

    def known(row: Row) -> str:
        figures = {domain: _figure(row, domain) for domain in _domains(row)}
        return ", ".join(f"{name} {figure.images_text}" for name, figure in figures.items() if figure)

    by_images = _by_value(rows, known)
    if len(by_images) == 1:
        return [f"test images: {next(iter(by_images))}"]
    return [f"test images of {', '.join(names)}: {images}" for images, names in by_images.items()]


def _lacking(rows: Sequence[Row]) -> list[str]:
    """Return the columns that runs lack; rows that lack the same columns share a line."""
    missing = grouped(
        ((columns, row.name), str(seed))
        for row in rows
        for seed, values in row.by_seed.items()
        if (columns := ", ".join(name for name, value in values.items() if value is None and name not in OVERALL))
    )
    having = grouped(
        (columns, f"{name}, seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)}")
        for (columns, name), seeds in missing.items()
    )
    return [f"{'; '.join(who)}: no {columns}; no average over the rest is taken" for columns, who in having.items()]


def of_paper(rows: Sequence[Row], table: printed_module.Table) -> list[str]:
    """Return the notes about the printed rows: budget, columns, differing values, print errors."""
    paper, printed = table.paper, table.printed
    runs = runs_of(rows)
    column_map = table.column_map(runs[0].config)
    notes = [f"{table.id}: {paper.paper} ({paper.venue}), {printed.id}, {printed.dataset}: {printed.metric}"]
    notes += [f"the paper: {text}" for text in (printed.statistic, printed.scenario) if text]
    budget = printed.budget.model_dump()
    budgets = ", ".join(
        f"{name} {run_facts.values(run.config[key] for run in runs)} (paper {budget[name] or 'not stated'})"
        for name, key in {"rounds": "rounds", "epochs": "train.epochs", "nodes": NODES}.items()
    )
    notes.append(f"budget: {budgets}; network {run_facts.network(runs)} (paper {paper.backbone})")
    if printed.model_evaluated:
        notes.append(f"the paper scores {printed.model_evaluated}")
    domains = {column for row in rows for column in _domains(row)}
    theirs = set(column_map.columns.values()) - {*OVERALL}
    for names, who in ((theirs - domains, "in the paper only"), (domains - theirs, "in the runs only")):
        if names and theirs:
            notes.append(f"{who}: {', '.join(sorted(names))}")
    if column_map.unseen:
        notes.append("the paper's columns are unseen domains: only a run's held-out domain compares with one")
    notes += _altered(rows, table)
    return notes + [f"print error: {check}" for check in table.checks()]


def _altered(rows: Sequence[Row], table: printed_module.Table) -> list[str]:
    """Return which values of rows with a printed row are not the paper's, each with the rows that have it."""
    pairs = [(row, row.paper) for row in rows if row.paper is not None]
    if not pairs:
        return []
    experiments = dict.fromkeys(paper.experiment for _, paper in pairs)
    prints = {key: value for row, paper in pairs for key, value in paper.prints.items() if key in row.runs[0].config}
    but = f", but for {assigned(prints)}, which it prints" if prints else ""
    notes = [f"the paper's values are those of conf/experiments/{' and '.join(experiments)}{but}"]
    notes += _with_rows("not the paper's", pairs, lambda paper: paper.altered)
    if same := [f"{row.name} with {paper.label}" for row, paper in pairs if not paper.altered]:
        notes.append(f"all as in the paper: {', '.join(same)}")
    notes += _with_rows(OPEN, pairs, lambda paper: paper.readings)
    if lost := [paper.label for _, paper in pairs if not paper.certain]:
        notes.append(
            f"the label of {', '.join(lost)} is lost in the paper's text, and this is a reading: {table.printed.about}"
        )
    return notes


def _with_rows(
    what: str, pairs: Sequence[tuple[Row, PaperRow]], deviations_of: Callable[[PaperRow], Sequence[Altered]]
) -> list[str]:
    """Return a line for each set of rows that share deviations; those of all rows come first."""
    having = grouped(
        (deviation.text, f"{row.name} with {paper.label}") for row, paper in pairs for deviation in deviations_of(paper)
    )
    every = "every row with a printed one"
    by_rows = grouped(
        (every if len(names) == len(pairs) > 1 else ", ".join(names), text) for text, names in having.items()
    )
    return [
        f"{what}, {who}: {', '.join(texts)}"
        for who, texts in sorted(by_rows.items(), key=lambda item: item[0] != every)
    ]
