"""What is on the page of a node's report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift.export.predicting import Metrics
from fedshift.run.html import confusion, drawing, pictures
from fedshift.site import statistics
from fedshift.site.statistics import Kept
from fedshift_core.accuracies import percent
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain, shown
from fedshift_datasets.base import ImageSet

SAMPLES = 4  # images of each class
WORST = 12  # mistakes that are shown
LEAST_PROBABILITY = 1e-300  # of the true class, in its loss

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """The model's probabilities of the test images.

    Attributes:
        images: The test images.
        probabilities: (N, C).
        names: Their files; None where they come in arrays.
    """

    images: ImageSet
    probabilities: Floats
    names: Sequence[str] | None = None

    @property
    def chosen(self) -> NDArray[np.int64]:
        """The likeliest class of each image, (N,)."""
        return np.asarray(self.probabilities.argmax(axis=1), np.int64)

    @property
    def metrics(self) -> Metrics:
        """The figures of these images."""
        confusion = np.zeros((self.probabilities.shape[1],) * 2, np.int64)
        np.add.at(confusion, (self.images.y, self.chosen), 1)
        return Metrics(confusion)

    def worst(self) -> list[int]:
        """Return the images that are taken for another class, highest loss first."""
        true = self.probabilities[np.arange(len(self.images)), self.images.y]
        losses = -np.log(np.maximum(true, LEAST_PROBABILITY))
        wrong = np.flatnonzero(self.chosen != self.images.y)
        order: list[int] = wrong[np.argsort(-losses[wrong], kind="stable")].tolist()
        return order[:WORST]


def content(
    domain: str, splits: Mapping[str, ImageSet], scored: Scored | None, now: Kept, before: Kept | None, lost: str
) -> dict[str, Any]:
    """Return the variables of the template.

    Args:
        domain: The node's domain.
        splits: Its images by split.
        scored: The model's probabilities of the test images; None without any.
        now: What this report keeps.
        before: What the last one kept; None if there was none.
        lost: Why the last one cannot be used; empty where it can.
    """
    classes = [plain(name, MOST_NAME) for name in now.classes]
    metrics = None if scored is None else scored.metrics
    return {
        "title": f"Node report: {plain(domain, MOST_NAME)}",
        "when": now.time[:19].replace("T", " "),
        "model": plain(now.model),
        "facts": _facts(splits, metrics),
        "counts": _counts(classes, now),
        "samples": _samples(classes, splits["train"]),
        "more_classes": max(0, len(classes) - MOST_SHOWN),
        "confusion": [] if metrics is None else _confusion(domain, metrics, classes),
        "by_class": [] if metrics is None else _by_class(classes, metrics),
        "worst": [] if scored is None else [_mistake(scored, place, classes) for place in scored.worst()],
        "wrong": 0 if scored is None else int((scored.chosen != scored.images.y).sum()),
        "since": _since(now, before, lost),
    }


def _facts(splits: Mapping[str, ImageSet], metrics: Metrics | None) -> list[tuple[str, str]]:
    facts = [(f"{name} images", f"{len(images):,}") for name, images in splits.items()]
    if metrics is not None:
        facts.append(("accuracy", f"{percent(100 * metrics.accuracy)} %"))
        facts.append(("balanced accuracy", f"{percent(100 * metrics.balanced_accuracy)} %"))
    return facts


def _counts(classes: Sequence[str], now: Kept) -> dict[str, Any]:
    """Return the table of images by class and split, with sums."""
    columns = [images.counts for images in now.splits.values()]
    rows = [[name, *(f"{counts[k]:,}" for counts in columns)] for k, name in enumerate(classes)]
    rows.append(["all", *(f"{sum(counts):,}" for counts in columns)])
    return {"heads": ["class", *now.splits], "rows": rows}


def _samples(classes: Sequence[str], images: ImageSet) -> list[tuple[str, list[dict[str, str]]]]:
    """Return a few training images of each class, evenly spaced in their order."""
    samples = []
    for k, name in enumerate(classes[:MOST_SHOWN]):
        of_class = np.flatnonzero(images.y == k)
        if len(of_class):
            places = of_class[np.linspace(0, len(of_class) - 1, min(SAMPLES, len(of_class))).round().astype(np.int64)]
            samples.append((name, [{"source": _source(images, int(i)), "alt": f"training image of {name}"}
                                   for i in places]))  # fmt: skip
    return samples


def _source(images: ImageSet, place: int) -> str:
    return pictures.uri(pictures.scaled(np.asarray(images.x[place])))


def _confusion(domain: str, metrics: Metrics, classes: Sequence[str]) -> list[drawing.Plot]:
    with drawing.style():
        return [confusion.confusion_of(plain(domain, MOST_NAME), metrics.confusion, classes, 0, "all own test images")]


def _by_class(classes: Sequence[str], metrics: Metrics) -> list[list[str]]:
    """Return a row for each class: test images, how many are right, recall, how often it was chosen, precision."""
    rows = []
    for k, name in enumerate(classes):
        right, chosen = int(metrics.confusion[k, k]), int(metrics.confusion[:, k].sum())
        recall = metrics.recalls[k]
        rows.append([
            name, f"{metrics.counts[k]:,}", f"{right:,}", "-" if recall is None else percent(100 * recall),
            f"{chosen:,}", percent(100 * right / chosen) if chosen else "-",
        ])  # fmt: skip
    return rows


def _mistake(scored: Scored, place: int, classes: Sequence[str]) -> dict[str, str]:
    true, taken = int(scored.images.y[place]), int(scored.chosen[place])
    p = scored.probabilities[place]
    where = f"image {place} of its test images" if scored.names is None else shown(scored.names[place])
    return {
        "source": _source(scored.images, place),
        "alt": f"test image of {classes[true]}, taken for {classes[taken]}",
        "caption": f"{classes[true]} ({100 * p[true]:.1f} %), taken for {classes[taken]} ({100 * p[taken]:.1f} %)",
        "file": where,
    }


def _since(now: Kept, before: Kept | None, lost: str) -> dict[str, Any]:
    """Return the section about the last report: its rows, or why there are none."""
    heads = ["split", "new images", "gone", "class mix", "mean", "std"]
    if before is None:
        return {"heads": heads, "rows": [], "notes": [lost or "There is no earlier report of this node."]}
    when = f"Against the report of {before.time[:19].replace('T', ' ')} UTC."
    try:
        changes = statistics.changes(now, before)
    except ValueError as why:
        return {"heads": heads, "rows": [], "notes": [when, f"The images cannot be compared: {why}."]}
    rows = [
        [name, f"{change.new:,}", f"{change.gone:,}", "-" if change.mix is None else f"{change.mix:.3f}",
         _channels(change.mean), _channels(change.std)]
        for name, change in changes.items()
    ]  # fmt: skip
    notes = [
        when,
        "Class mix: total variation distance, 0 (the same shares) to 1. Mean and std: of pixels from 0 to 1, of red, "
        "green and blue where they differ.",
        _accuracy(now, before),
    ]
    return {"heads": heads, "rows": rows, "notes": notes}


def _channels(values: Sequence[float]) -> str:
    """Return the change of each channel, of grey images one number."""
    texts = [f"{value:+.3f}" for value in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _accuracy(now: Kept, before: Kept) -> str:
    if now.accuracy is None or before.accuracy is None:
        return "The accuracy cannot be compared: one of both had no test images."
    same = "the same model" if now.sha256 == before.sha256 else f"another model ({plain(before.model)})"
    change = now.accuracy - before.accuracy
    return f"Accuracy: {percent(now.accuracy)} %, {change:+.1f} points; the last report had {same}."
