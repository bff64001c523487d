"""``fedshift predict``: classifies images with a saved model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift.export import Classifier, adapting, images, opening, saved
from fedshift.export.images import Batch, Picture
from fedshift.export.programs import Program
from fedshift.export.saved import SavedModel
from fedshift.run import columns as tables
from fedshift_core.accuracies import percent
from fedshift_core.cells import csv_text
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.features import task_of
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural
from fedshift_core.registry import imported
from fedshift_core.seeding import generator
from fedshift_datasets import catalog
from fedshift_datasets.base import SPLITS
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Listing

if TYPE_CHECKING:
    import pandas as pd

TEST_FOLDERS = ("test", "testing")  # of a site: by default a run does not train on these
BATCH = 64  # the default batch size
MOST_SHOWN_CLASSES = 20  # in a confusion matrix on the terminal

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metrics:
    """The metrics of labelled images.

    Attributes:
        confusion: Images by true (row) and predicted class, (C, C), int64.
    """

    confusion: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Sequence[int] | NDArray[np.int64], chosen: NDArray[np.int64], classes: int) -> "Metrics":
        """Count images by their true and their predicted class, each (N,)."""
        counts = np.bincount(np.array(labels, np.int64) * classes + chosen, minlength=classes**2)
        return cls(counts.reshape(classes, classes))

    @property
    def images(self) -> int:
        """The number of labelled images."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy, 0 to 1."""
        return float(np.trace(self.confusion) / self.images)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images of each class, (C,)."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def recalls(self) -> list[float | None]:
        """The recall of each class; None for a class without images."""
        hits = np.diagonal(self.confusion)
        return [float(hit / n) if n else None for hit, n in zip(hits, self.counts, strict=True)]

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have images, 0 to 1."""
        return float(np.mean([recall for recall in self.recalls if recall is not None]))


@dataclass
class Predicted:
    """The predictions of a model.

    Attributes:
        model: Which model.
        pictures: The images that could be read.
        probabilities: Class probabilities of each image, (N, C).
        broken: A line for each unreadable image.
        notes: Notes for the user, one per line.
        made: What a task makes of scores in place of a class of each image (``Task.predictions``); None: nothing.
    """

    model: SavedModel
    pictures: list[Picture] = field(default_factory=list)
    probabilities: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    made: Any = None

    def __repr__(self) -> str:
        """Return in a line how many images there are and, where they have labels, how many are right."""
        metrics = self.metrics()
        right = f", accuracy {percent(100 * metrics.accuracy)} % of {metrics.images} labelled" if metrics else ""
        unread = f", {len(self.broken)} unreadable" if self.broken else ""
        return f"Predicted({plural(len(self.pictures), 'image')}{right}{unread})"

    @property
    def chosen(self) -> NDArray[np.int64]:
        """The likeliest class of each image, (N,)."""
        return np.asarray(self.probabilities.argmax(axis=1))

    def frame(self) -> "pd.DataFrame":
        """Return a row for each image: file, label, class, its probability, and that of each class."""
        from fedshift.run import frames

        return frames.frame(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        made = self.made or self
        for picture, shares in zip(self.pictures, self.probabilities.tolist(), strict=True):
            yield {"file": str(picture.path)} | made.row(picture, shares)

    def row(self, picture: Picture, shares: Sequence[float]) -> dict[str, Any]:
        """Return what is said of an image, by column."""
        k, classes = int(np.argmax(shares)), self.model.classes
        label = None if picture.label is None else classes[picture.label]
        own = {"label": label, "class": classes[k], "probability": shares[k]}
        return own | {f"p({name})": share for name, share in zip(classes, shares, strict=True)}

    def line(self, row: dict[str, Any]) -> str:
        """Return what a line says of an image after its file."""
        return f"{row['class']}  {row['probability']:.3f}"

    def metrics(self) -> Metrics | None:
        """Return the metrics of the labelled images; None if there are none, or images have other targets."""
        labels = np.array([-1 if picture.label is None else picture.label for picture in self.pictures], np.int64)
        known = labels >= 0
        usable = known.any() and self.made is None
        return Metrics.of(labels[known], self.chosen[known], len(self.model.classes)) if usable else None


def predict(
    model: Path | Classifier,
    given: Sequence[Path],
    *,
    batch: int | None = None,
    adapt: str = "",
    clean: Sequence[Path] = (),
    split: str = "",
    in_order: bool = False,
    folder: Path | None = None,
) -> Predicted:
    """Predict images with a saved model, or with one in memory; see :func:`fedshift.export.predict`.

    Raises:
        FedShiftError: If the model cannot be used, a path does not exist, or no image can be read.
    """
    adapting.check(adapt, clean, in_order=in_order)
    if isinstance(model, Path):
        about, file = saved.read(model)
    elif adapt or split:
        raise ConfigError(f"predict: {'adapt' if adapt else 'split'} needs a saved model, which run.save() makes")
    else:
        about = model.about
    taken, notes = _own_split(about, file.parent, given, split) if split else images.find(given, about.classes)
    prediction, number = Predicted(about, notes=notes), batch or adapting.BATCHES.get(adapt, BATCH)
    if of_task := task_of(about.task).predictions:
        if adapt:
            raise ConfigError(f"--adapt {adapt}: the model in {about.file} does not give each image one class")
        prediction.made = imported(of_task)(about, [picture.path for picture in taken], folder)
    elif folder is not None:
        raise ConfigError(f"--masks: the model in {about.file} gives each image a class, no masks")
    if adapt:
        notes.append(adapting.summary(adapt, number, clean, in_order=in_order))
        held = _clean_batches(about, clean, number, prediction.broken) if clean else None
        run = adapting.program(about, file, adapt, number, held)
    else:
        run = opening.program_of(about, file) if isinstance(model, Path) else model.scores
    _fill(prediction, taken, run, number, adapt, mixed=adapt != "" and not in_order)
    if not split and (note := trained_on(about, given, prediction)):
        notes.append(note)
    return prediction


def _own_split(model: SavedModel, folder: Path, given: Sequence[Path], split: str) -> tuple[list[Picture], list[str]]:
    """Return the images of one split as the run had it, with their labels, and a note.

    Args:
        model: The model, saved as weights: only these have the run's configuration.
        folder: Its folder.
        given: The folder that was the run's data-dir, or folders of sites in it.
        split: ``train`` or ``test``.

    Raises:
        ConfigError: If the model or the folders do not determine the split.
        DataError: If the images are missing.
    """
    wanted = next((known for known in SPLITS if known == split), None)
    if wanted is None:
        raise ConfigError(f"--split: {as_found(split)} is unknown; there are {', '.join(SPLITS)}")
    if not model.configuration:
        raise ConfigError(
            f"--split {split}: a model in the format {model.form} lacks the configuration of the run, which states how "
            "images were divided; save it as safetensors"
        )
    config = opening.configuration_of(model, folder)
    cfg = config.dataset
    if len(config.allocation.pool) > 1:
        raise ConfigError(f"--split {split}: the run divided the images of both splits among its nodes, each its own")
    chosen: list[Picture] = []
    for path in (typed.resolve() for typed in given):
        is_site = path.name in cfg.domains
        source = cfg.source(path.parent if is_site else path)
        for domain in (path.name,) if is_site else cfg.domains:
            listed = corrupt_files.usable(catalog.get(cfg.kind).find(domain, wanted, source), source, cfg.form())
            if not isinstance(listed, Listing):
                raise ConfigError(f"--split {split}: the images of {shown(path)} are not image files")
            chosen += [
                Picture(Path(item.path), int(label)) for item, label in zip(listed.items, listed.labels, strict=True)
            ]
    return chosen, [f"the {split} images of the run's own split"]


def _fill(
    prediction: Predicted, taken: Sequence[Picture], run: Program, number: int, adapt: str, *, mixed: bool
) -> None:
    """Predict images, ``number`` at a time, in a mixed order if ``mixed``; they are noted in that of ``taken``.

    Raises:
        DataError: If none of them can be read.
    """
    model, least = prediction.model, adapting.LEAST if adapt in adapting.OF_BATCHNORM else 1
    parts: list[Floats] = []
    asked = _mixed(taken, "predict-order") if mixed else taken
    for group in images.batches(asked, model.size, model.images(), number, least, prediction.broken):
        scores, made = run(tensor_of(group)), prediction.made
        parts.append(made.shares(scores, group) if made else probabilities(scores, len(group), len(model.classes)))
        prediction.pictures += [picture for picture, _ in group]
    if not parts:
        raise DataError(f"none of {plural(len(taken), 'image')} can be read; the first: {prediction.broken[0]}")
    places = {id(picture): place for place, picture in enumerate(taken)}
    back = np.argsort([places[id(picture)] for picture in prediction.pictures])
    prediction.pictures = [prediction.pictures[place] for place in back]
    prediction.probabilities = np.concatenate(parts)[back]


def trained_on(model: SavedModel, given: Sequence[Path], prediction: Predicted) -> str:
    """Return a warning if the model may have been trained on the labelled images, else an empty text.

    A saved model knows the names of its sites, not their images: a folder with the name of a site probably holds its
    images, including training images. A folder ``test`` of a site counts as its test images.

    Args:
        model: The model.
        given: The files and folders that the user named.
        prediction: The predictions.
    """
    if model.measured is None or prediction.metrics() is None:
        return ""
    named: dict[str, saved.Site] = {}
    for path in (typed.resolve() for typed in given):
        if path.name.casefold() not in TEST_FOLDERS:
            named |= {name: of for name, of in model.measured.sites.items() if name in (path.name, path.parent.name)}
    if not named:
        return ""
    own = ", ".join(f"{shown(name)} {percent(of.accuracy)} %" for name, of in named.items())
    return (
        f"{', '.join(map(shown, named))}: a site of the run, so the model was trained on many of these images, and "
        f"this is not an accuracy on unseen images; on the run's own test images: {own}; only its test images: --split "
        "test, if they are arranged as in the run"
    )


def _clean_batches(model: SavedModel, given: Sequence[Path], number: int, broken: list[str]) -> Iterator[Tensor]:
    """Yield images (B, 3, size, size), 0 to 1, of files and folders, in a mixed order: folders go class by class."""
    taken = _mixed(images.find(given, model.classes)[0], "clean-order")
    for batch in images.batches(taken, model.size, model.images(), number, adapting.LEAST, broken):
        if len(batch) >= adapting.LEAST:
            yield tensor_of(batch)


def _mixed(listed: Sequence[Picture], purpose: str) -> list[Picture]:
    """Return images in a drawn order, the same in each call."""
    return [listed[place] for place in generator(0, purpose).permutation(len(listed))]


def tensor_of(batch: Batch) -> Tensor:
    """Return images (B, 3, size, size), float32, 0 to 1."""
    return as_tensor(np.stack([made.pixels for _, made in batch]))


def as_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """Return images (B, size, size, 3) as a tensor (B, 3, size, size), float32, 0 to 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255.0).contiguous()


def probabilities(scores: Tensor, images: int, classes: int) -> Floats:
    """Return the probabilities (B, C) of images.

    Args:
        scores: (B, C).
        images: B.
        classes: C.

    Raises:
        ConfigError: If the scores are of another shape, or not finite.
    """
    if scores.shape != (images, classes):
        raise ConfigError(
            f"the model gives scores of shape {tuple(scores.shape)} for {plural(images, 'image')}; "
            f"its {plural(classes, 'class needs', 'classes need')} ({images}, {classes})"
        )
    if not torch.isfinite(scores).all():
        raise ConfigError("the model gives scores that are not finite")
    shares: Floats = scores.double().softmax(dim=1).numpy()
    return shares


def text(prediction: Predicted, *, rows: bool) -> str:
    """Return the metrics as text, with a line for each image if ``rows``."""
    made = prediction.made or prediction
    lines = [f"{row['file']}  {made.line(row)}" for row in _shown_rows(prediction) if rows]
    if metrics := prediction.metrics():
        lines += [*([""] if lines else []), *_metrics(metrics, prediction.model.classes)]
    return "\n".join(lines)


def _shown_rows(prediction: Predicted) -> Iterator[dict[str, Any]]:
    """Yield what is said of each image, its file in a form that is safe to print."""
    return (row | {"file": shown(row["file"], WHOLE_PATH)} for row in prediction._rows())


def _metrics(metrics: Metrics, classes: Sequence[str]) -> list[str]:
    seen = sum(n > 0 for n in metrics.counts)
    rows = [
        (name, str(n), "-" if recall is None else f"{100 * recall:.1f}")
        for name, n, recall in zip(classes, metrics.counts, metrics.recalls, strict=True)
    ]
    lines = [
        f"accuracy {100 * metrics.accuracy:.1f} % of {plural(metrics.images, 'image')}, balanced accuracy "
        f"{100 * metrics.balanced_accuracy:.1f} % over {seen} of {plural(len(classes), 'class', 'classes')}",
        "",
        *tables.columns([("class", "images", "recall"), *rows], "", numbers=True),
    ]
    if len(classes) <= MOST_SHOWN_CLASSES:
        counts = [(name, *map(str, row)) for name, row in zip(classes, metrics.confusion.tolist(), strict=True)]
        lines += ["", "confusion (rows: true, columns: predicted, in this order)"]
        lines += tables.columns(counts, "", numbers=True)
    return lines


def as_csv(prediction: Predicted) -> str:
    """Return a table with a row for each image: file, true class, class, probability, and that of each class."""
    rows = [*_shown_rows(prediction)]
    cells = [[f"{cell:.6f}" if isinstance(cell, float) else cell or "" for cell in row.values()] for row in rows]
    return csv_text([list(rows[0]), *cells])


def as_object(prediction: Predicted) -> dict[str, Any]:
    """Return the predictions as one object for JSON."""
    classes = prediction.model.classes
    content: dict[str, Any] = {
        "model_sha256": prediction.model.sha256,
        "classes": list(classes),
        "images": [
            {key: value for key, value in row.items() if not key.startswith("p(")} for row in _shown_rows(prediction)
        ],
        "broken": prediction.broken,
        "notes": prediction.notes,
    }
    if metrics := prediction.metrics():
        content["metrics"] = {key: getattr(metrics, key) for key in ("images", "accuracy", "balanced_accuracy")} | {
            "recall": dict(zip(classes, metrics.recalls, strict=True)),
            "count": dict(zip(classes, metrics.counts.tolist(), strict=True)),
            "confusion": metrics.confusion.tolist(),
        }
    return content
