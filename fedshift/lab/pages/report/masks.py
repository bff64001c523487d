"""The section about masks: the best, the median and the worst image of each site."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.lab.pages.report.predictions import Sight, View
from fedshift.run.html.drawing import Plot, canvas
from fedshift.run.html.sections import Section
from fedshift.run.reading import Record
from fedshift_app.tasks.segmentation.losses import image_scores
from fedshift_core.limits import MOST_NAME, plain
from fedshift_datasets.listing import IGNORED

COLUMNS = ("image", "mask", "prediction")
PLACES = ("best", "median", "worst")


def section(record: Record, sight: Sight, numbers: dict[str, Any]) -> Section:
    """Return the section of the page; ``numbers`` receives the Dice of the images that were scored."""
    part = Section("masks", "Masks")
    if sight.nothing:
        part.leave_out(sight.nothing)
        return part
    classes = len(record.classes)
    for domain, view in sight.views.items():
        scores = _scores(view, classes)
        part.figures.append(_pictures(domain, view, scores, classes))
        numbers["domains"][domain] = {"node": view.node.index, "scored": len(scores), "dice": float(scores.mean())}
    if sight.missing:
        part.missing = " ".join(f"{domain} is not shown: {why}." for domain, why in sight.missing.items())
    return part


def _scores(view: View, classes: int) -> NDArray[np.float64]:
    """Return the score of each image (N,), as the run has it."""
    masks = torch.from_numpy(np.array(view.images.masks, np.int64))
    scores: NDArray[np.float64] = image_scores(torch.from_numpy(view.predicted), masks, classes).numpy()
    return scores


def _pictures(domain: str, view: View, scores: NDArray[np.float64], classes: int) -> Plot:
    assert view.images.masks is not None
    order = np.argsort(-scores, kind="stable")
    chosen = dict(zip(PLACES, (order[0], order[len(order) // 2], order[-1]), strict=True))
    figure, axes = canvas(4.6, len(PLACES), len(COLUMNS))
    for row, (name, place) in enumerate(chosen.items()):
        mask = view.images.masks[place]
        shown = (view.images.x[place], np.where(mask == IGNORED, np.nan, mask), view.predicted[place])
        for column, picture in enumerate(shown):
            panel = axes[row * len(COLUMNS) + column]
            panel.imshow(picture, vmin=0, vmax=max(classes - 1, 1), cmap="viridis", interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
            if row == 0:
                panel.set_title(COLUMNS[column], fontsize=9)
        axes[row * len(COLUMNS)].set_ylabel(f"{name}\n{scores[place]:.2f}", fontsize=9)
    label = plain(domain, MOST_NAME)
    caption = f"{label}: image, mask and prediction of the best, the median and the worst image by Dice."
    return Plot(figure, f"masks-{label}", caption)
