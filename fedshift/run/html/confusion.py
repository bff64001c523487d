"""A confusion matrix, and the labels of a map's columns and rows."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedshift.run.html.drawing import (
    COLUMN_NAME,
    GRID,
    LABELLED,
    ROW_NAME,
    Drawing,
    canvas,
    finish,
    heat_map,
    short,
)
from fedshift_core.limits import some
from fedshift_core.plural import plural

Ints = NDArray[np.int64]

NAMED = 12  # up to this number of rows, a heat map has numbers and the name of each row


def row_shares(counts: Ints) -> NDArray[np.float64]:
    """Return each row as shares of its sum, 0 to 1; an empty row stays 0."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def confusion_of(domain: str, counts: Ints, classes: Sequence[str], place: int, scored: str) -> Drawing:
    """Draw a confusion matrix (C, C), rows in percent of the class; ``scored`` names the images."""
    c, images = len(classes), int(counts.sum())
    accuracy = 100 * int(counts.trace()) / max(images, 1)
    shares = row_shares(counts)
    figure, (axes,) = canvas(4.2)
    texts = None
    if c <= NAMED:
        texts = [[f"{100 * value:.0f}" if value >= 0.005 else "" for value in row] for row in shares]
    heat_map(axes, shares.tolist(), texts)
    empty = [k for k in range(c) if not counts[k].sum()]
    for k in empty:
        axes.add_patch(Rectangle((-0.5, k - 0.5), c, 1, fill=False, hatch="////", edgecolor=GRID, linewidth=0))
    label(axes, classes)
    axes.set_ylabel("true class")
    axes.set_xlabel("predicted class")
    axes.set_title(f"{domain}: {accuracy:.1f} %", loc="left")
    off = counts.copy()
    np.fill_diagonal(off, 0)
    worst = ""
    if off.any():
        true, taken = np.unravel_index(int(off.argmax()), off.shape)
        worst = f"; most often {classes[int(true)]} is taken for {classes[int(taken)]} ({plural(off.max(), 'time')})"
    title = f"Confusion matrix of {domain}: {accuracy:.1f} % of {plural(images, 'image')} are right{worst}."
    without = some([classes[k] for k in empty], NAMED, what=" classes")
    hatched = f" Hatched: no test image of {without}." if empty else ""
    return finish(figure, f"confusion{place}", title, f"{scored}{worst}.".replace("; m", ". M") + hatched)


def label(axes: Axes, columns: Sequence[str], rows: Sequence[str] | None = None) -> None:
    """Label columns and rows, by default alike; neighbours with the same name share a label.

    Too many of them are only numbered.
    """
    for names, across in ((columns, True), (columns if rows is None else rows, False)):
        starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
        if len(starts) > LABELLED:
            axes.tick_params(axis="x" if across else "y", length=2)
            continue
        ends = [*starts[1:], len(names)]
        middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
        labels = [short(names[start], COLUMN_NAME if across else ROW_NAME) for start in starts]
        size = 10 if len(labels) <= 20 else 6
        if across:
            axes.set_xticks(middles, labels, rotation=90 if max(map(len, labels)) > 2 else 0, fontsize=size)
        else:
            axes.set_yticks(middles, labels, fontsize=size)
