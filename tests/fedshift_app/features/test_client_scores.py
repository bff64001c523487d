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

DOMAINS = ("photo", "photo", "sketch", "photo", "art", "sketch")
NAN = math.nan


def matrix(seed: int, n: int = len(DOMAINS)) -> Matrix:
    return np.random.default_rng(seed).uniform(1, 100, size=(n, n))


def slow(a: Matrix, domain_of: tuple[str, ...]) -> dict[str, Any]:
    """The definitions of FedCode, word for word, over the clients that have a row."""
    everyone = range(len(domain_of))
    trained = [m for m in everyone if not all(math.isnan(v) for v in a[m])]
    ata = {}
    for q in dict.fromkeys(domain_of):
        of_q = [m for m in trained if domain_of[m] == q]
        rows = [[a[m][n] for n in everyone if domain_of[n] != q] for m in of_q]
        means = [sum(row) / len(row) for row in rows]
        ata[q] = sum(means) / len(means)
    own = [[a[m][n] for n in everyone if domain_of[n] == domain_of[m]] for m in trained]
    source = sum(sum(row) / len(row) for row in own) / len(trained)
    transfer = sum(ata.values()) / len(ata)
    return {
        "lta": sum(a[m][m] for m in trained) / len(trained),
        "ata": ata,
        "gata": transfer,
        "gasa": source,
        "cprr": 100 * transfer / source,
    }


def alike(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    plain = {key: value for key, value in expected.items() if key != "ata"}
    return found["ata"] == pytest.approx(expected["ata"]) and all(found[k] == pytest.approx(plain[k]) for k in plain)


# --- the definitions --------------------------------------------------------------------------------------


def test_by_hand() -> None:
    """Clients 0 and 1 hold photo, 2 holds sketch.

    LTA = (90 + 70 + 80) / 3 = 80.
    ATA: photo (40 + 20) / 2 = 30; sketch, one client, (10 + 30) / 2 = 20. GATA = (30 + 20) / 2 = 25.
    GASA: (90 + 80) / 2 = 85, (60 + 70) / 2 = 65, 80; their mean 230 / 3. CPRR = 100 * 25 * 3 / 230.
    """
    a = np.array([[90.0, 80, 40], [60, 70, 20], [10, 30, 80]])
    expected = {
        "lta": 80,
        "ata": {"photo": 30, "sketch": 20},
        "gata": 25,
        "gasa": 230 / 3,
        "cprr": 7500 / 230,
    }
    assert alike(fast(a, ("photo", "photo", "sketch")), expected)


def test_against_loops() -> None:
    for seed in range(5):
        assert alike(fast(matrix(seed), DOMAINS), slow(matrix(seed), DOMAINS))


@given(seed=st.integers(0, 10**6), domain_of=st.lists(st.sampled_from("abcd"), min_size=2, max_size=8))
def test_identities(seed: int, domain_of: list[str]) -> None:
    a, names = matrix(seed, len(domain_of)), tuple(domain_of)
    result = fast(a, names)
    if len(set(names)) == 1:
        assert math.isnan(result["gata"]) and math.isnan(result["cprr"])
        assert result["gasa"] == pytest.approx(a.mean())
        return
    assert result["gata"] == pytest.approx(np.mean(list(result["ata"].values())))  # unweighted over domains
    assert result["cprr"] == pytest.approx(100 * result["gata"] / result["gasa"])
    order = np.random.default_rng(seed).permutation(len(names))
    assert alike(fast(a[np.ix_(order, order)], tuple(names[i] for i in order)), result)


def test_equal_models_lose_nothing() -> None:
    result = fast(np.full((6, 6), 42.0), DOMAINS)
    assert alike(result, {"lta": 42, "ata": dict.fromkeys(DOMAINS, 42.0), "gata": 42, "gasa": 42, "cprr": 100})


def test_domains_weigh_the_same_in_gata_whatever_their_number_of_clients() -> None:
    a = np.full((6, 6), 10.0)
    a[4] = 70  # art's only client
    assert fast(a, DOMAINS)["gata"] == pytest.approx((10 + 10 + 70) / 3)


def test_a_client_that_did_not_train_is_left_out_as_a_source_and_stays_a_target() -> None:
    a = matrix(1)
    a[1] = NAN
    assert alike(fast(a, DOMAINS), slow(a, DOMAINS))
    assert fast(a, DOMAINS)["lta"] == pytest.approx(np.delete(np.diagonal(a), 1).mean())


def test_a_domain_without_a_trained_client_makes_gata_unknown() -> None:
    a = matrix(1)
    a[4] = NAN
    result = fast(a, DOMAINS)
    assert math.isnan(result["ata"]["art"]) and not math.isnan(result["ata"]["photo"])
    assert math.isnan(result["gata"]) and math.isnan(result["cprr"])
    assert not math.isnan(result["lta"]) and not math.isnan(result["gasa"])


def test_where_only_own_test_images_are_known_only_lta_is() -> None:
    a = np.diag([90.0, 80, 70]) + np.where(np.eye(3), 0, NAN)
    result = fast(a, ("a", "a", "b"))
    assert result.pop("lta") == 80
    assert all(math.isnan(value) for value in (*result.pop("ata").values(), *result.values()))
    assert fast(a, ("a", "b", "c"))["gasa"] == 80  # one client a domain: its own test set is all there is


def test_nothing_known() -> None:
    found = fast(np.full((6, 6), NAN), DOMAINS)
    assert all(math.isnan(found[name]) for name in ("lta", "gata", "gasa", "cprr"))


def test_ratio_to_zero_is_unknown() -> None:
    assert math.isnan(fast(np.array([[0.0, 5], [5, 0]]), ("a", "b"))["cprr"])


# --- from nodes to the matrix, and over rounds ------------------------------------------------------------


def nodes(*domains: str, shared: bool = True, num_test: int = 9) -> tuple[Node, ...]:
    return tuple(node(i, (5,), domain, num_test, shared_test=shared) for i, domain in enumerate(domains))


def test_nodes_share_their_domains_test_set() -> None:
    fields = {0: {"a": 90.0, "b": 40.0}, 2: {"a": 30.0, "b": 80.0}}
    a = matrix_of(nodes("a", "a", "b"), fields)
    np.testing.assert_array_equal(a, [[90, 90, 40], [NAN, NAN, NAN], [30, 30, 80]])


def test_a_real_nodes_test_images_are_its_own() -> None:
    fields = {0: {"a": 90.0}, 1: {"a": 70.0}, 2: {"b": 80.0}}
    a = matrix_of(nodes("a", "a", "b", shared=False), fields)
    np.testing.assert_array_equal(a, [[90, NAN, NAN], [NAN, 70, NAN], [NAN, NAN, 80]])


def test_held_out_domains_stand_in_the_matrix_and_in_no_score() -> None:
    fields = {0: {"a": 90.0, "b": 40.0, "z": 1.0}, 1: {"a": 30.0, "b": 80.0, "z": 2.0}}
    result = client_models(nodes("a", "b"), fields, {})
    assert result["matrix"] == {"0": {"a": 90, "b": 40, "z": 1}, "1": {"a": 30, "b": 80, "z": 2}}
    assert result["ata"] == {"a": 40, "b": 30}
    assert (result["lta"], result["gata"], result["gasa"]) == (85, 35, 85)
    assert result["cprr"] == pytest.approx(3500 / 85)


def test_lta_takes_the_nodes_own_part_of_a_divided_test_set() -> None:
    fields = {0: {"a": 90.0, "b": 40.0}, 1: {"a": 70.0, "b": 20.0}, 2: {"a": 30.0, "b": 80.0}}
    whole = client_models(nodes("a", "a", "b"), fields, {})
    parts = client_models(nodes("a", "a", "b"), fields, {0: 95.0, 1: 60.0, 2: 85.0})
    assert (whole.pop("lta"), parts.pop("lta")) == (80, 80)  # (90 + 70 + 80) / 3 and (95 + 60 + 85) / 3
    assert parts.pop("own") == {"0": 95, "1": 60, "2": 85}
    assert whole == parts
    assert client_models(nodes("a", "a", "b"), fields, {0: 99.0})["lta"] == 83


Fields = dict[int, dict[str, float]]


def mean_of(rounds: Sequence[tuple[tuple[Node, ...], Fields]]) -> dict[str, Any]:
    return mean_client_models([client_models(every, fields, {}) for every, fields in rounds], rounds[-1][0])


def two(own: float, foreign: float) -> tuple[tuple[Node, ...], Fields]:
    return nodes("a", "b"), {0: {"a": own, "b": foreign}, 1: {"a": foreign, "b": own}}


def test_the_last_five_rounds_are_averaged_and_cprr_is_the_ratio_of_the_averages() -> None:
    result = mean_of([two(1, 1)] * 3 + [two(50, 50)] * 4 + [two(100, 0)])
    assert result == {
        "averaged_rounds": 5,
        "matrix": {"0": {"a": 60, "b": 40}, "1": {"a": 40, "b": 60}}, "by_domain": {"a": 50, "b": 50},
        "lta": 60, "ata": {"a": 40, "b": 40}, "gata": 40, "gasa": 60, "cprr": pytest.approx(4000 / 60),
    }  # fmt: skip


def test_a_node_is_averaged_over_the_rounds_in_which_it_trained() -> None:
    both = nodes("a", "b")
    first, second = (both, {0: {"a": 10.0, "b": 20.0}}), two(50, 30)
    result = mean_of([first, second])
    assert result["matrix"] == {"0": {"a": 30, "b": 25}, "1": {"a": 30, "b": 50}}
    assert result["ata"] == {"a": 25, "b": 30}
    assert result["gata"] == 30  # of the one round in which both domains trained
    assert "why_missing" not in result
    alone = mean_of([first])
    assert (alone["lta"], alone["ata"], alone["gata"], alone["cprr"]) == (10, {"a": 20, "b": None}, None, None)
    assert alone["why_missing"] == "no node of some domain trained and scored its model"


def test_why_a_deployment_cannot_know() -> None:
    result = mean_of([(nodes("a", "a", shared=False), {0: {"a": 90.0}, 1: {"a": 70.0}})])
    assert result["matrix"] == {"0": {"a": 90}, "1": {"a": 70}}
    assert result["lta"] == 80
    assert [result[key] for key in ("ata", "gata", "gasa", "cprr")] == [{"a": None}, None, None, None]
    assert result["why_missing"] == (
        "nodes have test images of their own only, so no model was scored on another node's; all nodes hold one domain"
    )
    none = mean_of([(nodes("a", "b", shared=False, num_test=0), {0: {}, 1: {}})])
    assert none["lta"] is None
    assert none["why_missing"].endswith("another node's; without test images: node 0 (a), node 1 (b)")


def test_a_domain_that_some_clients_did_not_score_has_no_mean() -> None:
    """Real nodes score their own domains: the mean over those would be that of other models on each."""
    apart = mean_of([(nodes("photo", "art", shared=False), {0: {"photo": 90.0}, 1: {"art": 50.0}})])
    assert apart["by_domain"] == {"photo": None, "art": None}
    assert "own only" in apart["why_missing"]
    alike = mean_of([(nodes("photo", "photo", shared=False), {0: {"photo": 90.0}, 1: {"photo": 50.0}})])
    assert alike["by_domain"] == {"photo": 70.0}
