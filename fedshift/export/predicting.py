"""``fedshift predict``: classifies images with a saved model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift.export import adapting, images, opening, own_split, saved
from fedshift.export.images import Batch, Picture
from fedshift.export.saved import SavedModel
from fedshift_core.accuracies import percent
from fedshift_core.cells import csv_text
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, shown
from fedshift_core.plural import plural
from fedshift_core.seeding import generator

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
    """

    model: SavedModel
    pictures: list[Picture] = field(default_factory=list)
    probabilities: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

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

        classes = self.model.classes
        rows: list[dict[str, Any]] = []
        for (picture, k, p), shares in zip(_rows(self), self.probabilities, strict=True):
            label = None if picture.label is None else classes[picture.label]
            of_class = {f"p({name})": float(share) for name, share in zip(classes, shares, strict=True)}
            own: dict[str, Any] = {"file": str(picture.path), "label": label, "class": classes[k], "probability": p}
            rows.append(own | of_class)
        return frames.frame(rows)

    def metrics(self) -> Metrics | None:
        """Return the metrics of the labelled images; None if there are none."""
        pairs = [(p.label, k) for p, k in zip(self.pictures, self.chosen, strict=True) if p.label is not None]
        if not pairs:
            return None
        confusion = np.zeros((len(self.model.classes),) * 2, np.int64)
        true, taken = np.array(pairs).T
        np.add.at(confusion, (true, taken), 1)
        return Metrics(confusion)


def predict(
    folder: Path,
    given: Sequence[Path],
    *,
    batch: int | None = None,
    adapt: str = "",
    clean: Sequence[Path] = (),
    split: str = "",
    in_order: bool = False,
) -> Predicted:
    """Predict images with a saved model.

    Args:
        folder: The saved model.
        given: Image files, and folders of them.
        batch: Images at a time; None for 64, or with ``adapt`` that method's own.
        adapt: ``tent``, ``eata``, ``t3a``, or empty.
        clean: Files and folders of images like those of training, for EATA.
        split: ``train`` or ``test``: only these images of the run's own folders; empty for all images.
        in_order: Adapt to the images in their order, not in a mixed one, the same in each call.

    Raises:
        FedShiftError: If the model cannot be used, a path does not exist, or no image can be read.
    """
    adapting.check(adapt, clean=bool(clean), in_order=in_order)
    model, file = saved.read(folder)
    if split:
        taken, notes = own_split.pictures(model, folder, given, split), [f"the {split} images of the run's own split"]
    else:
        taken, notes = images.find(given, model.classes)
    prediction = Predicted(model, notes=notes)
    number = batch or adapting.BATCHES.get(adapt, BATCH)
    if adapt:
        notes.append(adapting.summary(adapt, number, clean=bool(clean), in_order=in_order))
        held = _clean_batches(model, clean, number, prediction.broken) if clean else None
        run = adapting.program(model, file, adapt, number, held)
    else:
        run = opening.program_of(model, file)
    _fill(prediction, taken, run, number, adapting.least(adapt), mixed=bool(adapt) and not in_order)
    if not split and (note := trained_on(model, given, prediction)):
        notes.append(note)
    return prediction


def predict_with(
    model: SavedModel, run: Callable[[Tensor], Tensor], given: Sequence[Path], *, batch: int | None = None
) -> Predicted:
    """Predict images with a model in memory.

    Args:
        model: What it is.
        run: Returns the scores (B, C) of images (B, 3, H, W), 0 to 1.
        given: Image files, and folders of them.
        batch: Images at a time; None for 64.

    Raises:
        FedShiftError: If a path does not exist, or no image can be read.
    """
    taken, notes = images.find(given, model.classes)
    prediction = Predicted(model, notes=notes)
    _fill(prediction, taken, run, batch or BATCH, 1)
    if note := trained_on(model, given, prediction):
        notes.append(note)
    return prediction


def _fill(
    prediction: Predicted, taken: Sequence[Picture], run: Callable[[Tensor], Tensor], number: int, least: int,
    *, mixed: bool = False,
) -> None:  # fmt: skip
    """Predict images, ``number`` at a time, in a mixed order if ``mixed``; they are noted in that of ``taken``.

    Raises:
        DataError: If none of them can be read.
    """
    model = prediction.model
    parts: list[Floats] = []
    asked = _mixed(taken, "predict-order") if mixed else taken
    for group in images.batches(asked, model.size, model.images(), number, least, prediction.broken):
        parts.append(probabilities(_tensor(group), run, len(model.classes)))
        prediction.pictures += group.pictures
    if not parts:
        raise DataError(f"none of {plural(len(taken), 'image')} can be read; the first: {prediction.broken[0]}")
    prediction.probabilities = np.concatenate(parts)
    if mixed:
        places = {id(picture): place for place, picture in enumerate(taken)}
        back = np.argsort([places[id(picture)] for picture in prediction.pictures])
        prediction.pictures = [prediction.pictures[place] for place in back]
        prediction.probabilities = prediction.probabilities[back]


def trained_on(model: SavedModel, given: Sequence[Path], prediction: Predicted) -> str:
    """Return a warning if the model may have been trained on the labelled images, else an empty text.

    A saved model knows the names of its sites, not their images: a folder with the name of a site probably holds its
    images, including training images. A folder ``test`` of a site counts as its test images.

    Args:
        model: The model.
        given: The files and folders that the user named.
        prediction: The predictions.
    """
    if model.measured is None or all(picture.label is None for picture in prediction.pictures):
        return ""
    sites = model.measured.sites
    named = []
    for path in (typed.resolve() for typed in given):
        inside = path.name.casefold() not in TEST_FOLDERS
        named += [site for site in sites if inside and site in (path.name, path.parent.name)]
    if not named:
        return ""
    own = [f"{site} {accuracy:.1f} %" for site in named if (accuracy := sites[site].accuracy) is not None]
    accuracies = f"; on the run's own test images: {', '.join(own)}" if own else ""
    which = ", ".join(shown(site, MOST_NAME) for site in dict.fromkeys(named))
    return (
        f"{which}: a site of the run, so the model was trained on many of these images, and this is not an accuracy on "
        f"unseen images{accuracies}; only its test images: --split test, if they are arranged as in the run"
    )


def _clean_batches(model: SavedModel, given: Sequence[Path], number: int, broken: list[str]) -> Iterator[Tensor]:
    """Yield images (B, 3, size, size), 0 to 1, of files and folders, in a mixed order: folders go class by class."""
    taken, _ = images.find(given, model.classes)
    for batch in images.batches(
        _mixed(taken, "clean-order"), model.size, model.images(), number, adapting.LEAST, broken
    ):
        if len(batch.pictures) >= adapting.LEAST:
            yield _tensor(batch)


def _mixed(listed: Sequence[Picture], purpose: str) -> list[Picture]:
    """Return images in a drawn order, the same in each call."""
    return [listed[place] for place in generator(0, purpose).permutation(len(listed))]


def _tensor(batch: Batch) -> Tensor:
    """Return images (B, 3, size, size), float32, 0 to 1."""
    return as_tensor(np.stack(batch.pixels))


def as_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """Return images (B, size, size, 3) as a tensor (B, 3, size, size), float32, 0 to 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255.0).contiguous()


def probabilities(x: Tensor, run: Callable[[Tensor], Tensor], classes: int) -> Floats:
    """Return the probabilities (B, C) of images (B, 3, size, size), float32, 0 to 1.

    Args:
        x: The images.
        run: Returns the scores (B, C) of images.
        classes: C.

    Raises:
        ConfigError: If the scores are of another shape, or not finite.
    """
    scores = run(x)
    if scores.shape != (len(x), classes):
        raise ConfigError(
            f"the model gives scores of shape {tuple(scores.shape)} for {plural(len(x), 'image')}; "
            f"its {plural(classes, 'class needs', 'classes need')} ({len(x)}, {classes})"
        )
    if not torch.isfinite(scores).all():
        raise ConfigError("the model gives scores that are not finite")
    shares: Floats = scores.double().softmax(dim=1).numpy()
    return shares


# --- output ------------------------------------------------------------------------


def text(prediction: Predicted, *, rows: bool) -> str:
    """Return the metrics as text, with a line for each image if ``rows``."""
    lines: list[str] = []
    if rows:
        for picture, k, p in _rows(prediction):
            lines.append(f"{shown(picture.path, WHOLE_PATH)}  {prediction.model.classes[k]}  {p:.3f}")
    metrics = prediction.metrics()
    if metrics is not None:
        lines += (
            ["", *_metrics(metrics, prediction.model.classes)] if lines else _metrics(metrics, prediction.model.classes)
        )
    return "\n".join(lines)


def _metrics(metrics: Metrics, classes: Sequence[str]) -> list[str]:
    seen = sum(n > 0 for n in metrics.counts)
    width = max(5, *(len(name) for name in classes))
    lines = [
        f"accuracy {100 * metrics.accuracy:.1f} % of {plural(metrics.images, 'image')}, balanced accuracy "
        f"{100 * metrics.balanced_accuracy:.1f} % over {seen} of {plural(len(classes), 'class', 'classes')}",
        "",
        f"{'class':<{width}}  images  recall",
    ]
    for name, n, recall in zip(classes, metrics.counts, metrics.recalls, strict=True):
        lines.append(f"{name:<{width}}  {n:>6}  {'-' if recall is None else f'{100 * recall:.1f}':>6}")
    if len(classes) <= MOST_SHOWN_CLASSES:
        wide = max(len(str(metrics.confusion.max())), 3)
        lines += ["", "confusion (rows: true, columns: predicted, in this order)"]
        for name, row in zip(classes, metrics.confusion, strict=True):
            lines.append(f"{name:<{width}}  {' '.join(f'{n:>{wide}}' for n in row)}")
    return lines


def _rows(prediction: Predicted) -> list[tuple[Picture, int, float]]:
    chosen = prediction.chosen
    best = prediction.probabilities[np.arange(len(chosen)), chosen]
    return [(p, int(k), float(b)) for p, k, b in zip(prediction.pictures, chosen, best, strict=True)]


def as_csv(prediction: Predicted) -> str:
    """Return a table with a row for each image: file, true class, class, probability, and that of each class."""
    classes = prediction.model.classes
    rows = [["file", "label", "class", "probability", *(f"p({name})" for name in classes)]]
    for (picture, k, p), row in zip(_rows(prediction), prediction.probabilities, strict=True):
        label = "" if picture.label is None else classes[picture.label]
        named = [shown(picture.path, WHOLE_PATH), label, classes[k]]
        rows.append([*named, f"{p:.6f}", *(f"{probability:.6f}" for probability in row)])
    return csv_text(rows)


def as_object(prediction: Predicted) -> dict[str, Any]:
    """Return the predictions as one object for JSON."""
    classes = prediction.model.classes
    content: dict[str, Any] = {
        "model_sha256": prediction.model.sha256,
        "classes": list(classes),
        "images": [
            {
                "file": shown(picture.path, WHOLE_PATH), "class": classes[k], "probability": p,
                "label": None if picture.label is None else classes[picture.label],
            }
            for picture, k, p in _rows(prediction)
        ],
        "broken": prediction.broken,
        "notes": prediction.notes,
    }  # fmt: skip
    metrics = prediction.metrics()
    if metrics is not None:
        content["metrics"] = {
            "images": metrics.images,
            "accuracy": metrics.accuracy,
            "balanced_accuracy": metrics.balanced_accuracy,
            "recall": dict(zip(classes, metrics.recalls, strict=True)),
            "count": dict(zip(classes, metrics.counts.tolist(), strict=True)),
            "confusion": metrics.confusion.tolist(),
        }
    return content
