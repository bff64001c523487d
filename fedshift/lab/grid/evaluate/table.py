"""The scores of evaluated models side by side: one table, one JSON object, one CSV file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.lab.grid.evaluate.models import Model
from fedshift.run import reading
from fedshift.run.columns import columns
from fedshift_app.config import registry
from fedshift_app.features.figures.show import test_images
from fedshift_core.accuracies import average, percent, worst
from fedshift_core.cells import csv_text
from fedshift_core.features import task_of
from fedshift_core.limits import few, plain

if TYPE_CHECKING:
    import pandas as pd

Scored = Mapping[str, Any]
HEAD = ("model", "method", "domain", "trained_on", "accuracy", "images")


@dataclass(frozen=True)
class Evaluation:
    """Evaluated models side by side.

    Attributes:
        folder: The folder with ``evaluate.json``, ``evaluate.csv`` and a run folder for each model.
        models: The models with their scores, as in ``evaluate.json``.
    """

    folder: Path
    models: tuple[Scored, ...]

    def __repr__(self) -> str:
        """Return the table, as an interactive session shows it."""
        return self.text()

    def text(self) -> str:
        """Return the table that `fedshift evaluate` prints."""
        return table(self.models).strip("\n")

    def frame(self) -> "pd.DataFrame":
        """Return a data frame with a row for each model and domain."""
        from fedshift.run import frames

        return frames.frame(dict(zip(HEAD, row, strict=True)) for row in rows_of(self.models))


def read(model: Model, folder: Path) -> Scored:
    """Return the entry of a model in ``evaluate.json``, from the run that scored it."""
    record, about = reading.read(folder, "evaluate"), model.about
    results = record.results
    assert results is not None  # the run is finished
    final, least = results["final"], worst(results["final"])
    drawn = record.config.shift.label_mix == "own"
    domains = {
        name: {
            "accuracy": value,
            "images": test_images(record.nodes, name, drawn=drawn),
            "trained_on": name in model.trained_on,
        }
        for name, value in final.items()
    }
    return {
        "model": model.label,
        "path": str(model.path),
        "sha256": about.sha256,
        "method": about.method.get("name"),
        "network": about.network,
        "parts": about.parts,
        "run_folder": str(folder),
        "engine": results["engine"],
        "task": record.config.task,
        "dataset": results["dataset"],
        "nodes": len(results["nodes"]),
        "domains": domains,
        "avg": average(final),
        "worst": final[least] if least else None,
        "worst_domain": least,
        "scored_with": results["scored_with"],
        "others": results.get("others", {}),
    }


def table(models: Sequence[Scored]) -> str:
    """Return the table: a row for each model, a column for each domain, and the number of test images."""
    domains = list(dict.fromkeys(name for each in models for name in each["domains"]))
    rows = [("model", "method", *map(plain, domains), "AVG", "WORST")]
    for each in models:
        of = each["domains"]
        new = {name for name in of if not of[name]["trained_on"]}
        accuracy = {name: domain["accuracy"] for name, domain in of.items()}
        rows.append((plain(each["model"]), registry.label(each["method"] or ""), *_cells(accuracy, domains, new)))
        rows += [(f"  {name}", "", *_cells(other, domains)) for name, other in few(each["others"]).items()]
    counts = {tuple(each["domains"].get(name, {}).get("images") for name in domains) for each in models}
    if len(counts) == 1:
        rows.append(("test images", "", *("" if number is None else str(number) for number in counts.pop()), "", ""))
    notes = [" or ".join(dict.fromkeys(task_of(each["task"]).score for each in models)) + " (%)"]
    if not all(domain["trained_on"] for each in models for domain in each["domains"].values()):
        notes.append("*: no node of the model's training held this domain")
    return "\n".join(["", *columns(rows, numbers=True, ruled=True, indent=""), "", *notes])


def _cells(accuracy: Mapping[str, float | None], domains: Sequence[str], new: set[str] | None = None) -> list[str]:
    """Return the cells of domains, a star next to those that are new to the model, their average and the worst."""
    cells = [percent(accuracy[name]) + "*" * (name in (new or ())) if name in accuracy else "" for name in domains]
    least = worst(accuracy)
    return [*cells, percent(average(accuracy)), percent(accuracy[least]) if least else ""]


def rows_of(models: Sequence[Scored]) -> list[tuple[Any, ...]]:
    """Return a row for each model and domain, as ``HEAD`` names its cells."""
    return [
        (each["model"], each["method"], name, domain["trained_on"], domain["accuracy"], domain["images"])
        for each in models
        for name, domain in each["domains"].items()
    ]


def as_csv(models: Sequence[Scored]) -> str:
    """Return a line for each model and domain."""
    rows = [HEAD, *rows_of(models)]
    return csv_text([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows)


def as_json(models: Sequence[Scored]) -> str:
    """Return all scores as one JSON object."""
    return json.dumps({"models": models}, indent=2, ensure_ascii=False)
