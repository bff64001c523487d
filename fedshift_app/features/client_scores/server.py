"""Scores of the nodes' own models right after local training. Each scores the domains whose test images it sees.

FedCode: the metrics are those of its section on experiments. a[m, n] is the accuracy of client m's model
right after local training of the round (its own private parts, before averaging) on client n's test set;
C_q are the clients of domain q, N is their number over all domains.

A client whose whole row is unknown (it did not train, or has no test images) is left out. A score that
needs any other unknown entry is NaN, as a mean over a part would be another quantity.

Deviations: where only some clients train in a round, m runs over those, n over all.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_app.features.client_scores.show import KEY
from fedshift_core.limits import Refused
from fedshift_core.wire.names import LOCAL_CORRECT, LOCAL_COUNT, LOCAL_DOMAINS, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT
from fedshift_strategies.features.base import Asked, Known, Node, Range, ServerFeature, Steps, Training, Update
from fedshift_strategies.federation.checks import ANY_COUNT, ANY_NUMBER, right_of

Matrix = NDArray[np.float64]
#: Accuracy in percent by index of the node: by domain, and on its own test set where that is a part of its domain's.
Accuracies = tuple[dict[int, dict[str, float]], dict[int, float]]


class ClientModels(ServerFeature):
    """Has nodes score their own models in the rounds of ``evaluate.client_models``."""

    def on_round(self, training: Training) -> Steps:
        """Ask nodes for the scores of their own models, and write what they say."""
        if not (training.scored and self.run.config.evaluate.scores_clients(training.server_round, self.run.rounds)):
            yield None
            return
        seen = {} if self.run.own_tests else {node.domain: node.num_test for node in training.present}
        yield Asked(
            lambda node: {LOCAL_DOMAINS: self._domains(node)},
            bounds=lambda node: self._bounds(node, seen),
            check=_check,
        )
        # With ``shift.label_mix=own`` none was scored on what was drawn for another.
        nodes = [replace(node, shared_test=node.shared_test and not self.run.own_tests) for node in training.all_nodes]
        training.result.shown[KEY] = client_models(nodes, *self._read(training.updates, training.leave_out))

    def _domains(self, node: Node) -> list[str]:
        """Return the domains on which a node scores its own model: all whose test images it sees."""
        own = [domain for domain in node.domains if node.tests_of(domain)]
        return list(self.run.domains) if node.shared_test else own

    def _bounds(self, node: Node, seen: Mapping[str, int]) -> Known:
        """Return the numbers of each domain that the node was asked for, and of its own test set.

        Args:
            node: The node.
            seen: Test images of domains, as their own nodes see them.
        """
        known: dict[str, Range] = {}
        for domain in (domains := self._domains(node)):
            images = node.tests_of(domain) or seen.get(domain)
            known[LOCAL_CORRECT + domain] = ANY_NUMBER
            known[LOCAL_COUNT + domain] = ANY_COUNT if images is None else Range(images, images)
        if domains and node.shared_test and node.num_test:
            known |= {LOCAL_OWN_CORRECT: ANY_NUMBER, LOCAL_OWN_COUNT: Range(0, node.num_test)}
        return known

    def _read(self, updates: Sequence[Update], leave_out: Callable[[Node, str], None]) -> Accuracies:
        """Return what nodes say of their own models; those whose scores cannot be used are left out."""
        accuracy: dict[int, dict[str, float]] = {}
        own: dict[int, float] = {}
        for update in updates:
            node, said = update.node, update.metrics
            try:
                part, of_all = right_of(said, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)
                accuracy[node.index] = {domain: _of_domain(said, domain) for domain in self._domains(node)}
                own |= {node.index: 100 * part / of_all} if of_all else {}
            except Refused as refused:
                leave_out(node, f"could not score its own model: {refused}")
        return accuracy, own


def _of_domain(said: Mapping[str, float], domain: str) -> float:
    correct, count = right_of(said, LOCAL_CORRECT + domain, LOCAL_COUNT + domain)
    if not count:
        raise Refused(f"no numbers for domain {domain!r}")
    return 100 * correct / count


def _check(metrics: Mapping[str, Any]) -> None:
    """Refuse more correct predictions than there are images."""
    for name in metrics:
        if name.startswith(LOCAL_CORRECT):
            right_of(metrics, name, LOCAL_COUNT + name.removeprefix(LOCAL_CORRECT))
    right_of(metrics, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)


def scores(a: Matrix, domain_of: Sequence[str]) -> dict[str, Any]:
    r"""Return FedCode's scores; NaN where an entry that one needs is unknown.

    Local test accuracy, each client's model on its own test set; average transfer accuracy of each source domain, its
    clients' models on all other domains' clients, and its mean over domains; global average source accuracy, each
    client's model on all clients of its own domain; cross-domain performance retention, in percent.

    .. math::
        \mathrm{LTA}=\frac1N\sum_na_{n\to n},\quad
        \mathrm{ATA}_q=\operatorname{mean}_{m\in C_q}\operatorname{mean}_{n\notin C_q}a_{m\to n},\quad
        \mathrm{GATA}=\frac1Q\sum_q\mathrm{ATA}_q,\quad
        \mathrm{GASA}=\frac1N\sum_m\operatorname{mean}_{n\in C_{q(m)}}a_{m\to n},\quad
        \mathrm{CPRR}=100\,\mathrm{GATA}/\mathrm{GASA}

    Args:
        a: Accuracies, (N, N), float64; NaN where unknown.
        domain_of: The domain of each client, N of them.
    """
    trained, names = ~np.isnan(a).all(axis=1), np.array(domain_of)
    ata = {q: _mean(_mean(row[names != q]) for row in a[(names == q) & trained]) for q in dict.fromkeys(domain_of)}
    gata = _mean(ata.values())
    gasa = _mean(_mean(a[m, names == names[m]]) for m in np.flatnonzero(trained))
    cprr = 100 * gata / gasa if gasa else math.nan
    return {"lta": _mean(np.diagonal(a)[trained]), "ata": ata, "gata": gata, "gasa": gasa, "cprr": cprr}


def matrix_of(nodes: Sequence[Node], accuracy: Mapping[int, Mapping[str, float]]) -> Matrix:
    """Return the matrix a, (N, N), in percent.

    Nodes with whole test sets share the test set of their domain: a[m, n] is m's accuracy on n's domain. If the
    test set is divided among the domain's nodes, it is m's accuracy on all parts together, which does not change
    the means over a domain if the parts are equally large. A real node's test images, and those drawn for a node,
    belong to that node alone, so no other model was scored on them.

    Args:
        nodes: All nodes of the federation, in the order of their index.
        accuracy: By index of the node and by domain; only what was reported.
    """
    a = np.full((len(nodes), len(nodes)), np.nan)
    for m, source in enumerate(nodes):
        for n, target in enumerate(nodes):
            if m == n or target.shared_test:
                a[m, n] = accuracy.get(source.index, {}).get(target.domain, np.nan)
    return a


def client_models(
    nodes: Sequence[Node], accuracy: Mapping[int, Mapping[str, float]], own: Mapping[int, float]
) -> dict[str, Any]:
    """Return one round's scores for ``metrics.jsonl``; None where unknown.

    Args:
        nodes: As for :func:`matrix_of`.
        accuracy: Likewise.
        own: Accuracy on the node's own test set, by index, where that is only a part of its domain's.
    """
    a, domain_of = matrix_of(nodes, accuracy), [node.domain for node in nodes]
    of_all, of_parts = scores(a, domain_of), a.copy()
    for n, node in enumerate(nodes):
        of_parts[n, n] = own.get(node.index, a[n, n])
    line = {
        "matrix": {str(index): dict(of_node) for index, of_node in accuracy.items()},
        "lta": _known(scores(of_parts, domain_of)["lta"]),
        "ata": {domain: _known(value) for domain, value in of_all["ata"].items()},
        **{name: _known(of_all[name]) for name in ("gata", "gasa", "cprr")},
    }
    return line | ({"own": {str(index): value for index, value in own.items()}} if own else {})


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return float(np.mean(numbers)) if numbers else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
