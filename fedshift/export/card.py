"""The card of a saved model: ``README.md`` in the form of Hugging Face's model cards.

YAML between two lines of dashes for machines (tags, library, metrics as a model-index), Markdown below for people.
The license is the owner's to fill in.
"""

from typing import Any

import yaml

from fedshift.export.forms import Form
from fedshift.export.saved import SavedModel, Shown
from fedshift_app.config import registry
from fedshift_core.accuracies import mean, percent
from fedshift_core.limits import plain, some
from fedshift_core.plural import plural
from fedshift_datasets.base import Exif, Resize

LIBRARIES: dict[Form, str] = {
    "safetensors": "fedshift", "torchscript": "pytorch", "exported": "pytorch", "onnx": "onnx",
}  # fmt: skip
LICENSE = "# license: the owner of the model fills this in before sharing it\n"
MOST_CLASSES = 50  # listed in the card; model.json has all
USE: dict[Form, str] = {
    "safetensors": "    fedshift predict FOLDER_OF_THIS_CARD image.png\n",
    "torchscript": (
        "    import torch\n"
        '    scores = torch.jit.load("model.pt")(images)\n\n'
        "A TorchScript file is a program: load it only if you trust who made it.\n"
    ),
    "exported": (
        "    import torch\n"
        '    scores = torch.export.load("model.pt2").module()(images)\n\n'
        "An exported program is code: load it only if you trust who made it.\n"
    ),
    "onnx": (
        "    import onnxruntime\n"
        '    session = onnxruntime.InferenceSession("model.onnx")\n'
        '    (scores,) = session.run(None, {"images": images})\n'
    ),
}


ORIENTATION: dict[Exif, str] = {
    "ignore": "EXIF orientation is ignored: pixels as the file stores them",
    "apply": "EXIF orientation is applied: images are turned or mirrored as the file says",
}
RESIZE: dict[Resize, str] = {
    "squash": "both sides to that size",
    "crop": "the shorter side to that size, then the middle of the longer one",
    "pad": "the longer side to that size, the rest black",
}
WINDOW = "of more than 8 bits: the full range of the file's bits becomes 0 to 255; DICOM by its own window"


def card(model: SavedModel) -> str:
    """Return the card."""
    front = yaml.safe_dump(_front(model), sort_keys=False, allow_unicode=True)
    parts = [f"---\n{LICENSE}{front}---\n", f"# {_title(model)}\n", _what(model), _use(model), _facts(model)]
    return "\n".join([*parts, _metrics(model), *map(_shown, model.run), _origin(model)])


def _title(model: SavedModel) -> str:
    return plain(f"{model.network} by {_method(model)} on {model.origin.dataset}")


def _method(model: SavedModel) -> str:
    return registry.label(str(model.method.get("name", "")))


def _front(model: SavedModel) -> dict[str, Any]:
    front: dict[str, Any] = {
        "library_name": LIBRARIES[model.form],
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "federated-learning", "domain-shift", str(model.method.get("name", ""))],
    }
    known = model.measured.sites.items() if model.measured and model.parts == "global" else ()
    results = [
        {
            "task": {"type": "image-classification"},
            "dataset": {
                "name": f"{model.origin.dataset} {site}", "type": model.origin.dataset, "config": site, "split": "test",
            },
            "metrics": [
                {"type": kind, "name": f"{name} (%)", "value": round(value, 2)}
                for kind, name, value in (
                    ("accuracy", "top-1 accuracy", scores.accuracy),
                    ("balanced_accuracy", "balanced accuracy", scores.balanced_accuracy),
                    ("f1", "macro-F1", scores.macro_f1),
                )
                if value is not None
            ],
        }
        for site, scores in known
        if scores.accuracy is not None
    ]  # fmt: skip
    if results:
        front["model-index"] = [{"name": _title(model), "results": results}]
    return front


def _what(model: SavedModel) -> str:
    whose = {
        "global": "It is the model that all nodes share.",
        "node": f"It is the model of node {model.node}"
        + (f", site {model.site}" if model.site else "")
        + ", with its personal parts.",
        "shared": "**It is not complete**: it lacks the personal parts, which stay on the nodes. "
        "A node's owner adds them with `fedshift save-node`.",
    }[model.parts]
    text = (
        f"An image classifier with {plural(len(model.classes), 'class', 'classes')}, trained by FedShift's "
        f"federated method `{_method(model)}`: images stayed at their sites. {whose}"
    )
    if model.before:
        text += f" Before a score the run adapts a model, which this one lacks: {model.before}."
    return f"{_cell(text)}\n"


def _use(model: SavedModel) -> str:
    if model.parts == "shared":
        return ""
    text = f"## How to use it\n\n{USE[model.form]}"
    return text if model.form == "safetensors" else f"{text}\n`images`: {model.input}. `scores`: {model.output}.\n"


def _facts(model: SavedModel) -> str:
    rows = {
        "classes, in order": some(model.classes, MOST_CLASSES, what=" (model.json)"),
        **_preprocessing(model),
        "network": f"{model.network}, {plural(model.parameters, 'number')}, BatchNorm {model.batchnorm}",
        "method": _settings(model.method | {"name": _method(model)}),
        **({"modules": "; ".join(map(_settings, model.modules))} if model.modules else {}),
        "file": f"{model.file}, {plural(model.bytes, 'byte')}",
        "SHA-256": model.sha256,
    }
    return f"## What it is\n\n{_table(rows)}"


def _preprocessing(model: SavedModel) -> dict[str, str]:
    """Return the preprocessing of an image, which a user of a program must repeat."""
    low, high = model.window or (0, 0)
    return {
        "1. orientation": ORIENTATION[model.exif],
        "2. values": WINDOW
        if model.window is None
        else f"of more than 8 bits, and of grey DICOM: {low:g} and less become 0, {high:g} and "
        "more 255, linear between, rounded (DICOM: of rescaled values, as Hounsfield units)",
        "3. channels": "RGB, 8 bits each; grey is repeated, an alpha channel dropped, colour profiles are not followed",
        "4. size": f"{model.size} x {model.size} pixels; other shapes: {model.resize} ({RESIZE[model.resize]})",
        "5. interpolation": "bilinear with antialias (Pillow's BILINEAR), where the size differs",
        "6. mean, std": f"of values divided by 255: {list(model.mean)}, {list(model.std)}; inside the model",
    }


def _settings(section: dict[str, Any]) -> str:
    params = ", ".join(f"{key}={value}" for key, value in section.items() if key != "name")
    return f"{section.get('name', '')} ({params})" if params else str(section.get("name", ""))


def _metrics(model: SavedModel) -> str:
    measured = model.measured
    if measured is None:
        return "## Metrics\n\nThe run did not score this model on all test images.\n"
    rows = [
        "| site | top-1 accuracy (%) | balanced accuracy (%) | macro-F1 (%) | test images |",
        "|---|---|---|---|---|",
    ]
    for site, scores in measured.sites.items():
        figures = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1)
        images = "" if scores.images is None else scores.images
        rows.append(f"| {_cell(site)} | {' | '.join(map(percent, figures))} | {images} |")
    if measured.average is not None:
        sites = measured.sites.values()
        means = (mean(s.balanced_accuracy for s in sites), mean(s.macro_f1 for s in sites))
        rows.append(f"| average | {measured.average:.1f} | {' | '.join(map(percent, means))} | |")
    whose = f"Of the {measured.of} after round {measured.server_round}, on the test images of the run."
    if model.parts != "global":
        whose += " They belong to all nodes' models, not only to this one."
    return f"## Metrics\n\n{plain(whose)}\n\n" + "\n".join(rows) + "\n"


def _shown(part: Shown) -> str:
    notes = [f"- {_cell(note)}" for note in part.notes]
    rows = [f"| {' | '.join(map(_cell, row))} |" for row in part.table]
    rows[1:1] = [f"|{'---|' * len(part.table[0])}"] if rows else []
    return "\n".join([f"## {part.title}\n", *notes, *([""] if notes and rows else []), *rows, ""])


def _origin(model: SavedModel) -> str:
    origin = model.origin
    rows = {
        "experiment": origin.experiment,
        "data set": origin.dataset,
        "rounds": f"{origin.server_round} of {origin.rounds}",
        "nodes": str(origin.nodes),
        "training images": "unknown" if origin.images is None else str(origin.images),
        "seed": str(origin.seed),
        "engine": origin.engine,
        "versions": ", ".join(f"{name} {number}" for name, number in origin.versions.items()),
        "commit": origin.commit or "unknown",
    }
    return f"## Where it is from\n\n{_table(rows)}"


def _table(cells: dict[str, str]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in cells.items()]
    return "\n".join(["| | |", "|---|---|", *rows, ""])


def _cell(text: str) -> str:
    """Return a text as a cell of a table, without bars and line ends."""
    return plain(text, 4000).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
