"""Scores on the node's validation part (``allocation.validation_fraction``)."""

import math
from collections.abc import Mapping
from typing import Any

from fedshift_app.features.bn_statistics.node import of_accuracy
from fedshift_clients.features.base import About, Client, Metrics, NodeFeature, Request
from fedshift_clients.training.eval_slices import mixed_images
from fedshift_core.wire.names import (
    BATCH,
    NUM_VALIDATION,
    VALIDATION,
    VALIDATION_CORRECT,
    VALIDATION_COUNT,
    VALIDATION_LOSS_SUM,
)


class ValidationOnNode(NodeFeature):
    """Scores the weights on the validation part, where the node has one."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow it where nodes have validation parts."""
        fraction = request.config.allocation.validation_fraction
        return "" if value is True and fraction > 0 else f"this run has allocation.validation_fraction={fraction:g}"

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Say how many validation images there are."""
        return ({NUM_VALIDATION: about.images[VALIDATION]} if VALIDATION in about.images else {}), {}

    def on_scores(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return correct predictions, images and the summed loss of the validation part, where that is finite."""
        images = client.own_sets.get(VALIDATION)
        if not request.get(VALIDATION) or images is None or len(images) < client.setup.least_images:
            return {}
        if client.mixes_tests or of_accuracy(request) == BATCH:  # it is listed class by class, as test sets are
            images = mixed_images(images, client.setup.order(f"{VALIDATION}-order", client.setup.index))
        scores = client.score_test(images)
        counts: Metrics = {VALIDATION_CORRECT: scores.correct, VALIDATION_COUNT: len(images)}
        return counts | ({VALIDATION_LOSS_SUM: scores.loss_sum} if math.isfinite(scores.loss_sum) else {})
