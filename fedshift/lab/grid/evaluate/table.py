"""The scores of evaluated models side by side: one table, one JSON object, one CSV file."""

import json
from collections.abc import Sequence
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
from fedshift_core.limits import few, plain

if TYPE_CHECKING:
    import pandas as pd

HEAD = ("model", "method", "domain", "trained_on", "accuracy", "images")


@dataclass(frozen=True)
class Evaluation:
    """Evaluated models side by side.

    Attributes:
        folder: The folder with ``evaluate.json``, ``evaluate.csv`` and a run folder for each model.
        scored: The models with their scores.
    """

    folder: Path
    scored: "tuple[Scored, ...]"

    def __repr__(self) -> str:
        """Return the table, as an interactive session shows it."""
        return self.text()

    def text(self) -> str:
        """Return the table that `fedshift evaluate` prints."""
        return table(self.scored).strip("\n")

    def frame(self) -> "pd.DataFrame":
        """Return a data frame with a row for each model and domain.

        Raises:
            ConfigError: If pandas is not installed.
        """
        from fedshift.run import frames

        head, *rows = rows_of(self.scored)
        return frames.frame(dict(zip(head, row, strict=True)) for row in rows)


@dataclass(frozen=True)
class Scored:
    """An evaluated model.

    Attributes:
        model: The model.
        folder: The folder of the run that scored it.
        results: Its ``results.json``.
        images: Test images by domain; None where unknown.
    """

    model: Model
    folder: Path
    results: dict[str, Any]
    images: dict[str, int | None]

    @property
    def accuracy(self) -> dict[str, float | None]:
        """Top-1 accuracy in percent by domain; None where no node could tell."""
        known: dict[str, float | None] = self.results["final"]
        return known

    @property
    def method(self) -> str:
        """The method that trained the model, as people know it."""
        return registry.label(str(self.model.about.method.get("name", "")))


def read(model: Model, folder: Path) -> Scored:
    """Read what a run made of a model."""
    record = reading.read(folder, "evaluate")
    assert record.results is not None  # the run is finished
    drawn = record.config.shift.label_mix == "own"
    images = {name: test_images(record.nodes, name, drawn=drawn) for name in record.results["final"]}
    return Scored(model, folder, record.results, images)


def table(scored: Sequence[Scored]) -> str:
    """Return the table: a row for each model, a column for each domain, and the number of test images."""
    domains = list(dict.fromkeys(name for each in scored for name in each.accuracy))
    rows = [("model", "method", *(plain(name) for name in domains), "AVG", "WORST")]
    for each in scored:
        rows.append((plain(each.model.label), each.method, *_cells(each, each.accuracy, domains, mark=True)))
        for name, accuracy in few(each.results.get("others", {})).items():
            rows.append((f"  {name}", "", *_cells(each, accuracy, domains)))
    counts = {tuple(each.images.get(name) for name in domains) for each in scored}
    if len(counts) == 1:
        known = next(iter(counts))
        rows.append(("test images", "", *("" if number is None else str(number) for number in known), "", ""))
    notes = ["top-1 accuracy (%)"]
    if any(name not in each.model.trained_on for each in scored for name in each.accuracy):
        notes.append("*: no node of the model's training held this domain")
    lines = columns(rows, numbers=True, ruled=True, indent="")
    return "\n".join(["", *lines, "", *notes])


def _cells(each: Scored, accuracy: dict[str, float | None], domains: Sequence[str], *, mark: bool = False) -> list[str]:
    cells = []
    for name in domains:
        star = "*" if mark and name in accuracy and name not in each.model.trained_on else ""
        cells.append(f"{percent(accuracy[name])}{star}" if name in accuracy else "")
    least = worst(accuracy)
    return [*cells, percent(average(accuracy)), percent(accuracy[least]) if least else ""]


def as_object(scored: Sequence[Scored]) -> dict[str, Any]:
    """Return all scores as one JSON object."""
    models = []
    for each in scored:
        about, results, least = each.model.about, each.results, worst(each.accuracy)
        domains = {
            name: {"accuracy": value, "images": each.images[name], "trained_on": name in each.model.trained_on}
            for name, value in each.accuracy.items()
        }
        models.append({
            "model": each.model.label, "path": str(each.model.path), "sha256": about.sha256,
            "method": about.method.get("name"), "network": about.network, "parts": about.parts,
            "run_folder": str(each.folder), "engine": results["engine"], "dataset": results["dataset"],
            "nodes": len(results["nodes"]), "domains": domains, "avg": average(each.accuracy),
            "worst": each.accuracy[least] if least else None, "worst_domain": least,
            "scored_with": results["scored_with"], "others": results.get("others", {}),
        })  # fmt: skip
    return {"models": models}


def rows_of(scored: Sequence[Scored]) -> list[tuple[Any, ...]]:
    """Return a row for each model and domain, below a head."""
    rows: list[tuple[Any, ...]] = [HEAD]
    for content in as_object(scored)["models"]:
        for name, domain in content["domains"].items():
            own = domain["trained_on"], domain["accuracy"], domain["images"]
            rows.append((content["model"], content["method"], name, *own))
    return rows


def as_csv(scored: Sequence[Scored]) -> str:
    """Return a line for each model and domain."""
    return csv_text([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows_of(scored))


def as_json(scored: Sequence[Scored]) -> str:
    """Return the JSON object as text."""
    return json.dumps(as_object(scored), indent=2, ensure_ascii=False)
