"""Scores of the node's own model right after local training (``evaluate.client_models``)."""

from collections.abc import Sequence
from typing import Any

from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Metrics, Next, NodeFeature, Reply, Request
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

    def refuse(self, request: Request) -> str:
        """Allow domains in the rounds of ``evaluate.client_models``."""
        evaluate, why = request.config.evaluate, request.private
        if not evaluate.scores_clients(request.server_round, request.config.rounds):
            why = why or f"this run has evaluate.client_models={evaluate.client_models} ({request.late})"
        return request.but(LOCAL_DOMAINS, why or request.refuse_domains(request.given.get(LOCAL_DOMAINS)))

    def on_train(self, call: Call, next: Next) -> Reply:
        """Add correct predictions and images of each domain that is asked for."""
        reply = next(call)
        reply.metrics.update(local_scores(call.client, call.options.get(LOCAL_DOMAINS, ())))
        return reply


def local_scores(client: DomainClient[Any], domains: Sequence[str]) -> Metrics:
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
