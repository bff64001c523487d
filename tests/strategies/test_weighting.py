"""Rules of weights, for any method; F2DC's (Eqs 10 and 11) against loops, and against what they give on PACS."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refused
from scipy.special import expit
from support import federation

from fedshift_app.config.sections import AggregationConfig
from fedshift_core.errors import FederationError
from fedshift_core.params import Params
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update


def weights(given: list[Update], *, domains: int | None = None, **params: Any) -> list[float]:
    """Return the weights of a method without a rule of its own, by the run's.

    The nodes of the federation hold the domains of ``given``, or as many as ``domains`` says.
    """
    config = AggregationConfig(**{"weights": "domain-aware"} | params)
    strategy = DomainStrategy(federation(domains=tuple("abcd"), aggregation=config), Params(), lambda *result: None)
    strategy.roster = SimpleNamespace(num_domains=domains or len({u.node.domain for u in given}))  # type: ignore[assignment]
    return strategy.node_weights(given)


def update(domain: str, counts: list[int], index: int = 0) -> Update:
    node = Node(100 + index, index, domain, tuple(counts), 0, True, index)
    return Update(node, ArrayRecord(), {}, sum(counts), {})


def updates(*nodes: tuple[str, list[int]]) -> list[Update]:
    return [update(domain, counts, index) for index, (domain, counts) in enumerate(nodes)]


# --- the slow versions -----------------------------------------------------------------------------


def slow_weights(counts: list[list[int]], domains: int, alpha: float, beta: float, *, approximate: bool = False) -> Any:
    table = np.array(counts, np.float64)
    share = table.sum(axis=1) / table.sum()
    if approximate:
        parts = np.repeat(share[:, None], table.shape[1], axis=1)
    else:
        parts = table / np.where(table.sum(axis=0) > 0, table.sum(axis=0), np.nan)  # nobody's classes count nothing
    far = np.sqrt(np.nansum((parts - 1 / domains) ** 2, axis=1) / 2)
    scores = expit(alpha * share - beta * far)
    return scores / scores.sum()


# --- Eqs 10 and 11 ---------------------------------------------------------------------------------


@given(
    counts=hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.integers(0, 50)),
    letters=st.lists(st.sampled_from("abcd"), min_size=6, max_size=6),
    alpha=st.floats(0, 3),
    beta=st.floats(0, 3),
    approximate=st.booleans(),
    absent=st.integers(0, 3),
)
@settings(max_examples=100)
def test_weights_against_loops(
    counts: Any, letters: list[str], alpha: float, beta: float, approximate: bool, absent: int
) -> None:
    counts[~counts.any(axis=1), 0] = 1  # a node without images does not take part
    rows = counts.tolist()
    domains = len(set(letters[: len(rows)])) + absent  # of nodes that did not answer
    balance = "approximate" if approximate else "exact"
    given = updates(*zip(letters, rows, strict=False))
    result = weights(given, domains=domains, alpha=alpha, beta=beta, balance=balance)
    np.testing.assert_allclose(result, slow_weights(rows, domains, alpha, beta, approximate=approximate), rtol=1e-9)


def test_domains_are_the_federations_and_not_those_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    # Section 4.3: Q is the number of domains, 4 for PACS. Nodes hold four, those of two answer: G = 1/4.
    facts = federation(domains=tuple("abcde"), aggregation=AggregationConfig(weights="domain-aware"))
    server = DomainStrategy(facts, Params(), lambda *result: None)
    nodes = [update(domain, [1, 1, 1], index).node for index, domain in enumerate("abcda")]
    monkeypatch.setattr(Roster, "nodes", property(lambda self: nodes))  # e is held out: nobody holds it
    wanted = slow_weights([[4] * 3, [2] * 3], 4, 1.0, 0.4, approximate=True)  # as Eq. 10 is printed, by default
    given = updates(("a", [4, 4, 4]), ("b", [2, 2, 2]))
    np.testing.assert_allclose(server.node_weights(given), wanted, rtol=1e-12)
    assert not np.allclose(wanted, slow_weights([[4] * 3, [2] * 3], 2, 1.0, 0.4, approximate=True), rtol=1e-4)


# --- switches --------------------------------------------------------------------------------------


UNEVEN = (("a", [9, 1, 2]), ("a", [1, 1, 1]), ("b", [0, 6, 3]))


def test_samples_weighs_by_images_to_the_bit() -> None:
    given = updates(*UNEVEN)
    assert weights(given, weights="samples") == [12 / 24, 3 / 24, 9 / 24]


# --- other rules -----------------------------------------------------------------------------------


def test_a_method_keeps_its_own_rule_unless_the_run_has_another() -> None:
    class First(DomainStrategy):
        def weights(self, updates: list[Update]) -> list[float]:
            return [1.0] + [0.0] * (len(updates) - 1)

    given = updates(*UNEVEN)
    for rule, wanted in (("method", [1.0, 0.0, 0.0]), ("equal", [1 / 3] * 3)):
        result = federation(aggregation=AggregationConfig(weights=rule))  # type: ignore[arg-type]
        assert First(result, Params(), lambda *result: None).node_weights(given) == wanted


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ([0.25, 0.25, 0.25], 0.75),
        ([1.0, 1.0, 1.0], 3),
        ([0.5, 0.5, 1e-5], 1.00001),
        ([0.5, 0.5], "2 for 3"),
        ([1.5, -0.5, 0.0], -0.5),
        ([math.nan, 0.5, 0.5], "nan"),
        ([math.inf, 0.5, 0.5], "inf"),
    ],
)
def test_weights_that_make_no_average_are_reported_with_the_methods_name(found: list[float], named: object) -> None:
    class Wrong(DomainStrategy):
        def weights(self, updates: list[Update]) -> list[float]:
            return found

    with refused(FederationError, "'mine'", named):
        Wrong(federation(method="mine"), Params(), lambda *given: None).node_weights(updates(*UNEVEN))


# --- weights that are none -------------------------------------------------------------------------
