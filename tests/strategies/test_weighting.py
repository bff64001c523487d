"""Rules of weights, for any method; F2DC's (Eqs 10 and 11) against loops, and against what they give on PACS."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import federation, refusal_of

from fedshift_app.config.sections import AggregationConfig
from fedshift_core.errors import FederationError
from fedshift_core.params import Params
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.f2dc import approximate_discrepancy, discrepancy, domain_aware
from fedshift_strategies.weighting import check_weights

Counts = NDArray[np.float64]


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


def slow_discrepancy(counts: list[list[int]], domains: int, *, approximate: bool = False) -> list[float]:
    total = sum(sum(row) for row in counts)
    collected = []
    for row in counts:
        squares = 0.0
        for c in range(len(row)):
            of_class = sum(other[c] for other in counts)
            if approximate:
                squares += (sum(row) / total - 1 / domains) ** 2
            elif of_class > 0:
                squares += (row[c] / of_class - 1 / domains) ** 2
        collected.append(math.sqrt(squares / 2))
    return collected


def slow_weights(
    counts: list[list[int]], domains: int, alpha: float, beta: float, *, approximate: bool = False
) -> list[float]:
    total = sum(sum(row) for row in counts)
    d = slow_discrepancy(counts, domains, approximate=approximate)
    scores = []
    for row, far in zip(counts, d, strict=True):
        scores.append(1 / (1 + math.exp(-(alpha * sum(row) / total - beta * far))))
    return [score / sum(scores) for score in scores]


# --- Eqs 10 and 11 ---------------------------------------------------------------------------------


def test_discrepancy_by_hand() -> None:
    # Two domains, so G = 1/2. Class 0: 3 and 1 of 4, class 1: 0 and 2 of 2; class 2 is nobody's.
    # Node 0: (3/4 - 1/2)^2 + (0 - 1/2)^2 = 5/16, halved 5/32. Node 1: 1/16 + 1/4, the same.
    d = discrepancy(np.array([[3.0, 0, 0], [1, 2, 0]]), 2)
    np.testing.assert_allclose(d, [math.sqrt(5 / 32)] * 2)
    # As printed, sizes 3 and 3 of 6 are a half each: no discrepancy, whatever the classes.
    np.testing.assert_array_equal(approximate_discrepancy(np.array([3.0, 3.0]), 3, 2), [0.0, 0.0])


def test_weights_by_hand() -> None:
    # Equal nodes of two domains: shares 1/2, discrepancy 0, so equal weights whatever alpha and beta.
    assert weights(updates(("a", [2, 2, 2]), ("b", [2, 2, 2]))) == [0.5, 0.5]
    # alpha = ln 3 and beta = 0: sizes 1 and 0 of 1 score 3/4 and 1/2.
    p = domain_aware(np.array([1.0, 0.0]), np.array([5.0, 7.0]), math.log(3), 0.0)
    np.testing.assert_allclose(p, [0.6, 0.4])


PACS = {  # 30 % of the training part of a domain on each node: 1,336, 1,640, 1,876 and 3,144 images
    "photo": (2, 401),
    "art_painting": (3, 492),
    "cartoon": (2, 563),
    "sketch": (3, 943),
}


@pytest.mark.parametrize("balance", ["exact", "approximate"])
def test_weights_on_pacs_are_nearly_uniform(balance: str) -> None:
    # Methods A7. Every class holds a seventh of each node, up to the remainder.
    nodes = []
    for domain, (number, size) in PACS.items():
        counts = [size // 7 + (1 if c < size % 7 else 0) for c in range(7)]
        nodes += [(domain, counts)] * number
    given = updates(*nodes)
    result = weights(given, balance=balance)
    assert sum(result) == pytest.approx(1)
    by_domain = {u.node.domain: (weight, u.num_examples / 6233) for u, weight in zip(given, result, strict=True)}
    assert {name: round(weight, 3) for name, (weight, _) in by_domain.items()} == {
        "photo": 0.097, "art_painting": 0.098, "cartoon": 0.099, "sketch": 0.105,
    }  # fmt: skip
    assert by_domain["sketch"][0] == pytest.approx(0.1045, abs=5e-5)
    assert [round(share, 3) for _, share in by_domain.values()] == [0.064, 0.079, 0.09, 0.151]


@given(
    counts=st.integers(1, 6).flatmap(
        lambda k: st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=k, max_size=k)
    ),
    letters=st.lists(st.sampled_from("abcd"), min_size=6, max_size=6),
    alpha=st.floats(0, 3),
    beta=st.floats(0, 3),
    approximate=st.booleans(),
    absent=st.integers(0, 3),
)
@settings(max_examples=100)
def test_weights_against_loops(
    counts: list[list[int]], letters: list[str], alpha: float, beta: float, approximate: bool, absent: int
) -> None:
    counts = [row if sum(row) else [1, 0, 0] for row in counts]  # a node without images does not take part
    given = updates(*zip(letters, counts, strict=False))
    domains = len(set(letters[: len(counts)])) + absent  # of nodes that did not answer
    balance = "approximate" if approximate else "exact"
    result = weights(given, domains=domains, alpha=alpha, beta=beta, balance=balance)
    np.testing.assert_allclose(result, slow_weights(counts, domains, alpha, beta, approximate=approximate), rtol=1e-9)


def test_approximation_is_exact_where_nodes_have_the_classes_in_equal_parts() -> None:
    given = updates(("a", [2, 4, 6]), ("a", [1, 2, 3]), ("b", [5, 10, 15]))
    exact, printed = (weights(given, balance=balance) for balance in ("exact", "approximate"))
    np.testing.assert_allclose(exact, printed, rtol=1e-12)


def test_approximation_has_the_papers_closed_form() -> None:
    # sqrt(C / 2) |n_k / N - 1 / Q|, with sizes 12 and 4 of 16, C = 3, Q = 2: |3/4 - 1/2| and |1/4 - 1/2|.
    d = approximate_discrepancy(np.array([12.0, 4.0]), 3, 2)
    np.testing.assert_allclose(d, [math.sqrt(1.5) / 4] * 2)
    np.testing.assert_allclose(d, discrepancy(np.array([[12.0] * 3, [4.0] * 3]), 2))


def test_the_default_is_as_the_paper_prints_it() -> None:
    # Eq. 10: B_k^c = n_k / N, whoever holds which class, and a class that nobody holds counts too.
    counts = [[9, 1, 2, 0], [1, 1, 1, 0], [0, 6, 3, 0]]
    given = updates(*zip("aab", counts, strict=True))
    printed = slow_weights(counts, 2, 1.0, 0.4, approximate=True)
    np.testing.assert_allclose(weights(given), printed, rtol=1e-12)
    assert not np.allclose(weights(given, balance="exact"), printed, rtol=1e-4)


@pytest.mark.parametrize("balance", ["exact", "approximate"])
def test_domains_are_the_federations_and_not_those_of_the_round(balance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Section 4.3: Q is the number of domains, 4 for PACS. Nodes hold four, those of two answer: G = 1/4.
    result = federation(domains=tuple("abcde"), aggregation=AggregationConfig(weights="domain-aware", balance=balance))  # type: ignore[arg-type]
    server = DomainStrategy(result, Params(), lambda *result: None)
    nodes = [update(domain, [1, 1, 1], index).node for index, domain in enumerate("abcda")]
    monkeypatch.setattr(Roster, "nodes", property(lambda self: nodes))  # e is held out: nobody holds it
    wanted = slow_weights([[4] * 3, [2] * 3], 4, 1.0, 0.4, approximate=balance == "approximate")
    given = updates(("a", [4, 4, 4]), ("b", [2, 2, 2]))
    np.testing.assert_allclose(server.node_weights(given), wanted, rtol=1e-12)
    assert not np.allclose(wanted, slow_weights([[4] * 3, [2] * 3], 2, 1.0, 0.4), rtol=1e-4)


@pytest.mark.parametrize("balance", ["exact", "approximate"])
def test_one_node_weighs_all(balance: str) -> None:
    assert weights(updates(("a", [0, 3, 0])), balance=balance) == [1.0]


def test_class_that_nobody_holds_changes_nothing() -> None:
    # Methods A8: whatever Q is, the empty class adds nothing to the sum.
    with_it = discrepancy(np.array([[3.0, 1, 0], [1, 1, 0]]), 3)
    np.testing.assert_array_equal(with_it, discrepancy(np.array([[3.0, 1], [1, 1]]), 3))
    assert np.isfinite(with_it).all()


# --- switches --------------------------------------------------------------------------------------


UNEVEN = (("a", [9, 1, 2]), ("a", [1, 1, 1]), ("b", [0, 6, 3]))


def test_samples_weighs_by_images_to_the_bit() -> None:
    given = updates(*UNEVEN)
    assert weights(given, weights="samples") == [12 / 24, 3 / 24, 9 / 24]


@pytest.mark.parametrize("params", [{"alpha": 2.0}, {"beta": 2.0}, {"balance": "exact"}])
def test_switches_change_the_weights(params: dict[str, Any]) -> None:
    given = updates(*UNEVEN)
    assert not np.allclose(weights(given, **params), weights(given), rtol=1e-4)
    assert weights(given, **params | {"weights": "samples"}) == weights(given, weights="samples")


def test_without_alpha_and_beta_all_nodes_weigh_the_same() -> None:
    np.testing.assert_allclose(weights(updates(*UNEVEN), alpha=0.0, beta=0.0), [1 / 3] * 3)


# --- other rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(10, 30, 60), (5,), (1, 1)])
def test_equal_gives_each_node_the_same(sizes: tuple[int, ...]) -> None:
    given = [update("ab"[i % 2], [size, 0, 0], i) for i, size in enumerate(sizes)]
    assert weights(given, weights="equal") == [1 / len(sizes)] * len(sizes)


def test_a_method_keeps_its_own_rule_unless_the_run_has_another() -> None:
    class First(DomainStrategy):
        def weights(self, updates: list[Update]) -> list[float]:
            return [1.0] + [0.0] * (len(updates) - 1)

    given = updates(*UNEVEN)
    for rule, wanted in (("method", [1.0, 0.0, 0.0]), ("equal", [1 / 3] * 3)):
        result = federation(aggregation=AggregationConfig(weights=rule))  # type: ignore[arg-type]
        assert First(result, Params(), lambda *result: None).node_weights(given) == wanted


# --- weights that are none -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([0.25, 0.25, 0.25], "sum to 0.75, expected 1"),
        ([1.0, 1.0, 1.0], "sum to 3, expected 1"),
        ([0.5, 0.5], ": 2 for 3 nodes, expected one for each"),
        ([], ": 0 for 3 nodes"),
        ([1.5, -0.5, 0.0], ": found -0.5, expected numbers from 0 to 1"),
        ([math.nan, 0.5, 0.5], ": found nan"),
        ([math.inf, 0.5, 0.5], ": found inf"),
    ],
)
def test_weights_that_make_no_average_are_reported_with_the_methods_name(found: list[float], reason: str) -> None:
    class Wrong(DomainStrategy):
        def weights(self, updates: list[Update]) -> list[float]:
            return found

    server = Wrong(federation(method="mine"), Params(), lambda *given: None)
    said = refusal_of(FederationError, server.node_weights, updates(*UNEVEN))
    assert said.startswith("weights of the method 'mine'")
    assert reason in said
    equal = federation(method="mine", aggregation=AggregationConfig(weights="equal"))
    assert Wrong(equal, Params(), lambda *given: None).node_weights(updates(*UNEVEN)) == [1 / 3] * 3


def test_weights_that_sum_to_one_but_for_rounding_pass() -> None:
    third = float(np.float32(1 / 3))
    assert check_weights([third] * 3, 3, "x") == [third] * 3
    with pytest.raises(FederationError, match=r"weights of x sum to 1\.00001, expected 1"):
        check_weights([0.5, 0.50001], 2, "x")


@pytest.mark.parametrize("rule", ["method", "samples", "equal", "domain-aware"])
@given(sizes=st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3).filter(any), min_size=1, max_size=60))
def test_all_of_our_weights_pass(rule: str, sizes: list[list[int]]) -> None:
    given = updates(*(("abcd"[i % 4], counts) for i, counts in enumerate(sizes)))
    assert len(weights(given, weights=rule)) == len(sizes)
