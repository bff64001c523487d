"""Makes the page of a node's report, and statistics of its images, with which the next report compares itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fedshift.export.predicting import Floats, Metrics
from fedshift.run.html import confusion, drawing, pictures
from fedshift_core.accuracies import percent
from fedshift_core.limits import BINS, MOST_NAME, MOST_SHOWN, plain, shown
from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import pixel_statistics

SAMPLES = 4  # images of each class
WORST = 12  # mistakes that are shown


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
        return np.asarray(self.probabilities.argmax(axis=1))

    def mistakes(self) -> list[int]:
        """Return the images that are taken for another class, highest loss first: least probable first."""
        wrong = np.flatnonzero(self.chosen != self.images.y)
        true = self.probabilities[wrong, self.images.y[wrong]]
        order: list[int] = wrong[np.argsort(true, kind="stable")].tolist()
        return order


class Images(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Statistics of one split.

    Attributes:
        counts: Images of each class, (C,).
        mean: By channel, of pixels from 0 to 1, (3,); zeros without images.
        std: Likewise.
        marks: A name of each image, which follows from its pixels.
    """

    counts: list[int]
    mean: list[float]
    std: list[float]
    marks: list[str]

    @classmethod
    def of(cls, images: ImageSet, classes: int) -> "Images":
        """Measure images."""
        pixels = pixel_statistics.of(images.x, BINS) if len(images) else None
        mean, std = (np.zeros(3), np.zeros(3)) if pixels is None else (pixels.mean, np.sqrt(pixels.variance))
        counts = np.bincount(images.y, minlength=classes).tolist()
        marks = [mark.tobytes().hex() for mark in images.marks]
        return cls(counts=counts, mean=mean.tolist(), std=std.tolist(), marks=marks)


class Kept(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Statistics that a report keeps for the next one.

    Attributes:
        time: When, in UTC.
        classes: Names of the classes.
        size: Height and width of the images in pixels.
        splits: Statistics by split.
        model: Which model scored the test images, in words.
        sha256: Of its weights.
        confusion: Test images by true (row) and predicted class; empty without test images.
    """

    time: str
    classes: list[str]
    size: int
    splits: dict[str, Images]
    model: str
    sha256: str
    confusion: list[list[int]] = []
    version: Literal[1] = 1

    @property
    def metrics(self) -> Metrics | None:
        """The figures of the test images; None without any."""
        matrix = np.array(self.confusion, np.int64)
        return Metrics(matrix) if matrix.any() else None


def total_variation(counts: Sequence[int], others: Sequence[int]) -> float | None:
    r"""Return :math:`\frac12\sum_k|p_k-q_k|` of two class mixes; None if either has no images."""
    p, q = np.array(counts, np.float64), np.array(others, np.float64)
    if not p.sum() or not q.sum():
        return None
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)


def content(
    domain: str, splits: Mapping[str, ImageSet], scored: Scored | None, now: Kept, since: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the variables of the template.

    Args:
        domain: The node's domain.
        splits: Its images by split.
        scored: The model's probabilities of the test images; None without any.
        now: What this report keeps.
        since: The section about the last one (:func:`since`).
    """
    name, classes, metrics = plain(domain, MOST_NAME), [plain(name, MOST_NAME) for name in now.classes], now.metrics
    facts, plots, wrong = [(f"{split} images", f"{len(images):,}") for split, images in splits.items()], [], []
    if scored is not None and metrics is not None:
        wrong = scored.mistakes()
        facts += [("accuracy", f"{percent(100 * metrics.accuracy)} %")]
        facts += [("balanced accuracy", f"{percent(100 * metrics.balanced_accuracy)} %")]
        with drawing.style():
            plots = [confusion.confusion_of(name, metrics.confusion, classes, 0, "all own test images")]
    columns = {split: images.counts for split, images in now.splits.items()}
    counts = [[each, *(f"{column[k]:,}" for column in columns.values())] for k, each in enumerate(classes)]
    counts.append(["all", *(f"{sum(column):,}" for column in columns.values())])
    return {
        "title": f"Node report: {name}",
        "when": _when(now),
        "model": plain(now.model),
        "facts": facts,
        "counts": {"heads": ["class", *columns], "rows": counts},
        "samples": _samples(classes, splits["train"]),
        "more_classes": max(0, len(classes) - MOST_SHOWN),
        "confusion": plots,
        "by_class": [] if metrics is None else _by_class(classes, metrics),
        "worst": [_mistake(scored, place, classes) for place in wrong[:WORST] if scored is not None],
        "wrong": len(wrong),
        "since": since,
    }


def _when(kept: Kept) -> str:
    return kept.time[:19].replace("T", " ")


def _samples(classes: Sequence[str], images: ImageSet) -> list[tuple[str, list[dict[str, str]]]]:
    """Return a few training images of each class, evenly spaced in their order."""
    samples = []
    for k, name in enumerate(classes[:MOST_SHOWN]):
        places = np.flatnonzero(images.y == k)
        places = places[np.linspace(0, len(places) - 1, min(SAMPLES, len(places))).round().astype(np.int64)]
        if len(places):
            alt = f"training image of {name}"
            samples.append((name, [{"source": _source(images, place), "alt": alt} for place in places.tolist()]))
    return samples


def _source(images: ImageSet, place: int) -> str:
    return pictures.uri(pictures.scaled(np.asarray(images.x[place])))


def _by_class(classes: Sequence[str], metrics: Metrics) -> list[list[str]]:
    """Return a row for each class: test images, how many are right, recall, how often it was chosen, precision."""
    right, chosen, there = np.diag(metrics.confusion), metrics.confusion.sum(axis=0), metrics.counts
    return [
        [name, f"{n:,}", f"{hits:,}", _share(hits, n), f"{taken:,}", _share(hits, taken)]
        for name, n, hits, taken in zip(classes, there, right, chosen, strict=True)
    ]


def _share(part: int, of: int) -> str:
    return percent(100 * part / of) if of else "-"


def _mistake(scored: Scored, place: int, classes: Sequence[str]) -> dict[str, str]:
    p = scored.probabilities[place]
    true, taken = int(scored.images.y[place]), int(p.argmax())
    return {
        "source": _source(scored.images, place),
        "alt": f"test image of {classes[true]}, taken for {classes[taken]}",
        "caption": f"{classes[true]} ({100 * p[true]:.1f} %), taken for {classes[taken]} ({100 * p[taken]:.1f} %)",
        "file": f"image {place} of its test images" if scored.names is None else shown(scored.names[place]),
    }


def since(now: Kept, before: Kept | None, lost: str) -> dict[str, Any]:
    """Return the section about the last report: its rows, or why there are none.

    Args:
        now: What this report keeps.
        before: What the last one kept; None if there was none.
        lost: Why the last one cannot be used; empty where it can.
    """
    rows: list[list[str]] = []
    if before is None:
        notes = [lost or "There is no earlier report of this node."]
    elif (now.classes, now.size) != (before.classes, before.size):
        notes = [f"The images of {_when(before)} UTC had other classes or another size: they cannot be compared."]
    else:
        notes = [
            f"Against the report of {_when(before)} UTC.",
            "Class mix: total variation distance, 0 (the same shares) to 1. Mean and std: of pixels from 0 to 1, of "
            "red, green and blue where they differ.",
            _accuracy(now, before),
        ]
        for name in [name for name in now.splits if name in before.splits]:
            new, old = now.splits[name], before.splits[name]
            marks, others = Counter(new.marks), Counter(old.marks)
            mix = total_variation(new.counts, old.counts)
            moved = (f"{(marks - others).total():,}", f"{(others - marks).total():,}")
            pixels = (_channels(new.mean, old.mean), _channels(new.std, old.std))
            rows.append([name, *moved, "-" if mix is None else f"{mix:.3f}", *pixels])
    return {"heads": ["split", "new images", "gone", "class mix", "mean", "std"], "rows": rows, "notes": notes}


def _channels(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the change of each channel, of grey images one number."""
    texts = [f"{value - other:+.3f}" for value, other in zip(values, others, strict=True)]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _accuracy(now: Kept, before: Kept) -> str:
    if now.metrics is None or before.metrics is None:
        return "The accuracy cannot be compared: one of both has none."
    same = "the same model" if now.sha256 == before.sha256 else f"another model ({plain(before.model)})"
    accuracy, last = 100 * now.metrics.accuracy, 100 * before.metrics.accuracy
    return f"Accuracy: {percent(accuracy)} %, {accuracy - last:+.1f} points; the last report had {same}."
