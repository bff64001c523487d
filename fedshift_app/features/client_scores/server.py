"""Scores of the nodes' own models right after local training. Each scores the domains whose test images it sees.

FedCode: the metrics are those of its section on experiments. a[m, n] is the accuracy of client m's model
right after local training of the round (its own private parts, before averaging) on client n's test set;
C_q are the clients of domain q, N is their number over all domains.

A client whose whole row is unknown (it did not train, or has no test images) is left out. A score that
needs any other unknown entry is NaN, as a mean over a part would be another quantity.

Deviations: where only some clients train in a round, m runs over those, n over all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_app.features.client_scores.show import KEY, apart
from fedshift_core.limits import Refused
from fedshift_core.wire.names import LOCAL_CORRECT, LOCAL_COUNT, LOCAL_DOMAINS, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT
from fedshift_strategies.features.base import ServerFeature, Steps, Training
from fedshift_strategies.federation.checks import ANY_COUNT, Known, Range, right_of
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.evaluation import Asked
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import Update

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class ClientScores:
    """How well the nodes' own models did right after local training, before they were averaged.

    Attributes:
        nodes: All nodes of the federation, in the order of their index.
        accuracy: Top-1 accuracy in percent, by index of the node and by domain; only what was reported.
        own: Accuracy on the node's own test set, by index, where that is only a part of its domain's.
    """

    nodes: tuple[Node, ...]
    accuracy: dict[int, dict[str, float]]
    own: dict[int, float] = field(default_factory=dict)


def asked_of(node: Node, run: RunContext) -> dict[str, list[str]]:
    """Return the domains on which a node scores its own model: all whose test images it sees."""
    own = [domain for domain in node.domains if node.tests_of(domain)]
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
    return ClientScores(apart(nodes, drawn=run.own_tests), accuracy, own)


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

    def on_round(self, training: Training) -> Steps:
        """Ask nodes for the scores of their own models, and write what they say."""
        if not (training.scored and self.run.config.evaluate.scores_clients(training.server_round, self.run.rounds)):
            yield None
            return
        seen = {} if self.run.own_tests else {node.domain: node.num_test for node in training.present}
        yield Asked(lambda node: asked_of(node, self.run), bounds=lambda node: self._bounds(node, seen), check=_check)
        scores = read(training.updates, training.all_nodes, self.run, training.leave_out)
        training.result.shown[KEY] = client_models(scores)

    def _bounds(self, node: Node, seen: Mapping[str, int]) -> Known:
        """Return the numbers of each domain that the node was asked for, and of its own test set.

        Args:
            node: The node.
            seen: Test images of domains, as their own nodes see them.
        """
        domains = asked_of(node, self.run).get(LOCAL_DOMAINS, [])
        tests = {domain: node.tests_of(domain) or seen.get(domain) for domain in domains}
        known: dict[str, Range] = {}
        for domain, images in tests.items():
            count = ANY_COUNT if images is None else Range(images, images)
            known |= {LOCAL_CORRECT + domain: ANY_COUNT, LOCAL_COUNT + domain: count}
        if tests and node.shared_test and node.num_test:
            known |= {LOCAL_OWN_CORRECT: ANY_COUNT, LOCAL_OWN_COUNT: Range(0, node.num_test)}
        return known


def _check(metrics: Mapping[str, Any]) -> None:
    """Refuse more correct predictions than there are images."""
    for name in metrics:
        if name.startswith(LOCAL_CORRECT):
            right_of(metrics, name, LOCAL_COUNT + name.removeprefix(LOCAL_CORRECT))
    right_of(metrics, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)


def lta(a: Matrix) -> float:
    r"""Local test accuracy: each client's model on its own test set.

    .. math:: \mathrm{LTA}=\frac1N\sum_na_{n\to n}

    Args:
        a: Accuracies, (N, N), float64; NaN where unknown.
    """
    return _mean(np.diagonal(a)[_trained(a)])


def ata_by_domain(a: Matrix, domain_of: Sequence[str]) -> dict[str, float]:
    r"""Average transfer accuracy of each source domain: its clients' models on all other domains' clients.

    .. math:: \mathrm{ATA}_q=\operatorname{mean}_{m\in C_q}\operatorname{mean}_{n\notin C_q}a_{m\to n}

    Args:
        a: Accuracies, (N, N), float64; NaN where unknown.
        domain_of: The domain of each client, N of them.

    Returns:
        ATA of each domain that has a client, in the order of the clients; NaN where no client of it trained.
    """
    names = np.array(domain_of)
    trained = _trained(a)
    ata = {}
    for q in dict.fromkeys(domain_of):
        own = names == q
        ata[q] = _mean([_mean(row[~own]) for row in a[own & trained]])
    return ata


def gata(a: Matrix, domain_of: Sequence[str]) -> float:
    r"""Global average transfer accuracy over Q domains, each with the same weight.

    .. math:: \mathrm{GATA}=\frac1Q\sum_q\mathrm{ATA}_q

    Args:
        a: Accuracies, (N, N), float64; NaN where unknown.
        domain_of: The domain of each client, N of them.
    """
    return _mean(list(ata_by_domain(a, domain_of).values()))


def gasa(a: Matrix, domain_of: Sequence[str]) -> float:
    r"""Global average source accuracy: each client's model on all clients of its own domain, itself included.

    .. math:: \mathrm{GASA}=\frac1N\sum_m\operatorname{mean}_{n\in C_{q(m)}}a_{m\to n}

    Args:
        a: Accuracies, (N, N), float64; NaN where unknown.
        domain_of: The domain of each client, N of them.
    """
    names = np.array(domain_of)
    return _mean([_mean(a[m, names == names[m]]) for m in np.flatnonzero(_trained(a))])


def cprr(a: Matrix, domain_of: Sequence[str]) -> float:
    r"""Cross-domain performance retention: what is left of the accuracy on other domains, in percent.

    .. math:: \mathrm{CPRR}=100\,\mathrm{GATA}/\mathrm{GASA}

    Args:
        a: Accuracies, (N, N), float64; NaN where unknown.
        domain_of: The domain of each client, N of them.
    """
    whole = gasa(a, domain_of)
    return 100 * gata(a, domain_of) / whole if whole else math.nan


def matrix_of(scores: ClientScores) -> tuple[Matrix, tuple[str, ...]]:
    """Return the matrix a, (N, N), in percent, and the domain of each of the N nodes.

    Nodes with whole test sets share the test set of their domain: a[m, n] is m's accuracy on n's domain. If the
    test set is divided among the domain's nodes, it is m's accuracy on all parts together, which does not change
    the means over a domain if the parts are equally large. A real node's test images, and those drawn for a node,
    belong to that node alone, so no other model was scored on them.
    """
    a = np.full((len(scores.nodes), len(scores.nodes)), np.nan)
    for m, source in enumerate(scores.nodes):
        accuracy = scores.accuracy.get(source.index, {})
        for n, target in enumerate(scores.nodes):
            if m == n or target.shared_test:
                a[m, n] = accuracy.get(target.domain, np.nan)
    return a, tuple(node.domain for node in scores.nodes)


def client_models(scores: ClientScores) -> dict[str, Any]:
    """Return one round's scores for ``metrics.jsonl``; None where unknown."""
    a, domain_of = matrix_of(scores)
    own = a.copy()
    for n, node in enumerate(scores.nodes):
        own[n, n] = scores.own.get(node.index, a[n, n])
    line = {
        "matrix": {str(index): dict(accuracy) for index, accuracy in scores.accuracy.items()},
        "lta": _known(lta(own)),
        "ata": {domain: _known(value) for domain, value in ata_by_domain(a, domain_of).items()},
        "gata": _known(gata(a, domain_of)),
        "gasa": _known(gasa(a, domain_of)),
        "cprr": _known(cprr(a, domain_of)),
    }
    return line | ({"own": {str(index): value for index, value in scores.own.items()}} if scores.own else {})


def _trained(a: Matrix) -> NDArray[np.bool_]:
    """Return a mask (N,) of the clients whose models were scored."""
    return np.asarray(~np.isnan(a).all(axis=1))


def _mean(values: Sequence[float] | Matrix) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
