"""Scores of client models (FedCode) and the spread over seeds.

FedCode: the metrics are those of its section on experiments. a[m, n] is the accuracy of client m's model
right after local training of the round (its own private parts, before averaging) on client n's test set;
C_q are the clients of domain q, N their number over all domains.

A client whose row is unknown altogether (it did not train, or has no test images) is left out. What
needs any other unknown entry is unknown itself, NaN: a mean over a part would be another quantity.

Deviations: where only some clients train in a round, m runs over those, n over all.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.errors import ConfigError
from fedshift_core.options.scoring import LAST_ROUNDS
from strategies.federation.evaluation import ClientScores
from strategies.federation.roster import Node

Matrix = NDArray[np.float64]
#: What results of several seeds must have in common; their domains too.
SAME_OVER_SEEDS = ("method", "dataset", "rounds", "model", "bn")


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
    found = {}
    for q in dict.fromkeys(domain_of):
        own = names == q
        found[q] = _mean([_mean(row[~own]) for row in a[own & trained]])
    return found


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
    """Return a, (N, N), in percent, and the domain of each of the N nodes.

    Nodes that see whole test sets share that of their domain: a[m, n] is m's accuracy on n's domain. Where
    that is divided among the domain's nodes, it is m's accuracy on all parts together, which leaves the
    means over a domain as they are if parts are equally large. The test images of a real node, and those
    drawn for a node, are its own, so that nobody else's model was scored on them.
    """
    a = np.full((len(scores.nodes), len(scores.nodes)), np.nan)
    for m, source in enumerate(scores.nodes):
        told = scores.accuracy.get(source.index, {})
        for n, target in enumerate(scores.nodes):
            if m == n or target.shared_test:
                a[m, n] = told.get(target.domain, np.nan)
    return a, tuple(node.domain for node in scores.nodes)


def client_models(scores: ClientScores) -> dict[str, Any]:
    """Return one round's scores as they stand in ``metrics.jsonl``; None where unknown."""
    a, domain_of = matrix_of(scores)
    own = a.copy()
    for n, node in enumerate(scores.nodes):
        own[n, n] = scores.own.get(node.index, a[n, n])
    return {
        "matrix": {str(index): dict(told) for index, told in scores.accuracy.items()},
        "lta": _known(lta(own)),
        "ata": {domain: _known(value) for domain, value in ata_by_domain(a, domain_of).items()},
        "gata": _known(gata(a, domain_of)),
        "gasa": _known(gasa(a, domain_of)),
        "cprr": _known(cprr(a, domain_of)),
    }


def mean_client_models(rounds: Sequence[ClientScores]) -> dict[str, Any]:
    """Average over the last five of ``rounds``, one at least, as it stands in ``results.json``.

    CPRR is the ratio of the averages, as in the paper's tables. ``why_missing`` is there where a score is not.
    """
    last = rounds[-LAST_ROUNDS:]
    each = [client_models(scores) for scores in last]
    nodes = last[-1].nodes
    found: dict[str, Any] = {"averaged_rounds": len(each), "matrix": _mean_matrix(last)}
    found["by_domain"] = _by_domain(found["matrix"])
    found["lta"] = mean(one["lta"] for one in each)
    found["ata"] = {q: mean(one["ata"].get(q) for one in each) for q in each[-1]["ata"]}
    found |= {name: mean(one[name] for one in each) for name in ("gata", "gasa")}
    unknown = found["gata"] is None or found["gasa"] is None
    found["cprr"] = None if unknown else _known(_ratio(found["gata"], found["gasa"]))
    if None in (found["lta"], found["gata"], found["gasa"], *found["ata"].values()):
        found["why_missing"] = _why_missing(nodes)
    return found


def over_seeds(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and spread (sample standard deviation, ddof=1) over runs that differ in their seed only.

    Args:
        results: Contents of ``results.json``.

    Returns:
        ``seeds``, and ``mean`` and ``std`` of each of ``domains`` and of ``avg`` in percent, taken over
        the seeds that know it; None where none does, and for the spread of fewer than two.

    Raises:
        ConfigError: If there is none, they are not of one kind, or a seed comes twice.
    """
    if not results:
        raise ConfigError("no results to average over seeds")
    kinds = [{key: one[key] for key in SAME_OVER_SEEDS} | {"domains": list(one["domains"])} for one in results]
    differing = [key for key in kinds[0] if any(kind[key] != kinds[0][key] for kind in kinds)]
    if differing:
        told = "; ".join(f"{key}: {' and '.join(_different(kind[key] for kind in kinds))}" for key in differing)
        raise ConfigError(f"these runs differ in more than the seed: {told}")
    seeds = [one["seed"] for one in results]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"a seed comes twice: {', '.join(str(seed) for seed in seeds)}")
    return {
        "seeds": seeds,
        "domains": {name: _spread([one["domains"][name] for one in results]) for name in kinds[0]["domains"]},
        "avg": _spread([one["avg"] for one in results]),
    }


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def worst(domains: Mapping[str, float | None], *, lowest: bool = True) -> str | None:
    """Return the domain with the lowest number that is known, or the highest; the first of several.

    None where there is one domain only, or none is known.
    """
    known = {name: value for name, value in domains.items() if value is not None}
    if len(domains) < 2 or not known:
        return None
    return (min if lowest else max)(known, key=known.__getitem__)


def _trained(a: Matrix) -> NDArray[np.bool_]:
    """Return which clients' models were scored at all, (N,)."""
    return np.asarray(~np.isnan(a).all(axis=1))


def _mean(values: Sequence[float] | Matrix) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _ratio(part: float, whole: float) -> float:
    return 100 * part / whole if whole else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mean_matrix(rounds: Sequence[ClientScores]) -> dict[str, dict[str, float]]:
    """Average each node's accuracy on each domain over the rounds in which it was told."""
    told: dict[int, dict[str, list[float]]] = {}
    for scores in rounds:
        for index, accuracy in scores.accuracy.items():
            for domain, value in accuracy.items():
                told.setdefault(index, {}).setdefault(domain, []).append(value)
    return {str(i): {d: statistics.fmean(v) for d, v in told[i].items()} for i in sorted(told)}


def _by_domain(matrix: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Return the mean over clients on each domain (FedSeProto, Table 3: the heterogeneous setting)."""
    domains = dict.fromkeys(domain for told in matrix.values() for domain in told)
    return {domain: mean(told.get(domain) for told in matrix.values()) for domain in domains}


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


def _different(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values))


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    return {"mean": mean(known), "std": statistics.stdev(known) if len(known) > 1 else None}
