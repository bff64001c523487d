"""The numbers of a comparison as one long frame: one row per run, round, domain and measure."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.lab.tables.compare.rows import Row
from fedshift.lab.tables.compare.run_facts import network
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.metrics import FIGURES, MEASURES, is_mean
from fedshift.lab.tables.results.settings import NODES
from fedshift_core.accuracies import OVERALL
from fedshift_core.cells import harmless

if TYPE_CHECKING:
    import pandas as pd

    from fedshift.lab.tables.compare.table import Numbers

_WHO = ("run", "row", "method", "group", "scored", "seed")
HEAD = (
    *_WHO,
    *("dataset", "network", "nodes", "domain", "measure", "value", "images", "round", "averaged rounds"),
)
CURVES_HEAD = (*_WHO, "round", "AVG")


def long(numbers: "Numbers") -> "pd.DataFrame":
    """Return one row per run and domain; of scores that are of no domain one per run and measure. Unknown is NaN."""
    import pandas as pd

    of_domains = numbers.score not in MEASURES
    lines = [
        _line(row, row.scored_by(seed, column), numbers.score, column, value)
        for row in numbers.rows
        for seed, values in row.by_seed.items()
        for column, value in values.items()
        if not (of_domains and column in OVERALL)
    ]
    return pd.DataFrame(lines, columns=list(HEAD)).astype({"images": "Int64"})


def csv(frame: "pd.DataFrame") -> str:
    """Return a frame as the text of a CSV file; texts that a spreadsheet takes for a formula get an apostrophe."""
    text: str = frame.rename(columns=harmless).map(harmless).to_csv(index=False)
    return text


def curves(numbers: "Numbers") -> "pd.DataFrame":
    """Return one row per run and round scored on all test images: the mean accuracy over its domains, in percent."""
    import pandas as pd

    lines = [
        (*_who(row, run), number, average)
        for row in numbers.rows
        for run in row.runs
        for number, average in run.curve.items()
    ]
    return pd.DataFrame(lines, columns=list(CURVES_HEAD))


def seeds(numbers: "Numbers") -> "pd.DataFrame":
    """Return one row per row of the table, seed and column."""
    import pandas as pd

    lines = [
        (row.label, row.method, row.group, row.scored, seed, column, values.get(column))
        for row in numbers.rows
        for seed, values in row.by_seed.items()
        for column in numbers.columns
    ]
    return pd.DataFrame(lines, columns=[*_WHO[1:], "column", "value"])


def _line(row: Row, run: Run, score: str, column: str, value: float | None) -> tuple[Any, ...]:
    of_domains = score not in MEASURES
    figures = run.results.figures
    of_domain = figures.domains.get(column) if figures is not None and of_domains else None
    domain, measure = (column, FIGURES.get(score, "accuracy")) if of_domains else (None, column)
    images = None if of_domain is None else of_domain.images
    what = (run.results.dataset, network([run]), run.config[NODES], domain, measure, value, images)
    return (*_who(row, run), *what, *_rounds(run, score))


def _who(row: Row, run: Run) -> tuple[Any, ...]:
    here = Path.cwd()
    place = (run.place.relative_to(here) if run.place.is_relative_to(here) else run.place).as_posix()
    return place, row.label, row.method, row.group, row.scored, run.results.seed


def _rounds(run: Run, score: str) -> tuple[int, int]:
    """Return the last round behind a score, and the number of rounds it is averaged over."""
    results = run.results
    if score == "best":
        return results.best_test.round, 1
    if score == "validation" and results.best_validation is not None:
        return results.best_validation.round, 1
    if score in FIGURES and results.figures is not None:
        return results.figures.round, 1
    over = run.averaged_in(score) if is_mean(score) else ()
    return over[-1] if over else run.last_round, run.averaged(score) if is_mean(score) else 1
