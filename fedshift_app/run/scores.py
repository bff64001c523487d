"""Scores of client models (FedCode).

FedCode: the metrics are those of its section on experiments. a[m, n] is the accuracy of client m's model
right after local training of the round (its own private parts, before averaging) on client n's test set;
C_q are the clients of domain q, N is their number over all domains.

A client whose whole row is unknown (it did not train, or has no test images) is left out. A score that
needs any other unknown entry is NaN, as a mean over a part would be another quantity.

Deviations: where only some clients train in a round, m runs over those, n over all.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.options.scoring import LAST_ROUNDS
from strategies.federation.evaluation import ClientScores
from strategies.federation.roster import Node

Matrix = NDArray[np.float64]


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
    return _ratio(gata(a, domain_of), gasa(a, domain_of))


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
    return {
        "matrix": {str(index): dict(accuracy) for index, accuracy in scores.accuracy.items()},
        "lta": _known(lta(own)),
        "ata": {domain: _known(value) for domain, value in ata_by_domain(a, domain_of).items()},
        "gata": _known(gata(a, domain_of)),
        "gasa": _known(gasa(a, domain_of)),
        "cprr": _known(cprr(a, domain_of)),
    }


def mean_client_models(rounds: Sequence[ClientScores]) -> dict[str, Any]:
    """Return the mean scores over the last five of ``rounds`` (at least one) for ``results.json``.

    CPRR is the ratio of the averages, as in the paper's tables. ``why_missing`` is present if a score is missing.
    """
    last = rounds[-LAST_ROUNDS:]
    by_round = [client_models(scores) for scores in last]
    nodes = last[-1].nodes
    means: dict[str, Any] = {"averaged_rounds": len(by_round), "matrix": _mean_matrix(last)}
    means["by_domain"] = _by_domain(means["matrix"])
    means["lta"] = mean(round_scores["lta"] for round_scores in by_round)
    means["ata"] = {q: mean(round_scores["ata"].get(q) for round_scores in by_round) for q in by_round[-1]["ata"]}
    means |= {name: mean(round_scores[name] for round_scores in by_round) for name in ("gata", "gasa")}
    unknown = means["gata"] is None or means["gasa"] is None
    means["cprr"] = None if unknown else _known(_ratio(means["gata"], means["gasa"]))
    if None in (means["lta"], means["gata"], means["gasa"], *means["ata"].values()):
        means["why_missing"] = _why_missing(nodes)
    return means


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def worst(domains: Mapping[str, float | None], *, lowest: bool = True) -> str | None:
    """Return the domain with the lowest known number, or the highest; the first of several.

    None if there is only one domain, or no number is known.
    """
    known = {name: value for name, value in domains.items() if value is not None}
    if len(domains) < 2 or not known:
        return None
    return (min if lowest else max)(known, key=known.__getitem__)


def _trained(a: Matrix) -> NDArray[np.bool_]:
    """Return a mask (N,) of the clients whose models were scored."""
    return np.asarray(~np.isnan(a).all(axis=1))


def _mean(values: Sequence[float] | Matrix) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _ratio(part: float, whole: float) -> float:
    return 100 * part / whole if whole else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mean_matrix(rounds: Sequence[ClientScores]) -> dict[str, dict[str, float]]:
    """Return each node's mean accuracy on each domain over the rounds that have it."""
    values_of: dict[int, dict[str, list[float]]] = {}
    for scores in rounds:
        for index, accuracy in scores.accuracy.items():
            for domain, value in accuracy.items():
                values_of.setdefault(index, {}).setdefault(domain, []).append(value)
    return {str(i): {d: statistics.fmean(v) for d, v in values_of[i].items()} for i in sorted(values_of)}


def _by_domain(matrix: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Return the mean over clients on each domain (FedSeProto, Table 3: the heterogeneous setting)."""
    domains = dict.fromkeys(domain for accuracy in matrix.values() for domain in accuracy)
    return {domain: mean(accuracy.get(domain) for accuracy in matrix.values()) for domain in domains}


def _why_missing(nodes: Sequence[Node]) -> str:
    reasons = []
    if not all(node.shared_test for node in nodes):
        reasons.append("nodes have test images of their own only, so no model was scored on another node's")
    untested = ", ".join(str(node) for node in nodes if not node.num_test)
    if untested:
        reasons.append(f"without test images: {untested}")
    if len({node.domain for node in nodes}) == 1:
        reasons.append("all nodes hold one domain")
    return "; ".join(reasons) or "no node of some domain trained and scored its model"
