"""Scores on the node's validation part (``allocation.validation_fraction``)."""

import math

from fedshift_clients.features import About, Call, Metrics, Next, NodeFeature, Reply, Request
from fedshift_clients.training.eval_slices import mixed_images
from fedshift_core.wire.names import (
    NUM_VALIDATION,
    VALIDATION,
    VALIDATION_CORRECT,
    VALIDATION_COUNT,
    VALIDATION_LOSS_SUM,
)


class ValidationOnNode(NodeFeature):
    """Scores the weights on the validation part, where the node has one."""

    def refuse(self, request: Request) -> str:
        """Allow it alone, without a value of its own."""
        fraction = request.config.allocation.validation_fraction
        asks = request.given.get(VALIDATION) is True
        return request.but(VALIDATION, "" if asks else f"this run has allocation.validation_fraction={fraction:g}")

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Say how many validation images there are."""
        return ({NUM_VALIDATION: about.images[VALIDATION]} if VALIDATION in about.images else {}), {}

    def on_scores(self, call: Call, next: Next) -> Reply:
        """Add correct predictions, images and the summed loss of the validation part, where that is finite."""
        reply, client = next(call), call.client
        images = client.own_sets.get(VALIDATION)
        if not call.options.get(VALIDATION) or images is None or len(images) < client.setup.least_images:
            return reply
        if call.mixed:  # it is listed class by class, as test sets are
            images = mixed_images(images, client.setup.order(f"{VALIDATION}-order", client.setup.index))
        scores = client.score_test(images)
        reply.metrics.update({VALIDATION_CORRECT: scores.correct, VALIDATION_COUNT: len(images)})
        if math.isfinite(scores.loss_sum):
            reply.metrics[VALIDATION_LOSS_SUM] = scores.loss_sum
        return reply
