"""A comparison with one line per run and domain, for statistics and figures of one's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedshift.lab.tables.compare.rows import Row
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results.loading import Run, curve
from fedshift.lab.tables.results.metrics import FIGURES, MEASURES
from fedshift.lab.tables.results.settings import NODES
from fedshift_core.accuracies import OVERALL
from fedshift_core.cells import csv_text
from fedshift_core.wire.names import BN_SCORE

HEAD = (
    "run", "row", "method", "group", "scored", "seed", "dataset", "network", "nodes", "domain", "measure", "value",
    "images", "round", "averaged rounds",
)  # fmt: skip
CURVES_HEAD = ("run", "row", "method", "group", "scored", "seed", "round", "AVG")


def runs_csv(numbers: Numbers) -> str:
    """Return one line per run and domain; of scores that are of no domain one per run and measure."""
    return csv_text([HEAD, *([entry[key] for key in HEAD] for entry in entries(numbers))])


def curves_csv(numbers: Numbers) -> str:
    """Return one line per run and round scored on all test images: the mean accuracy over its domains, in percent."""
    lines = [
        (*_who(row, run), number, average)
        for row in numbers.rows
        for run in row.runs
        for number, average in curve(run).items()
    ]
    return csv_text([CURVES_HEAD, *lines])


def entries(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Yield the lines of :func:`runs_csv` as records with the keys :data:`HEAD`; None for what is not known."""
    of_domains = numbers.score not in MEASURES
    measure = FIGURES.get(numbers.score, "accuracy")
    for row in numbers.rows:
        for run in row.runs:
            for column, value in row.by_seed[run.results.seed].items():
                if of_domains and column in OVERALL:
                    continue
                part = _part(run, column)
                who = dict(zip(CURVES_HEAD, _who(row, part), strict=False))
                last, averaged = _rounds(part, numbers.score)
                yield who | {
                    "dataset": part.results.dataset,
                    "network": ", ".join(part.config["model.per_node"]) or str(part.config["model.name"]),
                    "nodes": part.config[NODES],
                    "domain": column if of_domains else None,
                    "measure": measure if of_domains else column,
                    "value": value,
                    "images": _images(part, column) if of_domains else None,
                    "round": last,
                    "averaged rounds": averaged,
                }


def _who(row: Row, run: Run) -> tuple[Any, ...]:
    return _place(run), row.label, row.method, row.group, row.scored, run.results.seed


def _place(run: Run) -> str:
    """Return the run's folder or kept file, relative to the working folder where it is inside."""
    here = Path.cwd()
    return (run.place.relative_to(here) if run.place.is_relative_to(here) else run.place).as_posix()


def _part(run: Run, domain: str) -> Run:
    """Return the run that scored a domain: of joined runs the one that held it out."""
    return next((part for part in run.parts if domain in part.config[HELD_OUT]), run)


def _images(run: Run, domain: str) -> int | None:
    """Return the number of distinct test images of a domain; None where the run did not record it."""
    figures = run.results.figures
    of_domain = figures.domains.get(domain) if figures is not None else None
    return of_domain.images if of_domain is not None else None


def _rounds(run: Run, score: str) -> tuple[int, int]:
    """Return the last round behind a score, and the number of rounds it is averaged over."""
    results = run.results
    last = run.last_round
    if score == "best":
        return results.best_test.round, 1
    if score == "validation" and results.best_validation is not None:
        return results.best_validation.round, 1
    if score in FIGURES and results.figures is not None:
        return results.figures.round, 1
    if score in ("last5", "clients", "bn") or score.startswith(BN_SCORE):
        over = run.averaged_in(score)
        return over[-1] if over else last, run.averaged(score)
    return last, 1
