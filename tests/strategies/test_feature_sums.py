"""Fed3R and FedCGS on the server: heads equal to pooled regressions, and blind to who holds which image."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused
from sklearn.linear_model import Ridge
from support import ask, check_knowledge, new_strategy, node

from fedshift_app.config.resolving import resolve
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError, RequestError
from fedshift_core.limits import Refused
from fedshift_core.methods.feature_sums import RIDGES, STEP, UNIT, packed, to_whole, unpacked
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.announced import weighed
from fedshift_strategies.federation.update_norms import out_of_proportion
from fedshift_strategies.federation.updates import Update, decode
from fedshift_strategies.methods.feature_sums import FeatureSumsStrategy, gaussian_head, ridge_head
from fedshift_strategies.methods.fed3r import Fed3RStrategy
from fedshift_strategies.methods.fedcgs import FedCGSStrategy

C, F = 4, 6
Features = NDArray[np.int64]  # in steps
SENT = {
    "encoder.weight": np.ones(3, np.float32), "classifier.weight": np.zeros((C, F), np.float32),
    "classifier.bias": np.zeros(C, np.float32),
}  # fmt: skip


def images(n: int = 60, seed: int = 0) -> tuple[Features, Features]:
    """Return features in steps and labels; classes lie apart, and the last one has no image."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C - 1, n)
    f = rng.normal(size=(C, F))[y] + rng.normal(size=(n, F)) + 2
    return np.rint(f / STEP).astype(np.int64), y


def sums(f: Features, y: Features) -> Arrays:
    """Return what a node of these images tells, added in whole numbers of Python."""
    gram = [[sum(int(a) * int(b) for a, b in zip(f[:, i], f[:, j], strict=True)) for j in range(F)] for i in range(F)]
    cross = [[sum(map(int, f[y == k, i])) * round(1 / STEP) for i in range(F)] for k in range(C)]
    half = [gram[i][j] for i in range(F) for j in range(i, F)]
    return {"counts": np.bincount(y, minlength=C), "gram": np.array(half), "cross": np.array(cross)}


def update(index: int, f: Features, y: Features, **more: Any) -> Update:
    counts = np.bincount(y, minlength=C)
    return Update(node(index, counts.tolist()), encode(SENT), sums(f, y) | more, len(y), {})


def silent(index: int, counts: NDArray[Any]) -> Update:
    """Return what a node sends whose sums are known."""
    nothing = {"counts": counts, "gram": np.zeros(0, np.int64), "cross": np.zeros((C, 0), np.int64)}
    return Update(node(index, counts.tolist()), encode(SENT), nothing, int(counts.sum()), {})


def server(kind: type[FeatureSumsStrategy] = Fed3RStrategy, **params: Any) -> FeatureSumsStrategy:
    made = new_strategy(kind, classes=C, width=F, rounds=2, **params)
    made._global = encode(SENT)
    return made


def head(made: FeatureSumsStrategy, *updates: Update) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the head after a round."""
    made.merge_knowledge([*updates])
    arrays = decode(made.merge([*updates], [1 / len(updates)] * len(updates)))
    assert arrays["encoder.weight"].tobytes() == SENT["encoder.weight"].tobytes()
    return arrays["classifier.weight"], arrays["classifier.bias"]


def pooled(f: Features, y: Features) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return real features, and the counts and sums of them that a head is solved of."""
    x = f * STEP
    cross = np.stack([x[y == k].sum(axis=0) for k in range(C)])
    return x, np.bincount(y, minlength=C).astype(float), x.T @ x, cross


# --- equations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 1e3])
def test_the_ridge_head_is_scikit_learns_on_pooled_features(ridge: float) -> None:
    f, y = images()
    x, *of_all = pooled(f, y)
    alpha = ridge * ((x - x.mean(axis=0)) ** 2).sum() / F
    slow = Ridge(alpha=alpha, fit_intercept=True).fit(x, np.eye(C)[y])
    weight, bias = ridge_head(*of_all, ridge)
    np.testing.assert_allclose(weight, slow.coef_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(bias, slow.intercept_, rtol=0, atol=1e-8)
    found = head(server(ridge=ridge), update(0, f[:20], y[:20]), update(1, f[20:], y[20:]))
    np.testing.assert_allclose(found[0], slow.coef_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[1], slow.intercept_, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shrinkage", [0.0, 1e-3, 1.0])
def test_the_gaussian_head_is_linear_discriminant_analysis(shrinkage: float) -> None:
    """Logits are log densities of classes with one covariance, but for what all classes share."""
    f, y = images()
    x, *of_all = pooled(f, y)
    means = np.stack([x[y == k].mean(axis=0) for k in range(C - 1)])
    covariance = sum(np.outer(a - means[k], a - means[k]) for a, k in zip(x, y, strict=True)) / len(x)
    covariance = covariance + shrinkage * np.trace(covariance) / F * np.eye(F)
    inverse = np.linalg.inv(covariance)
    density = np.array([[-0.5 * (a - m) @ inverse @ (a - m) for m in means] for a in x])
    density += np.log(np.bincount(y) / len(y))
    weight, bias = gaussian_head(*of_all, shrinkage)
    logits = (x @ weight.T + bias)[:, : C - 1]
    difference = logits - density
    np.testing.assert_allclose(difference, difference[:, :1].repeat(C - 1, axis=1), rtol=0, atol=1e-8)
    found = head(server(FedCGSStrategy, shrinkage=shrinkage), update(0, f, y))
    np.testing.assert_allclose(found[0], weight, rtol=1e-6)
    np.testing.assert_allclose(found[1], bias, rtol=1e-6)
    assert abs(bias).max() < resolve({}).federation.max_value  # nodes send the head back in the next round
    assert (x.astype(np.float32) @ found[0].T + found[1]).argmax(axis=1).max() < C - 1  # never the class without images


def test_a_symmetric_matrix_and_its_half() -> None:
    gram = np.cov(np.random.default_rng(0).normal(size=(F, 9)))
    np.testing.assert_array_equal(unpacked(packed(gram), F), gram)
    assert len(packed(gram)) == F * (F + 1) // 2


# --- who holds what ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=30, max_size=30), st.randoms(use_true_random=False))
def test_split_in_any_way_and_order_images_give_the_same_bits(owners: list[int], random: Any) -> None:
    f, y = images(30)
    whole = server()
    expected = head(whole, update(0, f, y))
    parts = [update(owner, *(each[np.array(owners) == owner] for each in (f, y))) for owner in sorted({*owners})]
    random.shuffle(parts)
    split = server()
    found = head(split, *parts)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
    assert all((split.state[name] == whole.state[name]).all() for name in ("counts", "gram", "cross"))


def test_a_node_that_comes_late_is_added_once() -> None:
    f, y = images()
    made, counts = server(), [np.bincount(part, minlength=C) for part in (y[:20], y[20:])]
    first = head(made, update(0, f[:20], y[:20]))
    assert [made.tell(node(i), ask(2)) for i in (0, 1)] == [{}, {"sums": 1}]
    assert made.tell(node(1), ask(2, trains=False)) == {}
    both = head(made, silent(0, counts[0]), update(1, f[20:], y[20:]))
    assert not np.array_equal(first[0], both[0])
    again = head(made, silent(0, counts[0]), update(1, f[20:], y[20:]))
    for found in (both, again):
        assert [a.tobytes() for a in found] == [a.tobytes() for a in head(server(), update(0, f, y))]
    assert made.state["nodes"].tolist() == [0, 1]


def test_a_secure_sum_is_of_fewer_images_than_nodes_with_few_of_a_class_announce() -> None:
    """A policy of masked weights announces a class of few images as if it had more; one without rows has none."""
    f, y = images()
    counts = np.bincount(y, minlength=C)
    members = tuple(node(i, (counts // 3 + 2 * (counts > 0)).tolist()) for i in range(3))
    total = dataclasses.replace(update(0, f, y), members=members)
    made = server()
    assert [a.tobytes() for a in head(made, total)] == [a.tobytes() for a in head(server(), update(0, f, y))]
    assert made.members == [0, 1, 2]


# --- the grid ------------------------------------------------------------------------------------------


def grid_round(made: FeatureSumsStrategy, *right: list[int]) -> None:
    """Let nodes, whose sums are known, score the grid."""
    f, y = images()
    if not made.state:
        head(made, update(0, f, y, right=np.zeros(len(RIDGES), np.int64)))
    scores = [Update(node(i), ArrayRecord(), {**silent(0, np.ones(C, int)).knowledge, "right": np.array(each)}, 1, {})
              for i, each in enumerate(right)]  # fmt: skip
    made.state["nodes"] = np.arange(len(right))
    made.merge_knowledge(scores)


@pytest.mark.parametrize(
    ("right", "best"),
    [
        ([[0, 0, 5, 0, 0, 0, 0], [0, 0, 0, 4, 0, 0, 0]], 2),  # by the sum over nodes
        ([[1, 3, 3, 0, 0, 0, 0], [2, 0, 0, 3, 0, 0, 0]], 3),  # the largest of the best
        ([[0, 0, 0, 0, 0, 0, 1]], 6),
    ],
)
def test_the_ridge_of_the_grid_is_that_with_which_most_validation_images_are_right(
    right: list[list[int]], best: int
) -> None:
    made = server(ridge="validation")
    assert isinstance(made, Fed3RStrategy)
    assert made.chosen() == 1.0
    grid_round(made, *right)
    assert made.chosen() == RIDGES[best]
    _, *of_all = pooled(*images())
    for heads, biases, ridge in zip(made.knowledge["heads"], made.knowledge["biases"], RIDGES, strict=True):
        weight, bias = ridge_head(*of_all, ridge)
        np.testing.assert_allclose(heads, weight, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(biases, bias, rtol=1e-5, atol=1e-7)
    assert {*made.knowledge_for(node(), ask(2))} == {"heads", "biases"}
    assert made.knowledge_for(node(), ask(2, trains=False)) == {}


# --- odd numbers ---------------------------------------------------------------------------------------


def test_a_covariance_without_an_inverse_ends_the_run_with_its_key() -> None:
    f, y = images()
    f[:, 1] = 0
    with refused(FederationError, "method.shrinkage=0"):
        head(server(FedCGSStrategy, shrinkage=0), update(0, f, y))


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**54, -(2.0**54)])
def test_sums_that_are_not_exact_do_not_leave_a_node(value: float) -> None:
    with refused(RequestError, "gram"):
        to_whole(np.array([1.0, value]), "gram")
    assert to_whole(np.array([2.0**53, -3.0]), "gram").tolist() == [2**53, -3]
    assert UNIT * 2**28 == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"gram": np.zeros(F * (F + 1) // 2, np.float32)},
        {"gram": np.zeros(F * (F + 1) // 2 + 1, np.int64)},
        {"cross": np.zeros((C, F + 1), np.int64)},
        {"cross": np.zeros((C + 1, F), np.int64)},
        {"cross": np.full((C, F), 2**53 + 2)},
        {"counts": np.full(C, 999)},
    ],
)
def test_the_server_takes_sums_of_the_runs_features_alone(changed: Arrays) -> None:
    f, y = images()
    known, counts = sums(f, y), np.bincount(y, minlength=C).tolist()
    check_knowledge(server(), known, counts)
    with pytest.raises(Refused, match=next(iter(changed))):
        check_knowledge(server(), known | changed, counts)


# --- a node that lies ------------------------------------------------------------------------------------

LIES: dict[str, Any] = {
    "a feature whose squares are negative": lambda of: {"gram": of["gram"] * -1},
    "products that no squares allow": lambda of: {"gram": of["gram"] + 2**60 * (np.arange(len(of["gram"])) == 1)},
    "longer sums than the squares allow": lambda of: {"cross": 3 * of["cross"]},
    "a sum of a class without images": lambda of: {"cross": of["cross"] + (np.arange(C) == C - 1)[:, None]},
    "sums of more images": lambda of: {"counts": of["counts"] // 9},
}


@pytest.mark.parametrize("lie", LIES)
def test_sums_of_no_features_are_refused(lie: str) -> None:
    """Sums that pass are those of some features, so that a lie is no more than other images would be."""
    honest, made = sums(*images()), server()
    made.comparable(honest, (node(),))
    with refused(Refused, "gram", "cross", "counts"):
        made.comparable(honest | LIES[lie](honest), (node(),))


def test_sums_of_features_that_are_far_longer_than_those_of_others_are_out_of_proportion() -> None:
    made = server()
    given = [made.comparable(sums(*images(n, n)), (node(),)) for n in (20, 60, 400)]
    f, y = images(60)
    for times, far in ((5, []), (20, [3])):
        lie = made.comparable(sums(times * f, y), (node(),))
        assert [*out_of_proportion([*given, lie], 10)] == far
    before = made.comparable(silent(0, np.bincount(y, minlength=C)).knowledge, (node(),))
    usual: dict[str, list[float]] = {}
    assert out_of_proportion(given, 10, usual=usual) == {}
    assert [*out_of_proportion([before, before, before, lie], 10, usual=usual)] == [3]


def test_a_node_with_far_too_many_images_is_refused_as_its_sums_cannot_be_scaled() -> None:
    with refused(Refused, "60", "30", "federation.max_images"):
        weighed(update(0, *images()), 30, server().expected())


@pytest.mark.parametrize("value", [-1, 8])
def test_no_head_is_right_for_more_validation_images_than_were_announced(value: int) -> None:
    made, of = server(ridge="validation"), dataclasses.replace(node(), num_validation=7)
    sent = sums(*images()) | {"right": np.array([0, 7, 3, 0, 0, 0, 0])}
    made.comparable(sent, (of,))
    sent["right"][1] = value
    with refused(Refused, value, 7):
        made.comparable(sent, (of,))
