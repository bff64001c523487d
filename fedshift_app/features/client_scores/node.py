"""Scores of the node's own model right after local training (``evaluate.client_models``)."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_clients.features.base import Client, Metrics, NodeFeature, Request
from fedshift_clients.training.eval_slices import mixed_images
from fedshift_core.wire.names import (
    DOMAINS,
    LOCAL_CORRECT,
    LOCAL_COUNT,
    LOCAL_DOMAINS,
    LOCAL_OWN_CORRECT,
    LOCAL_OWN_COUNT,
)


class ClientModelsOnNode(NodeFeature):
    """Scores the model as local training left it, private parts included: a client model of FedCode."""

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow domains in the rounds of ``evaluate.client_models``."""
        evaluate = request.config.evaluate
        if request.private:
            return request.private
        if not evaluate.scores_clients(request.server_round, request.config.rounds):
            return f"this run has evaluate.client_models={evaluate.client_models} ({request.late})"
        return request.refuse_domains(value)

    def after_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return correct predictions and images of each domain that is asked for."""
        return local_scores(client, request.get(LOCAL_DOMAINS, ()))


def local_scores(client: Client, domains: Sequence[str]) -> Metrics:
    """Score the model on domains, and on the node's own test set where that is apart from its domain's.

    Args:
        client: With the model.
        domains: Whose test images; each costs one pass over them.

    Returns:
        Correct predictions and images by domain, under their names on the wire.
    """
    metrics: Metrics = {}
    least = client.setup.least_images
    for domain, test in client.tests({DOMAINS: domains}, mixed=client.mixes_tests):
        if len(test) >= least:
            metrics |= {LOCAL_CORRECT + domain: client.score_test(test).correct, LOCAL_COUNT + domain: len(test)}
    own = client.own_sets.get("test")
    if domains and own is not None and len(own) >= least:
        own = mixed_images(own, client.setup.order("own-test-order", client.setup.index)) if client.mixes_tests else own
        metrics |= {LOCAL_OWN_CORRECT: client.score_test(own).correct, LOCAL_OWN_COUNT: len(own)}
    return metrics
