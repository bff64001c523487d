"""Facts of a finished run that stand wherever it is shown: console, report, card, compare and board.

It imports neither Flower nor torch, as the files of many runs are read with it.
"""

from collections.abc import Mapping
from typing import Any

from fedshift_app.run.files import early_stop_text, untrained_line
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.losses import Losses

PRIVACY = "privacy"  # key of results.json: what nodes have spent
ONE_CLASS = "predicts_one_class"  # of a round in metrics.jsonl, and of results.json
SEVERAL = "one class in each domain, not the same in all"


def facts(results: Mapping[str, Any], *, counts: bool = False) -> list[str]:
    """Return what a run spent and went without, and what else changes how its numbers are read.

    Args:
        results: Content of ``results.json``.
        counts: Whether nodes that had not trained yet were scored (``evaluate.untrained``).
    """
    lines = []
    if spent := results.get(PRIVACY):
        lines.append(privacy_text(spent))
    if lost := Losses.of(results).text():
        lines.append(f"the run is degraded: {lost}")
    if untrained := results.get("untrained"):
        lines.append(untrained_line(untrained, results["averaged_rounds"], counts=counts))
    if stopped := results.get("stopped_early"):
        lines.append(early_stop_text(stopped))
    if constant := results.get(ONE_CLASS):
        advice = constant.get("advice")
        lines.append(f"{one_class_text(constant)}{f'; {advice}' if advice else ''}")
    return lines


def privacy_text(spent: Mapping[str, Any]) -> str:
    """Return a line with the smallest and the largest epsilon of the nodes."""
    lowest, highest = f"{min(spent['epsilon'].values()):.3g}", f"{spent['largest']:.3g}"
    of_nodes = highest if lowest == highest else f"{lowest} to {highest} by node"
    return f"privacy: epsilon {of_nodes} at delta {spent['delta']:g}, of one image of a node"


def one_class_text(fields: Mapping[str, Any]) -> str:
    """Return a sentence on a model that predicts one class (``one_class.in_all_rounds``)."""
    number = fields["rounds"]
    rounds = "the one scored round" if number == 1 else f"each of {number} scored rounds"
    name = str(fields["class"])
    which = name if name == SEVERAL else f"the one class {plain(name, MOST_NAME)!r}"
    return f"the model predicts {which} for all test images, in {rounds}: it has not learnt to distinguish classes"
