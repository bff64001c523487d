"""The card of a saved model: ``README.md`` in the form of Hugging Face's model cards.

YAML between two lines of dashes for machines (tags, library, metrics as a model-index), Markdown below for people.
The license is the owner's to fill in.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedshift.export.forms import Form
from fedshift.export.saved import MOST_LINES, MOST_TEXT, SavedModel, Shown
from fedshift.run.html import site_section as sites
from fedshift.run.reading import Record
from fedshift.run.texts import filled
from fedshift_app.config import registry
from fedshift_app.run import shown
from fedshift_core.accuracies import mean, percent
from fedshift_core.features import task_of
from fedshift_core.limits import MOST_NAME, plain, shortened, some
from fedshift_core.plural import capital
from fedshift_core.shown import History

LIBRARIES: dict[Form, str] = {
    "safetensors": "fedshift",
    "torchscript": "pytorch",
    "exported": "pytorch",
    "onnx": "onnx",
}
#: Further figures of a site, by their names in ``model.json``: their type and name in a model-index.
FIGURES = {"balanced_accuracy": ("balanced_accuracy", "balanced accuracy (%)"), "macro_f1": ("f1", "macro-F1 (%)")}
LICENSE = "# license: the owner of the model fills this in before sharing it\n"


def card(model: SavedModel) -> str:
    """Return the card."""
    method = registry.label(str(model.method.get("name", "")))
    title = plain(f"{model.network} by {method} on {model.origin.dataset}")
    front = yaml.safe_dump(_front(model, title), sort_keys=False, allow_unicode=True)
    page = filled(
        Path(__file__).with_name("card.md.j2"),
        cell,
        model=model,
        method=method,
        title=title,
        percent=percent,
        mean=mean,
        some=some,
        settings=_settings,
        task=task_of(model.task),
    )
    return f"---\n{LICENSE}{front}---\n\n{page}"


def _front(model: SavedModel, title: str) -> dict[str, Any]:
    task = task_of(model.task)
    front: dict[str, Any] = {
        "library_name": LIBRARIES[model.form],
        "pipeline_tag": task.kind,
        "tags": [task.kind, "federated-learning", "domain-shift", str(model.method.get("name", ""))],
    }
    results, figures = [], {"accuracy": (task.metric, f"{task.score} (%)")} | FIGURES
    for site, scores in model.measured.sites.items() if model.measured and model.parts == "global" else ():
        metrics = [
            {"type": kind, "name": name, "value": round(value, 2)}
            for key, (kind, name) in figures.items()
            if (value := getattr(scores, key)) is not None
        ]
        data_set = model.origin.dataset
        about = {"name": f"{data_set} {site}", "type": data_set, "config": site, "split": "test"}
        if scores.accuracy is not None:
            results.append({"task": {"type": task.kind}, "dataset": about, "metrics": metrics})
    return front | ({"model-index": [{"name": title, "results": results}]} if results else {})


def _settings(section: dict[str, Any], name: str = "") -> str:
    params = ", ".join(f"{key}={value}" for key, value in section.items() if key != "name")
    name = name or str(section.get("name", ""))
    return f"{name} ({params})" if params else name


def cell(text: object) -> str:
    """Return a value as a cell of a table or a word of Markdown, without bars, tags and line ends."""
    words = plain(str(text), 4000) if str(text) else ""
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def sections_of(record: Record) -> list[Shown]:
    """Return the sections of the card that are about the run; of an unfinished one what protected it, and limits."""
    parts, history = [], History(record.config, results=record.results or {})
    protection = [line for _, each in shown.of_features(history) for line in each.protection]
    if record.finished and record.results is not None:
        evaluated = f"{capital(record.task.score)} (%) of the {record.results['evaluated']}."
        warning = [f"Warning: {record.contradiction}."] if record.contradiction else []
        facts = [f"{capital(fact)}." for fact in shown.facts(history)]
        parts.append(_section("What the run says of its scores", [*warning, evaluated, *facts]))
        by_site = sites.section(record.sections.get("site_figures"))
        table = by_site.tables[0] if by_site.tables else None
        parts.append(
            _section(
                "Metrics of sites, with intervals",
                [*filter(None, [by_site.missing]), *by_site.notes],
                *([table.heads, *table.rows] if table else ()),
            )
        )
    return [*parts, _section("What protected the nodes", protection), _section("Use and limits", _limits(record))]


def _section(title: str, notes: Sequence[str], *table: Sequence[str]) -> Shown:
    return Shown(
        title=title,
        notes=tuple(_text(note) for note in notes[:MOST_LINES]),
        table=tuple(tuple(map(_text, row)) for row in table[:MOST_LINES]),
    )


def _text(text: str) -> str:
    return shortened(plain(text, MOST_TEXT), MOST_TEXT)


def _limits(record: Record) -> list[str]:
    known = [plain(domain, MOST_NAME) for domain in record.config.dataset.domains]
    return [
        f"It is for images like those of {', '.join(known)}, prepared as above. Each {record.task.piece} gets one of "
        "the classes above, also one of none of them.",
        "Its scores are of test images of these sites; images of other sites, devices or years may be recognised "
        "worse. `fedshift evaluate` scores it on images of yours.",
        "It is the outcome of research software, and no medical device.",
    ]
