"""Scores of the nodes' own models right after local training. Each scores the domains whose test images it sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedshift_core.limits import Refused
from fedshift_core.wire.names import LOCAL_CORRECT, LOCAL_COUNT, LOCAL_DOMAINS, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT
from strategies.features.base import LeaveOut, ServerFeature, Training
from strategies.federation.checks import ANY_COUNT, Known, Range, right_of
from strategies.federation.context import RoundResult, RunContext
from strategies.federation.evaluation import ClientScores, tests_of
from strategies.federation.roster import Node
from strategies.federation.updates import Update


def asked_of(node: Node, run: RunContext) -> dict[str, list[str]]:
    """Return the domains on which a node scores its own model: all whose test images it sees."""
    own = [node.domain] if node.num_test else []
    return {LOCAL_DOMAINS: list(run.domains) if node.shared_test else own}


def read(
    updates: Sequence[Update], nodes: Sequence[Node], run: RunContext, leave_out: Callable[[Node, str], None]
) -> ClientScores:
    """Return what the nodes of a round say of their own models.

    Args:
        updates: Those of the round, of nodes that were asked.
        nodes: All nodes of the federation.
        run: The run.
        leave_out: Is called with each node whose scores cannot be used.
    """
    accuracy: dict[int, dict[str, float]] = {}
    own: dict[int, float] = {}
    for update in updates:
        try:
            part = own_accuracy(update.metrics)
            domains = asked_of(update.node, run)[LOCAL_DOMAINS]
            accuracy[update.node.index] = local_accuracy(update.metrics, domains)
            own |= {} if part is None else {update.node.index: part}
        except Refused as refused:
            leave_out(update.node, f"could not score its own model: {refused}")
    # No model was scored on what was drawn for another node.
    drawn = run.own_tests
    return ClientScores(
        tuple(replace(node, shared_test=node.shared_test and not drawn) for node in nodes), accuracy, own
    )


def local_accuracy(metrics: Mapping[str, float], domains: list[str]) -> dict[str, float]:
    """Return the accuracy in percent of a node's own model on the domains that it was asked for.

    Raises:
        Refused: If the node says nothing of one.
    """
    accuracy = {}
    for domain in domains:
        correct, count = right_of(metrics, LOCAL_CORRECT + domain, LOCAL_COUNT + domain)
        if not count:
            raise Refused(f"no numbers for domain {domain!r}")
        accuracy[domain] = 100 * correct / count
    return accuracy


def own_accuracy(metrics: Mapping[str, float]) -> float | None:
    """Return the accuracy in percent of a node's own model on its own test images. None without such images."""
    correct, count = right_of(metrics, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)
    return 100 * correct / count if count else None


class ClientModels(ServerFeature):
    """Has nodes score their own models in the rounds of ``evaluate.client_models``."""

    def train_options(self, node: Node, training: Training) -> dict[str, Any]:
        """Return on which domains the node is to score its own model."""
        evaluate = self.run.config.evaluate
        scores_now = training.scored and evaluate.scores_clients(training.server_round, self.run.rounds)
        return dict(asked_of(node, self.run)) if scores_now else {}

    def train_bounds(self, node: Node, training: Training) -> Known:
        """Return the numbers of each domain that the node was asked for, and of its own test set."""
        domains = self.train_options(node, training).get(LOCAL_DOMAINS, [])
        tests = tests_of(node, domains, {} if self.run.own_tests else training.tests_seen or {})
        known: dict[str, Range] = {}
        for domain, images in tests.items():
            count = ANY_COUNT if images is None else Range(images, images)
            known |= {LOCAL_CORRECT + domain: ANY_COUNT, LOCAL_COUNT + domain: count}
        if tests and node.shared_test and node.num_test:
            known |= {LOCAL_OWN_CORRECT: ANY_COUNT, LOCAL_OWN_COUNT: Range(0, node.num_test)}
        return known

    def read_train(self, metrics: Mapping[str, Any]) -> None:
        """Refuse more correct predictions than there are images."""
        for name in metrics:
            if name.startswith(LOCAL_CORRECT):
                right_of(metrics, name, LOCAL_COUNT + name.removeprefix(LOCAL_CORRECT))
        right_of(metrics, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)

    def after_training(
        self, updates: list[Update], training: Training, result: RoundResult, leave_out: LeaveOut
    ) -> None:
        """Write what the nodes say of their own models."""
        if training.scored and self.run.config.evaluate.scores_clients(training.server_round, self.run.rounds):
            result.clients = read(updates, training.nodes, self.run, leave_out)
