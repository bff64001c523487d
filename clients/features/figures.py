"""Counts of scored test images for the figures (``evaluate.figures``)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from clients.features.base import Client, NodeFeature, Request
from clients.training.node import Scores
from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import COUNTS, FIGURES


class FiguresOnNode(NodeFeature):
    """Counts how predictions, confidence and scores are spread."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow it where the run has figures."""
        evaluate = request.config.evaluate
        if value is not True or not evaluate.figures or not evaluate.test:
            return f"this run has evaluate.figures={_word(evaluate.figures)}, evaluate.test={_word(evaluate.test)}"
        return ""

    def around_tests(self, client: Client, request: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Count while test images are scored."""
        return client.counting() if request.get(FIGURES) else nullcontext()

    def record(self, domain: str, scores: Scores) -> dict[str, Arrays]:
        """Return the counts of a domain."""
        return {} if scores.counts is None else {COUNTS: scores.counts.arrays(domain)}


def _word(value: bool) -> str:
    return str(value).lower()
