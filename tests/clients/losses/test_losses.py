"""Loss terms that several methods share, and I2PFL's, against slow double loops in float64."""

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import check_term
from numpy.typing import NDArray
from support import Float, as64, drawn, labels
from torch import Tensor

from fedshift_clients import losses
from fedshift_clients.methods import i2pfl

Level = Literal["sample", "class_mean"]
Reduction = Literal["mse_mean", "class_sum"]
LEVELS: tuple[Level, Level] = ("sample", "class_mean")
REDUCTIONS: tuple[Reduction, Reduction] = ("mse_mean", "class_sum")
B, C, D = 9, 4, 5


def features(seed: int, b: int = B, d: int = D) -> Tensor:
    return drawn(seed, b, d)


# --- the slow versions -----------------------------------------------------------------------------


def slow_cross_entropy(logits: Float, y: list[int]) -> float:
    total = 0.0
    for i, label in enumerate(y):
        denominator = 0.0
        for k in range(logits.shape[1]):
            denominator += math.exp(logits[i, k])
        total += -math.log(math.exp(logits[i, label]) / denominator)
    return total / len(y)


def slow_class_means(h: Float, y: list[int], classes: int) -> tuple[Float, list[int]]:
    means, counts = np.zeros((classes, h.shape[1])), [0] * classes
    for k in range(classes):
        for i, label in enumerate(y):
            if label == k:
                counts[k] += 1
                means[k] += h[i]
        if counts[k]:
            means[k] /= counts[k]
    return means, counts


def cosine(a: Float, b: Float) -> float:
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / lengths if lengths > 0 else 0.0


def slow_contrast(h: Float, y: list[int], g: Float, classes: list[int], tau: float) -> float:
    terms = []
    for i, label in enumerate(y):
        numerator = denominator = 0.0
        for j, of_class in enumerate(classes):
            e = math.exp(cosine(h[i], g[j]) / tau)
            denominator += e
            if of_class == label:
                numerator += e
        if numerator > 0:
            terms.append(-math.log(numerator / denominator))
    return sum(terms) / len(terms) if terms else 0.0


def slow_partner(y: list[int], scores: NDArray[np.float32]) -> list[int]:
    chosen = []
    for i in range(len(y)):
        best, best_score = i, -1.0
        for j in range(len(y)):
            if y[j] != y[i] and scores[i, j] > best_score:
                best, best_score = j, float(scores[i, j])
        chosen.append(best)
    return chosen


def slow_alignment(
    h: Float,
    y: list[int],
    p: Float,
    present: list[bool],
    level: Level,
    reduction: Reduction,
    root: bool = False,
) -> float:
    """One squared distance per row, a row being a sample or a class of the batch; then mean or sum."""
    squared: list[float] = []
    by_class: dict[int, list[float]] = {}
    width = h.shape[1]
    for k in sorted(set(y)):
        if not present[k]:
            continue
        members = [h[i] for i in range(len(y)) if y[i] == k]
        rows = members if level == "sample" else [sum(members) / len(members)]
        for row in rows:
            distance = 0.0
            for d in range(width):
                distance += float((row[d] - p[k, d]) ** 2) / (width if reduction == "mse_mean" else 1)
            distance = math.sqrt(distance) if root else distance
            squared.append(distance)
            by_class.setdefault(k, []).append(distance)
    if reduction == "mse_mean":
        return sum(squared) / len(squared) if squared else 0.0
    return sum(sum(distances) / len(distances) for distances in by_class.values())


# --- class means -----------------------------------------------------------------------------------


def test_class_means_against_loops() -> None:
    h, y = features(0), labels(0, B, C)
    means, counts = losses.class_means(h, y, C + 2)  # two classes that cannot occur
    slow_means, slow_counts = slow_class_means(as64(h), y.tolist(), C + 2)
    np.testing.assert_allclose(means.numpy(), slow_means, rtol=1e-5, atol=1e-6)
    assert counts.tolist() == slow_counts


# --- GPCL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [[2, 0, 3, 1], [0, 0, 2, 3, 3], [2, 2, 2, 2, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("tau", [1.0, 0.07])
def test_contrast_and_its_gradient_against_loops(classes: list[int], tau: float) -> None:
    """Not in the order of the classes, several of a class, none of a class."""
    h, y, g = features(5), labels(5, B, C), features(6, b=len(classes))
    check_term(
        lambda x: losses.prototype_contrast(x, y, g, torch.tensor(classes), tau),
        lambda x: slow_contrast(x, y.tolist(), as64(g), classes, tau),
        h,
    )


def test_cross_entropy_and_its_gradient_against_loops() -> None:
    y = labels(0, B, C)
    check_term(lambda x: losses.cross_entropy(x, y), lambda x: slow_cross_entropy(x, y.tolist()), 3 * features(0, d=C))


# --- MixUp -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(B, D), (B, 3, 2, 4)])
def test_mix_against_loops(shape: tuple[int, ...]) -> None:
    a, b, gamma = drawn(0, *shape), drawn(1, *shape), drawn(2, shape[0]).sigmoid()
    slow = np.zeros(shape)
    for place in np.ndindex(*shape):
        slow[place] = float(gamma[place[0]]) * float(a[place]) + (1 - float(gamma[place[0]])) * float(b[place])
    np.testing.assert_allclose(i2pfl.mix(a, b, gamma).numpy(), slow, rtol=1e-5, atol=1e-6)


@given(y=st.lists(st.integers(0, 3), min_size=1, max_size=10), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_partner_is_of_another_class_or_the_sample_itself(y: list[int], seed: int) -> None:
    scores = np.random.default_rng(seed).uniform(size=(len(y), len(y))).astype(np.float32)
    partner = i2pfl.other_class_partner(torch.tensor(y), torch.from_numpy(scores)).tolist()
    assert partner == slow_partner(y, scores)
    for i, j in enumerate(partner):
        assert (y[j] != y[i]) if len(set(y)) > 1 else (j == i)


def test_partner_where_every_score_is_zero_is_still_of_another_class() -> None:
    # torch.rand may return exactly 0.
    y = torch.tensor([0, 0, 1])
    partner = i2pfl.other_class_partner(y, torch.zeros(3, 3))
    assert (y[partner] != y).all()


# --- APA -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("seed", "missing", "root"), [(0, [], False), (1, [1], True), (2, [0, 2, 3], False)])
def test_alignment_against_loops(level: Level, reduction: Reduction, seed: int, missing: list[int], root: bool) -> None:
    h, y, p = features(seed), labels(seed, B, C), features(seed + 90, b=C)
    present = [k not in missing for k in range(C)]

    def loss(x: Tensor) -> Tensor:
        form: Any = {"level": level, "reduction": reduction, "distance": "l2" if root else "l2sq"}
        return i2pfl.prototype_alignment(x, y, p, torch.tensor(present), **form)

    check_term(loss, lambda x: slow_alignment(x, y.tolist(), as64(p), present, level, reduction, root), h)
