"""A confusion matrix, and the labels of a map's columns and rows."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedshift.run.html.drawing import COLUMN_NAME, GRID, LABELLED, ROW_NAME, Plot, canvas, heat_map, short
from fedshift_core.limits import some
from fedshift_core.plural import plural

Ints = NDArray[np.int64]

NAMED = 12  # up to this number of rows, a heat map has numbers and the name of each row


def confusion_of(domain: str, counts: Ints, classes: Sequence[str], place: int, scored: str) -> Plot:
    """Draw a confusion matrix (C, C), rows in percent of the class; ``scored`` names the images."""
    c = len(classes)
    accuracy = f"{domain}: {100 * int(counts.trace()) / max(int(counts.sum()), 1):.1f} %"
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, (axes,) = canvas(4.2)
    texts = [[f"{100 * value:.0f}" if value >= 0.005 else "" for value in row] for row in shares]
    heat_map(axes, shares.tolist(), texts if c <= NAMED else ())
    empty = [k for k in range(c) if not counts[k].sum()]
    for k in empty:
        axes.add_patch(Rectangle((-0.5, k - 0.5), c, 1, fill=False, hatch="////", edgecolor=GRID, linewidth=0))
    label(axes, classes, classes)
    axes.set_ylabel("true class")
    axes.set_xlabel("predicted class")
    axes.set_title(accuracy, loc="left")
    off = counts - np.diag(np.diag(counts))
    worst = ""
    if off.any():
        true, taken = (classes[int(k)] for k in np.unravel_index(int(off.argmax()), off.shape))
        worst = f" Most often {true} is taken for {taken} ({plural(off.max(), 'time')})."
    hatched = (
        f" Hatched: no test image of {some([classes[k] for k in empty], NAMED, what=' classes')}." if empty else ""
    )
    return Plot(figure, f"confusion{place}", f"Confusion matrix of {scored}.{worst}{hatched}")


def label(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Label columns and rows; neighbours with the same name share a label, too many have none."""
    for names, axis, most in ((columns, axes.xaxis, COLUMN_NAME), (rows, axes.yaxis, ROW_NAME)):
        runs = [[place for place, _ in run] for _, run in groupby(enumerate(names), key=lambda entry: entry[1])]
        if len(runs) > LABELLED:
            axis.set_tick_params(length=2)
            continue
        labels = [short(names[run[0]], most) for run in runs]
        turned = 90 if axis is axes.xaxis and max(map(len, labels)) > 2 else 0
        axis.set_ticks(
            [(run[0] + run[-1]) / 2 for run in runs], labels, rotation=turned, fontsize=10 if len(labels) <= 20 else 6
        )
