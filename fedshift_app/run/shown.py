"""A run as its ``results.json`` shows it: the final table with its notes, and the facts on its numbers.

Console, report, model card, compare and board have theirs from here. It imports neither Flower nor torch, as the files
of many runs are read with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedshift_app.run.files import AVERAGED_OVER, untrained_line
from fedshift_core.accuracies import average
from fedshift_core.features import FEATURES, Feature, of_run
from fedshift_core.limits import MOST_SHOWN, few
from fedshift_core.losses import Losses
from fedshift_core.plural import plural
from fedshift_core.registry import imported
from fedshift_core.rounds import INITIAL_MODEL, last_rounds
from fedshift_core.run_settings import RunSettings
from fedshift_core.shown import Cell, Column, History, Shown, Table

LEAST_WIDTH = 6  # of a column of the final table
MOST_BEFORE_SPARE = 60  # characters of the columns of accuracies that leave room for others


def features_of(config: RunSettings) -> list[Feature]:
    """Return the features that a run may have something of, without those of packages that are not here."""
    here = [entry for entry in config.features if entry["name"] in FEATURES]
    return [feature for feature, _ in of_run(here)]


def of_features(history: History) -> Iterator[tuple[Feature, Shown]]:
    """Yield what each feature of a run shows."""
    for feature in features_of(history.config):
        if feature.show:
            yield feature, imported(feature.show)(history)


def facts(history: History) -> list[str]:
    """Return what a run spent and went without, and what else changes how its numbers are read."""
    return [fact for _, shown in of_features(history) for fact in shown.facts] + _losses(history)


def _losses(history: History) -> list[str]:
    results, lines = history.results, []
    if lost := Losses.of(results).text():
        lines.append(f"the run is degraded: {lost}")
    if untrained := results.get("untrained"):
        counts = history.config.evaluate.untrained == "count"
        lines.append(untrained_line(untrained, results["averaged_rounds"], counts=counts))
    return lines


@dataclass(frozen=True)
class Final:
    """The final table of a run.

    Attributes:
        heads: The headings of the columns.
        rows: The cells of each domain, of AVG and of STD; names first.
        marks: What a domain's cell of the first column carries.
        notes: Lines on columns.
        facts: Lines that change how the numbers are read.
        tables: Further tables.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marks: Mapping[str, str]
    notes: tuple[str, ...]
    facts: tuple[str, ...]
    tables: tuple[Table, ...]


def final(history: History) -> Final:
    """Return the final table: top-1 accuracy in percent by domain, and what features show of the run."""
    results = history.results
    columns, notes = _accuracies(results)
    views = [shown for _, shown in of_features(history)]
    for view in views:
        columns |= view.columns
    for view in views:
        if sum(max(len(name), LEAST_WIDTH) + 2 for name in columns) <= MOST_BEFORE_SPARE:
            columns |= view.spare
    rows = [(name, *(domains[name] for domains, _, _ in columns.values())) for name in results["domains"]]
    rows += [("AVG", *(avg for _, avg, _ in columns.values())), ("STD", *(std for _, _, std in columns.values()))]
    losses = Losses.of(results)
    return Final(
        heads=tuple(columns),
        rows=tuple(rows),
        marks={name: losses.mark(name) for name in results["domains"]},
        notes=(*notes, *(note for view in views for note in view.notes)),
        facts=(*(fact for view in views for fact in view.facts), *_losses(history)),
        tables=tuple(table for view in views for table in view.tables),
    )


def _accuracies(results: Mapping[str, Any]) -> tuple[dict[str, Column], list[str]]:
    """Return the columns that every run has, and notes on them."""
    losses, trained, over = Losses.of(results), results.get("rounds") != 0, results.get(AVERAGED_OVER)
    overall = losses.overall(results["domains"])
    first = last_rounds(results["averaged_rounds"], "scored " if over else "") if trained else INITIAL_MODEL
    columns: dict[str, Column] = {first: (results["domains"], overall.avg, "" if overall.std is None else overall.std)}
    notes = [f"{first}: {', '.join(map(str, over))}"] if over else []
    if trained:
        columns["final"] = (results["final"], average(results["final"]), "")
    others = results.get("others", {})
    for name, domains in few(others).items():  # mean over the same rounds as the first column
        columns[name] = (domains, losses.overall(domains).avg, "")
    if (more := len(others) - MOST_SHOWN) > 0:
        notes.append(f"{plural(more, 'more way to score is', 'more ways to score are')} in results.json")
    if over_nodes := results.get("spread_over_nodes"):
        columns["std over nodes"] = (over_nodes, average(over_nodes), "")
    return columns, notes
