"""The card of a saved model: ``README.md`` in the form of Hugging Face's model cards.

YAML between two lines of dashes for machines (tags, library, metrics as a model-index), Markdown below for people.
The license is the owner's to fill in.
"""

from pathlib import Path
from typing import Any

import yaml

from fedshift.export.forms import Form
from fedshift.export.saved import SavedModel
from fedshift.run.texts import filled
from fedshift_app.config import registry
from fedshift_core.accuracies import mean, percent
from fedshift_core.limits import plain, some

LIBRARIES: dict[Form, str] = {
    "safetensors": "fedshift", "torchscript": "pytorch", "exported": "pytorch", "onnx": "onnx",
}  # fmt: skip
LICENSE = "# license: the owner of the model fills this in before sharing it\n"
#: Figures of a site, by their names in ``model.json``: their type and name in a model-index.
FIGURES = {
    "accuracy": ("accuracy", "top-1 accuracy (%)"),
    "balanced_accuracy": ("balanced_accuracy", "balanced accuracy (%)"),
    "macro_f1": ("f1", "macro-F1 (%)"),
}


def card(model: SavedModel) -> str:
    """Return the card."""
    method = registry.label(str(model.method.get("name", "")))
    title = plain(f"{model.network} by {method} on {model.origin.dataset}")
    front = yaml.safe_dump(_front(model, title), sort_keys=False, allow_unicode=True)
    page = filled(
        Path(__file__).with_name("card.md.j2"), cell, model=model, method=method, title=title, percent=percent,
        mean=mean, some=some, settings=_settings,
    )  # fmt: skip
    return f"---\n{LICENSE}{front}---\n\n{page}"


def _front(model: SavedModel, title: str) -> dict[str, Any]:
    front: dict[str, Any] = {
        "library_name": LIBRARIES[model.form],
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "federated-learning", "domain-shift", str(model.method.get("name", ""))],
    }
    results = []
    for site, scores in model.measured.sites.items() if model.measured and model.parts == "global" else ():
        known = {key: value for key in FIGURES if (value := getattr(scores, key)) is not None}
        about = {"type": model.origin.dataset, "config": site, "split": "test"}
        if "accuracy" in known:
            results.append({
                "task": {"type": "image-classification"},
                "dataset": {"name": f"{model.origin.dataset} {site}"} | about,
                "metrics": [
                    {"type": FIGURES[key][0], "name": FIGURES[key][1], "value": round(value, 2)}
                    for key, value in known.items()
                ],
            })  # fmt: skip
    return front | ({"model-index": [{"name": title, "results": results}]} if results else {})


def _settings(section: dict[str, Any], name: str = "") -> str:
    params = ", ".join(f"{key}={value}" for key, value in section.items() if key != "name")
    name = name or str(section.get("name", ""))
    return f"{name} ({params})" if params else name


def cell(text: object) -> str:
    """Return a value as a cell of a table or a word of Markdown, without bars, tags and line ends."""
    words = plain(str(text), 4000) if str(text) else ""
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
