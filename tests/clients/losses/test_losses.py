"""Loss terms against slow double loops in float64, and against answers worked out by hand."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import Float, as64, drawn, gradient, labels, numerical_gradient
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
                distance += float((row[d] - p[k, d]) ** 2)
            squared.append(distance)
            by_class.setdefault(k, []).append(distance)
    if reduction == "mse_mean":
        return sum(s / width for s in squared) / len(squared) if squared else 0.0
    return sum(sum(distances) / len(distances) for distances in by_class.values())


# --- cross-entropy ---------------------------------------------------------------------------------


def test_cross_entropy_by_hand() -> None:
    # Logits (0, 0): p = 1/2, loss log 2. Logits (log 3, 0): p = 3/4 and 1/4, label 1 costs log 4.
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    loss = losses.cross_entropy(logits, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx((math.log(2) + math.log(4)) / 2, rel=1e-6)


def test_cross_entropy_against_loops() -> None:
    for seed in range(4):
        logits, y = 3 * features(seed, d=C), labels(seed, B, C)
        assert float(losses.cross_entropy(logits, y)) == pytest.approx(
            slow_cross_entropy(as64(logits), y.tolist()), rel=1e-5
        )


def test_cross_entropy_of_huge_logits_is_finite() -> None:
    # The label's logit is 2e4 below the other: loss 2e4, not infinite.
    logits = torch.tensor([[1e4, -1e4]])
    assert float(losses.cross_entropy(logits, torch.tensor([1]))) == pytest.approx(2e4)
    assert gradient(lambda x: losses.cross_entropy(x, torch.tensor([1])), logits).isfinite().all()


# --- class means -----------------------------------------------------------------------------------


def test_class_means_by_hand() -> None:
    # Class 0: ((1, 2) + (3, 4)) / 2 = (2, 3); class 1 has no sample; class 2: (5, 6).
    h = torch.tensor([[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]])
    means, counts = losses.class_means(h, torch.tensor([0, 2, 0]), 3)
    assert means.tolist() == [[2, 3], [0, 0], [5, 6]]
    assert counts.tolist() == [2, 0, 1]
    assert (means.dtype, counts.dtype) == (torch.float32, torch.int64)


def test_class_means_against_loops() -> None:
    for seed in range(4):
        h, y = features(seed), labels(seed, B, C)
        means, counts = losses.class_means(h, y, C + 2)  # two classes that cannot occur
        slow_means, slow_counts = slow_class_means(as64(h), y.tolist(), C + 2)
        np.testing.assert_allclose(means.numpy(), slow_means, rtol=1e-5, atol=1e-6)
        assert counts.tolist() == slow_counts


def test_class_means_pass_the_gradient_on_to_each_sample() -> None:
    # The sum of all means: each number of a sample of class k weighs 1 / n_k.
    grad = gradient(lambda h: losses.class_means(h, torch.tensor([0, 2, 0]), 3)[0].sum(), torch.ones(3, 2))
    assert grad.tolist() == [[0.5, 0.5], [1, 1], [0.5, 0.5]]


# --- GPCL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1.0, 7.0])
@pytest.mark.parametrize("tau", [1.0, 0.5, 0.07])
def test_contrast_by_hand(tau: float, length: float) -> None:
    # h along g^0 and at a right angle to g^1: similarities 1 and 0, whatever the lengths.
    # -log(e^(1/tau) / (e^(1/tau) + e^0)) = log(1 + e^(-1/tau)).
    h, g = torch.tensor([[length, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 0.2]])
    loss = losses.prototype_contrast(h, torch.tensor([0]), g, torch.tensor([0, 1]), tau)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1 / tau)), rel=1e-4, abs=1e-6)


def test_contrast_with_several_prototypes_of_a_class_by_hand() -> None:
    # Class 0 has prototypes at similarity 1 and -1, class 1 one at similarity 0; tau = 1.
    # Positives e + 1/e, all e + 1/e + 1.
    g = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    loss = losses.prototype_contrast(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), g, torch.tensor([0, 0, 1]), 1.0)
    positives = math.e + 1 / math.e
    assert float(loss) == pytest.approx(-math.log(positives / (positives + 1)), rel=1e-5)


@pytest.mark.parametrize("tau", [1.0, 0.07, 0.02])
def test_contrast_against_loops(tau: float) -> None:
    for seed in range(3):
        h, y, g = features(seed), labels(seed, B, C), features(seed + 50, b=C)
        classes = [2, 0, 3, 1]  # not in the order of the classes
        loss = losses.prototype_contrast(h, y, g, torch.tensor(classes), tau)
        assert float(loss) == pytest.approx(slow_contrast(as64(h), y.tolist(), as64(g), classes, tau), rel=1e-4)


@pytest.mark.parametrize("classes", [[0, 1, 1, 3, 3, 3], [2, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1]])
def test_contrast_with_missing_and_several_prototypes_against_loops(classes: list[int]) -> None:
    for seed in range(3):
        h, y, g = features(seed), labels(seed, B, C), features(seed + 50, b=len(classes))
        loss = losses.prototype_contrast(h, y, g, torch.tensor(classes), 0.3)
        assert float(loss) == pytest.approx(
            slow_contrast(as64(h), y.tolist(), as64(g), classes, 0.3), rel=1e-4, abs=1e-7
        )


def test_contrast_is_cross_entropy_over_cosine_with_one_prototype_per_class() -> None:
    h, y, g = features(3), labels(3, B, C), features(4, b=C)
    logits = torch.nn.functional.cosine_similarity(h[:, None], g[None], dim=2) / 0.07
    loss = losses.prototype_contrast(h, y, g, torch.arange(C), 0.07)
    assert float(loss) == pytest.approx(float(losses.cross_entropy(logits, y)), rel=1e-4)


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [0, 0, 2, 3, 3]])
def test_contrast_has_the_gradient_of_the_slow_version(classes: list[int]) -> None:
    h, y, g = features(5), labels(5, B, C), features(6, b=len(classes))
    grad = gradient(lambda x: losses.prototype_contrast(x, y, g, torch.tensor(classes), 0.2), h)
    slow = numerical_gradient(lambda x: slow_contrast(x, y.tolist(), as64(g), classes, 0.2), h)
    np.testing.assert_allclose(grad.numpy(), slow, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tau", [1.0, 0.02])
def test_contrast_leaves_out_samples_without_a_prototype(tau: float) -> None:
    h, g = features(1, b=3), features(2, b=2)
    prototypes, mine = torch.tensor([0, 1]), torch.tensor([0, 3, 1])  # nothing stands for class 3
    kept = torch.tensor([0, 2])
    whole = losses.prototype_contrast(h, mine, g, prototypes, tau)
    assert float(whole) == pytest.approx(float(losses.prototype_contrast(h[kept], mine[kept], g, prototypes, tau)))
    grad = gradient(lambda x: losses.prototype_contrast(x, mine, g, prototypes, tau), h)
    assert grad.isfinite().all()
    assert grad[1].tolist() == [0] * D
    assert (grad[kept] != 0).any(dim=1).all()


@pytest.mark.parametrize("classes", [[5, 6, 7], []])
def test_contrast_without_any_match_is_zero(classes: list[int]) -> None:
    g, of_class = features(2, b=len(classes)), torch.tensor(classes, dtype=torch.int64)
    assert float(losses.prototype_contrast(features(1), labels(1, B, C), g, of_class, 0.07)) == 0
    grad = gradient(lambda x: losses.prototype_contrast(x, labels(1, B, C), g, of_class, 0.07), features(1))
    assert torch.equal(grad, torch.zeros(B, D))


def test_contrast_of_zero_features_and_zero_prototypes() -> None:
    # A zero vector has similarity 0 to all: the loss is log P with one prototype per class.
    zeros, g = torch.zeros(2, D), features(2, b=C)
    y = torch.tensor([0, 3])
    of_features = losses.prototype_contrast(zeros, y, g, torch.arange(C), 0.07)
    of_prototypes = losses.prototype_contrast(features(1, b=2), y, torch.zeros(C, D), torch.arange(C), 0.07)
    assert float(of_features) == pytest.approx(math.log(C), rel=1e-6)
    assert float(of_prototypes) == pytest.approx(math.log(C), rel=1e-6)
    assert gradient(lambda x: losses.prototype_contrast(x, y, g, torch.arange(C), 0.07), zeros).isfinite().all()


def test_contrast_sends_nothing_through_the_relu_of_a_dead_feature() -> None:
    # Encoders end in ReLU, so a zero feature has inputs <= 0 and must not receive a gradient.
    before = torch.stack([torch.full((D,), -1.0), torch.arange(1.0, D + 1)])
    y, g = torch.tensor([0, 1]), features(2, b=C)
    grad = gradient(lambda x: losses.prototype_contrast(x.relu(), y, g, torch.arange(C), 0.07), before)
    assert grad.isfinite().all()
    assert grad[0].tolist() == [0] * D
    assert (grad[1] != 0).any()


@pytest.mark.parametrize("tau", [1e-3, 0.02])
def test_contrast_does_not_overflow_at_a_small_temperature(tau: float) -> None:
    # Similarities 1 and -1, label on the wrong side: the loss is 2 / tau (exp(1000) would overflow).
    h, g = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss = losses.prototype_contrast(h, torch.tensor([1]), g, torch.tensor([0, 1]), tau)
    assert float(loss) == pytest.approx(2 / tau, rel=1e-5)
    grad = gradient(lambda x: losses.prototype_contrast(x, torch.tensor([1]), g, torch.tensor([0, 1]), tau), h)
    assert grad.isfinite().all()


@given(seed=st.integers(0, 10**6), b=st.integers(1, 6), p=st.integers(1, 6), tau=st.sampled_from([0.02, 0.07, 1.0]))
@settings(max_examples=40)
def test_contrast_is_finite_and_never_negative(seed: int, b: int, p: int, tau: float) -> None:
    h, y, g, of_class = features(seed, b=b), labels(seed, b, C), features(seed + 1, b=p), labels(seed + 1, p, C)
    loss = losses.prototype_contrast(h, y, g, of_class, tau)
    assert float(loss) >= -1e-6
    assert float(loss) == pytest.approx(
        slow_contrast(as64(h), y.tolist(), as64(g), of_class.tolist(), tau), rel=1e-3, abs=1e-4
    )
    assert gradient(lambda x: losses.prototype_contrast(x, y, g, of_class, tau), h).isfinite().all()


# --- MixUp -----------------------------------------------------------------------------------------


def test_mix_by_hand() -> None:
    # 0.25 * (4, 8) + 0.75 * (0, 4) = (1, 5); weight 1 keeps a, weight 0 gives b.
    a, b = torch.tensor([[4.0, 8.0]] * 3), torch.tensor([[0.0, 4.0]] * 3)
    assert i2pfl.mix(a, b, torch.tensor([0.25, 1.0, 0.0])).tolist() == [[1, 5], [4, 8], [0, 4]]


@pytest.mark.parametrize("shape", [(B, D), (B, 3, 2, 4), (1, 1)])
def test_mix_against_loops(shape: tuple[int, ...]) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        a, b = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        gamma = rng.uniform(size=shape[0]).astype(np.float32)
        slow = np.zeros(shape)
        for place in np.ndindex(*shape):
            slow[place] = float(gamma[place[0]]) * float(a[place]) + (1 - float(gamma[place[0]])) * float(b[place])
        mixed = i2pfl.mix(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(gamma))
        assert mixed.dtype == torch.float32
        np.testing.assert_allclose(mixed.numpy(), slow, rtol=1e-5, atol=1e-6)


def test_partner_by_hand() -> None:
    # Row by row the best score of another class: sample 0 (class 0) may take 2 or 3 and takes 3;
    # sample 1 takes 2; samples 2 and 3 (class 1) may take 0 or 1.
    scores = torch.tensor([
        [0.9, 0.9, 0.1, 0.2],
        [0.9, 0.9, 0.3, 0.0],
        [0.5, 0.4, 0.9, 0.9],
        [0.0, 0.1, 0.9, 0.9],
    ])  # fmt: skip
    assert i2pfl.other_class_partner(torch.tensor([0, 0, 1, 1]), scores).tolist() == [3, 2, 0, 1]


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


def test_partners_are_uniform_over_the_other_classes() -> None:
    # Sample 0 has three candidates, 4000 draws: 1333 each, standard deviation 30.
    y = torch.tensor([0, 1, 1, 2])
    rng = torch.Generator().manual_seed(0)
    chosen = [int(i2pfl.other_class_partner(y, torch.rand(4, 4, generator=rng))[0]) for _ in range(4000)]
    counts = np.bincount(chosen, minlength=4)
    assert counts[0] == 0
    assert np.all(np.abs(counts[1:] - 4000 / 3) < 150)


# --- APA -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "reduction", "answer"),
    [
        # h = (1, 0), (3, 0) of class 0 and (0, 2) of class 1; both targets are the origin; D = 2.
        # Squared norms 1, 9 and 4, over D: 1/2, 9/2, 4/2; mean over three samples 7/3.
        ("sample", "mse_mean", 7 / 3),
        # Within class 0 (1 + 9) / 2 = 5, class 1: 4; sum 9.
        ("sample", "class_sum", 9.0),
        # Class means (2, 0) and (0, 2): 4/2 and 4/2, mean over two classes 2.
        ("class_mean", "mse_mean", 2.0),
        # 4 + 4.
        ("class_mean", "class_sum", 8.0),
    ],
)
def test_alignment_by_hand(level: Level, reduction: Reduction, answer: float) -> None:
    h = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    loss = i2pfl.prototype_alignment(
        h,
        torch.tensor([0, 0, 1]),
        torch.zeros(3, 2),
        torch.tensor([True, True, False]),
        level=level,
        reduction=reduction,
    )
    assert float(loss) == pytest.approx(answer, rel=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("seed", "missing"), [*enumerate([[], [1], [0, 2, 3]])])
def test_alignment_against_loops(level: Level, reduction: Reduction, seed: int, missing: list[int]) -> None:
    h, y, p = features(seed), labels(seed, B, C), features(seed + 90, b=C)
    present = [k not in missing for k in range(C)]

    def loss(x: Tensor) -> Tensor:
        return i2pfl.prototype_alignment(x, y, p, torch.tensor(present), level=level, reduction=reduction)

    def slow(x: Float) -> float:
        return slow_alignment(x, y.tolist(), as64(p), present, level, reduction)

    assert float(loss(h)) == pytest.approx(slow(as64(h)), rel=1e-5)
    np.testing.assert_allclose(gradient(loss, h).numpy(), numerical_gradient(slow, h), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_alignment_without_any_target_is_zero(level: Level, reduction: Reduction) -> None:
    def loss(h: Tensor) -> Tensor:
        none = torch.zeros(C, dtype=torch.bool)
        return i2pfl.prototype_alignment(h, labels(0, B, C), torch.zeros(C, D), none, level=level, reduction=reduction)

    assert float(loss(features(0))) == 0
    assert torch.equal(gradient(loss, features(0)), torch.zeros(B, D))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_alignment_with_itself_is_zero(level: Level, reduction: Reduction) -> None:
    # One sample is its own class mean, so that the distance to it vanishes.
    h, y = features(0, b=1), torch.tensor([2])
    means, counts = losses.class_means(h, y, C)
    assert float(i2pfl.prototype_alignment(h, y, means, counts > 0, level=level, reduction=reduction)) == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_alignment_of_one_sample(level: Level, reduction: Reduction) -> None:
    # h - p~ = (3, 4): squared norm 25, mean over D = 2 12.5; sample and class are the same thing.
    h, y, p = torch.tensor([[3.0, 4.0]]), torch.tensor([1]), torch.zeros(2, 2)
    loss = i2pfl.prototype_alignment(h, y, p, torch.tensor([True, True]), level=level, reduction=reduction)
    assert float(loss) == (12.5 if reduction == "mse_mean" else 25)


@pytest.mark.parametrize("level", LEVELS)
def test_alignment_passes_the_gradient_to_live_targets(level: Level) -> None:
    y, present = labels(0, B, C), torch.ones(C, dtype=torch.bool)
    grad = gradient(
        lambda p: i2pfl.prototype_alignment(features(0), y, p, present, level=level, reduction="mse_mean"),
        features(1, b=C),
    )
    held = torch.bincount(y, minlength=C) > 0
    assert (grad[held] != 0).any(dim=1).all()
    assert (grad[~held] == 0).all()


# --- number formats and the batch of one class -----------------------------------------------------


def _terms(cast: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    h, y, p = cast(features(7)), labels(7, B, C), cast(features(8, b=C))
    present = torch.ones(C, dtype=torch.bool)
    terms: dict[str, Any] = {
        "ce": losses.cross_entropy(cast(features(7, d=C)), y),
        "means": losses.class_means(h, y, C)[0],
        "gpcl": losses.prototype_contrast(h, y, p, torch.arange(C), 0.07),
    }
    for level in LEVELS:
        for reduction in REDUCTIONS:
            name = f"apa {level} {reduction}"
            terms[name] = i2pfl.prototype_alignment(h, y, p, present, level=level, reduction=reduction)
    return terms


def test_bf16_input_is_computed_in_float32() -> None:
    # Rounding the input is all that bf16 does: the same numbers as float32 give the same bits.
    narrow = _terms(lambda x: x.bfloat16())
    wide = _terms(lambda x: x.bfloat16().float())
    for name, value in narrow.items():
        assert value.dtype == torch.float32, name
        assert torch.equal(value, wide[name]), name


@pytest.mark.parametrize("b", [1, 4])
def test_batch_of_one_class(b: int) -> None:
    """Nobody to mix with: h~ = h, targets are the plain class mean."""
    h, y = features(0, b=b), torch.full((b,), 2)
    partner = i2pfl.other_class_partner(y, torch.rand(b, b, generator=torch.Generator().manual_seed(0)))
    assert partner.tolist() == list(range(b))
    mixed = i2pfl.mix(h, h[partner], torch.linspace(0, 1, b))
    torch.testing.assert_close(mixed, h)
    means, counts = losses.class_means(mixed, y, C)
    torch.testing.assert_close(means[2], h.mean(dim=0))
    assert counts.tolist() == [0, 0, b, 0]
    # Only prototype in the room is the positive: -log 1 = 0.
    assert float(losses.prototype_contrast(h, y, h[:1], torch.tensor([2]), 0.07)) == pytest.approx(0, abs=1e-5)


def test_contrast_is_computed_in_float32_inside_autocast_too() -> None:
    h, g = torch.rand(4, 8), torch.rand(3, 8)
    y, labels = torch.tensor([0, 1, 2, 0]), torch.arange(3)
    plain = losses.prototype_contrast(h, y, g, labels, 0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = losses.prototype_contrast(h, y, g, labels, 0.07)
    assert inside.dtype == torch.float32
    assert inside == plain
