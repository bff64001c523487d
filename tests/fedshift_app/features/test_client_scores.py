"""Scores of client models against slow loops and by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import node

from fedshift_app.features.client_scores.server import Matrix, client_models, matrix_of
from fedshift_app.features.client_scores.server import scores as fast
from fedshift_app.features.client_scores.show import mean_client_models
from fedshift_strategies.federation.roster import Node

NAN = math.nan


def matrix(seed: int, n: int) -> Matrix:
    return np.random.default_rng(seed).uniform(1, 100, size=(n, n))


def slow(a: Matrix, domain_of: tuple[str, ...]) -> dict[str, Any]:
    """The definitions of FedCode, word for word, over the clients that have a row."""
    domains = np.array(domain_of)
    trained = ~np.isnan(a).all(axis=1)
    at_home = domains[:, None] == domains
    ata = {}
    for q in dict.fromkeys(domain_of):
        rows = a[trained & (domains == q)][:, domains != q]
        ata[q] = rows.mean() if len(rows) else NAN
    source = np.mean([a[m][at_home[m]].mean() for m in np.flatnonzero(trained)])
    transfer = sum(ata.values()) / len(ata)
    own = a.diagonal()[trained].mean()
    return {"lta": own, "ata": ata, "gata": transfer, "gasa": source, "cprr": 100 * transfer / source}


def alike(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[key] == pytest.approx(expected[key], nan_ok=True) for key in expected
    )


# --- the definitions --------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    clients=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=2, max_size=8),
)
def test_against_loops(seed: int, clients: list[tuple[str, bool]]) -> None:
    """A client that did not train is left out as a source and stays a target."""
    names, a = tuple(domain for domain, _ in clients), matrix(seed, len(clients))
    a[[not trained for _, trained in clients]] = NAN
    if len(set(names)) == 1 or np.isnan(a).all():
        result = fast(a, names)
        assert math.isnan(result["gata"]) and math.isnan(result["cprr"])
    else:
        assert alike(fast(a, names), slow(a, names))


# --- from nodes to the matrix, and over rounds ------------------------------------------------------------


def nodes(*domains: str, shared: bool = True, num_test: int = 9) -> tuple[Node, ...]:
    return tuple(node(i, (5,), domain, num_test, shared_test=shared) for i, domain in enumerate(domains))


def test_nodes_share_their_domains_test_set_and_those_of_real_nodes_are_their_own() -> None:
    shared = matrix_of(nodes("a", "a", "b"), {0: {"a": 90.0, "b": 40.0}, 2: {"a": 30.0, "b": 80.0}})
    np.testing.assert_array_equal(shared, [[90, 90, 40], [NAN, NAN, NAN], [30, 30, 80]])
    own = matrix_of(nodes("a", "a", "b", shared=False), {0: {"a": 90.0}, 1: {"a": 70.0}, 2: {"b": 80.0}})
    np.testing.assert_array_equal(own, [[90, NAN, NAN], [NAN, 70, NAN], [NAN, NAN, 80]])


Fields = dict[int, dict[str, float]]


def mean_of(rounds: Sequence[tuple[tuple[Node, ...], Fields]]) -> dict[str, Any]:
    return mean_client_models([client_models(every, fields, {}) for every, fields in rounds])


def test_what_a_deployment_cannot_know() -> None:
    """Real nodes score their own domains: the mean over those would be that of other models on each."""
    result = mean_of([(nodes("a", "a", shared=False), {0: {"a": 90.0}, 1: {"a": 70.0}})])
    assert (result["lta"], result["by_domain"]) == (80, {"a": 80})
    assert [result[key] for key in ("ata", "gata", "gasa", "cprr")] == [{"a": None}, None, None, None]
    apart = mean_of([(nodes("a", "b", shared=False), {0: {"a": 90.0}, 1: {"b": 50.0}})])
    assert apart["by_domain"] == {"a": None, "b": None}
    none = mean_of([(nodes("a", "b", shared=False, num_test=0), {0: {}, 1: {}})])
    assert none["lta"] is None
