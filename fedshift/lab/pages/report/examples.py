"""The section of a task whose predictions are pictures: the best, the median and the worst image of each site."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.lab.pages.report.predictions import Sight, View
from fedshift.run.html.drawing import Plot, canvas
from fedshift.run.html.sections import Section
from fedshift.run.reading import Record
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.plural import capital
from fedshift_core.registry import imported
from fedshift_core.tasks import Task
from fedshift_datasets.listing import IGNORED

PLACES = ("best", "median", "worst")


def section(record: Record, sight: Sight, numbers: dict[str, Any]) -> Section:
    """Return the section of the page; ``numbers`` receives the mean score of the images that were scored."""
    task, classes = record.task, len(record.classes)
    part = Section(name := f"{task.target}s", capital(name))
    if sight.nothing:
        part.leave_out(sight.nothing)
        return part
    score_of_each = imported(task.score_of_each)
    for domain, view in sight.views.items():
        given = torch.from_numpy(view.predicted), torch.from_numpy(np.array(view.images.targets, np.int64))
        scores = score_of_each(*given, classes).numpy()
        part.figures.append(_pictures(domain, view, scores, classes, task))
        numbers["domains"][domain] = {"node": view.node.index, "scored": len(scores), task.metric: float(scores.mean())}
    part.missing = sight.missing_text()
    return part


def _pictures(domain: str, view: View, scores: NDArray[np.float64], classes: int, task: Task) -> Plot:
    columns = ("image", task.target, "prediction")
    order = np.argsort(-scores, kind="stable")
    chosen = dict(zip(PLACES, (order[0], order[len(order) // 2], order[-1]), strict=True))
    figure, axes = canvas(4.6, len(PLACES), len(columns))
    for row, (name, place) in enumerate(chosen.items()):
        target = view.images.targets[place]
        shown = (view.images.x[place], np.where(target == IGNORED, np.nan, target), view.predicted[place])
        for column, picture in enumerate(shown):
            panel = axes[row * len(columns) + column]
            panel.imshow(picture, vmin=0, vmax=max(classes - 1, 1), cmap="viridis", interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
            if row == 0:
                panel.set_title(columns[column], fontsize=9)
        axes[row * len(columns)].set_ylabel(f"{name}\n{scores[place]:.2f}", fontsize=9)
    label = plain(domain, MOST_NAME)
    caption = (
        f"{label}: image, {task.target} and prediction of the best, the median and the worst image by {task.score}."
    )
    return Plot(figure, f"{task.target}s-{label}", caption)
