"""Facts of a finished run that stand wherever it is shown: console, report, card, compare and board."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_app.run import one_class
from fedshift_app.run.files import early_stop_text, untrained_line
from fedshift_core.losses import Losses
from strategies.features.catalog import classes


def facts(results: Mapping[str, Any], entries: Sequence[Mapping[str, Any]] = (), *, counts: bool = False) -> list[str]:
    """Return what features say of the run, what it went without, and what else changes how its numbers are read.

    Args:
        results: Content of ``results.json``.
        entries: The section ``features`` of the configuration.
        counts: Whether nodes that had not trained yet were scored (``evaluate.untrained``).
    """
    lines = [line for feature in classes(entries) for line in feature.facts(results)]
    if lost := Losses.of(results).text():
        lines.append(f"the run is degraded: {lost}")
    if untrained := results.get("untrained"):
        lines.append(untrained_line(untrained, results["averaged_rounds"], counts=counts))
    if stopped := results.get("stopped_early"):
        lines.append(early_stop_text(stopped))
    if constant := results.get(one_class.KEY):
        advice = constant.get("advice")
        lines.append(f"{one_class.sentence(constant)}{f'; {advice}' if advice else ''}")
    return lines
