"""Distances, divergences and class means of all methods, values and gradients, against NumPy."""

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_terms import check, check_edges, check_features, cosines, cross_entropy, softmax
from support import Float, as64, drawn, gradient, labels
from torch import Tensor, nn

from fedshift_clients import losses
from fedshift_clients.losses.prototypes import nearness, prototype_distance
from fedshift_clients.losses.proximal import proximal
from fedshift_clients.losses.styles import blended
from fedshift_clients.methods import copa, fedmd, fedpac, fedplvm, fedsa, fedseproto, fedsr, fpl, i2pfl

B, C, D = 9, 4, 5
Z, Y, G = drawn(0, B, D), labels(0, B, C), drawn(1, C, D)
MASKS = [torch.tensor(mask) for mask in product((True, False), repeat=C)]


def slow_alignment(
    z: Float, y: Any, g: Float, present: Any, level: str = "sample", mean: str = "", form: str = "l2sq", over: str = ""
) -> Any:
    """Return a mean or sum over samples or classes of squared distances, or of their roots."""
    every, classes = [], []
    for k in np.unique(y):
        if present[k]:
            rows = z[y == k] if level == "sample" else z[y == k].mean(0, keepdims=True)
            far = ((rows - g[k]) ** 2).sum(1) / (1 if over == "sum" else z.shape[1])
            every += [*(np.sqrt(far) if form == "l2" else far)]
            classes.append(np.mean(every[-len(far) :]))
    if mean == "class_mean":
        return np.mean(classes) if classes else 0
    return sum(classes) if mean == "class_sum" else np.mean(every) if every else 0


@pytest.mark.parametrize("present", MASKS[::3])
@pytest.mark.parametrize("reduction", ["mse_mean", "class_sum"])
@pytest.mark.parametrize(("level", "form"), [("sample", "l2sq"), ("class_mean", "l2sq"), ("sample", "l2")])
def test_alignment_of_i2pfl(level: Any, form: Any, reduction: Any, present: Tensor) -> None:
    def fast(x: Tensor, *given: Any) -> Tensor:
        return i2pfl.prototype_alignment(x, *given[:3], level=level, reduction=reduction, distance=form)

    over = "sum" if reduction == "class_sum" else ""
    check_features(fast, slow_alignment, Z, Y, G, present, level, reduction, form, over)


@pytest.mark.parametrize("present", MASKS[::3])
@pytest.mark.parametrize("over", ["mean", "sum"])
def test_distance_to_prototypes(over: Any, present: Tensor) -> None:
    def ours(x: Tensor, *given: Any) -> Tensor:
        return prototype_distance(x, *given[:3], reduction="sum" if over == "sum" else "mse_mean")

    check_features(ours, slow_alignment, Z, Y, G, present, "sample", "", "", over)
    for mean in ("sample_mean", "class_mean"):

        def fast(x: Tensor, *given: Any, mean: Any = mean) -> Tensor:
            return fedseproto.prototype_distance(x, *given[:3], reduction=mean, dimensions=over)

        check_features(fast, slow_alignment, Z, Y, G, present, "sample", mean, "", over)


@pytest.mark.parametrize("present", MASKS[:-1])
def test_nearness(present: Tensor) -> None:
    found = nearness(Z, G, present)
    far = ((as64(Z)[:, None] - as64(G)) ** 2).sum(2)
    far[:, ~present] = far[:, present].max(1, keepdims=True) + 1
    np.testing.assert_allclose(found, -far, rtol=1e-4, atol=1e-5)
    assert present[found.argmax(1)].all()
    check_edges(lambda x, *given: -nearness(x, *given).sum(), Z, G, present)


def test_small_distances_far_from_the_origin_do_not_cancel() -> None:
    g = torch.tensor([[1000.0, 1000.0], [1000.0, 1000.25]])
    found = nearness(torch.tensor([[1000.0, 1000.125 + 0.0625]]), g, torch.ones(2, dtype=torch.bool))
    np.testing.assert_allclose(found, [[-(0.1875**2), -(0.0625**2)]], rtol=1e-5)


def slow_correction(z: Float, y: Any, v: Float, present: Any) -> Any:
    return 2 * ((1 - np.diag(cosines(z, v[y])))[present[y]] ** 2).mean()


def test_correction_of_fedplvm() -> None:
    check_features(fedplvm.correction, slow_correction, Z, Y, G, torch.tensor([True, True, False, True]))


@pytest.mark.parametrize("mu", [0.001, 1.0])
def test_proximal_term_of_all_weights_together(mu: float) -> None:
    w, other, received = drawn(0, 3, 2), drawn(1, 4), [drawn(2, 3, 2), drawn(3, 4)]

    def slow(x: Float, other: Float, start: list[Float], mu: float) -> float:
        return mu / 2 * float(((x - start[0]) ** 2).sum() + ((other - start[1]) ** 2).sum())

    check(lambda x, other, *given: proximal([x, other], *given), slow, w, other, received, mu)
    assert not proximal([w, other], [each.requires_grad_() for each in received], mu).requires_grad


def test_class_means() -> None:
    means, counts = losses.class_means(Z, Y, C + 2)  # two classes that cannot occur
    assert counts.tolist() == np.bincount(Y, minlength=C + 2).tolist()
    for k, mean in enumerate(means):
        np.testing.assert_allclose(mean, as64(Z[k == Y]).mean(0) if counts[k] else np.zeros(D), rtol=1e-5, atol=1e-6)


def test_cross_entropy() -> None:
    check_features(losses.cross_entropy, cross_entropy, 3 * drawn(0, B, C), Y)


@given(y=st.lists(st.integers(0, 3), min_size=1, max_size=10), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_partner_is_of_another_class_or_the_sample_itself(y: list[int], seed: int) -> None:
    scores = np.random.default_rng(seed).uniform(size=(len(y), len(y))) * (seed > 0)  # torch.rand may return exactly 0
    partner = i2pfl.other_class_partner(torch.tensor(y), torch.from_numpy(scores)).tolist()
    for i, row in enumerate(scores):
        others = [j for j in range(len(y)) if y[j] != y[i]]
        assert partner[i] == max(others, key=row.__getitem__, default=i)


@pytest.mark.parametrize("shape", [(B, D), (B, 3, 2, 4)])
def test_mix(shape: tuple[int, ...]) -> None:
    a, b, gamma = drawn(0, *shape), drawn(1, *shape), drawn(2, B).sigmoid()
    wanted = [g * one + (1 - g) * other for g, one, other in zip(as64(gamma), as64(a), as64(b), strict=True)]
    np.testing.assert_allclose(blended(a, b, gamma), wanted, rtol=1e-5, atol=1e-6)


def test_digestion_of_fedmd() -> None:
    check_features(fedmd.digestion, lambda x, other: abs(x - other).mean(), Z, drawn(1, B, D))


# --- FedPAC, FedSA, FPL, COPA, FedSR ---------------------------------------------------------------


def test_alignment_of_fedpac() -> None:
    check_features(fedpac.alignment, lambda z, y, g: ((z - g[y]) ** 2).mean(), Z, Y, G)


def test_statistics_of_fedpac() -> None:
    """V as the authors' code has it: traces of second moments of each class, less the squares of h."""
    z, y = as64(drawn(4, 20, D)), np.arange(20) % (C - 1)  # class 3 has no image
    h, v, means, squares = np.zeros((C, D)), 0.0, np.zeros((C, D)), np.zeros(C)
    for k in range(C - 1):
        own = z[y == k]
        means[k], squares[k], share = own.mean(axis=0), (own**2).sum(axis=1).mean(), len(own) / len(z)
        h[k] = share * means[k]
        v += share * float(np.trace(own.T @ own / len(own))) - share**2 * float((means[k] ** 2).sum())
    found = fedpac.statistics(*map(torch.from_numpy, (means, squares, np.bincount(y, minlength=C))))
    np.testing.assert_allclose(as64(torch.cat([found[0].flatten(), found[1]])), [*h.flat, v / len(z)], rtol=1e-6)
    assert {part.dtype for part in found} == {torch.float32}
    one = fedpac.statistics(torch.ones(1, D), torch.full((1,), D - 1e-6), torch.tensor([3]))
    assert float(one[1]) == 0  # rounding must not make it negative


def slow_margin(z: Float, y: Any, anchors: Float, margin: Float) -> float:
    far = np.linalg.norm(z[:, None] - anchors, axis=2)
    return cross_entropy(-far - margin * np.eye(C)[y], y)


@pytest.mark.parametrize("margin", [0.0, 2.5])
def test_margin_of_fedsa(margin: float) -> None:
    check_features(fedsa.margin_contrast, slow_margin, Z, Y, G, torch.tensor(margin))


def test_other_terms_of_fedsa() -> None:
    check_features(fedsa.anchor_distance, lambda z, y, g: ((z - g[y]) ** 2).mean(), Z, Y, G)
    head, far = nn.Linear(D, C), np.linalg.norm(as64(Z)[:, None] - as64(Z), axis=2)
    found = fedsa.calibration(head, G)
    found.backward()  # type: ignore[no-untyped-call]
    assert head.weight.grad is not None
    assert float(found.detach()) == pytest.approx(cross_entropy(as64(head(G)), np.arange(C)), rel=1e-5)
    nearest = (far + np.where(np.eye(B), np.inf, 0)).min(1)
    assert float(fedsa.mean_gap(Z)) == pytest.approx(nearest.mean(), rel=1e-5)
    assert float(fedsa.mean_gap(Z[:1])) == float(fedsa.mean_gap(Z[:0])) == 0


@given(seed=st.integers(0, 10**6), b=st.integers(1, B), p=st.integers(1, 7))
@settings(max_examples=40)
def test_unbiased_prototypes_and_consistency_of_fpl(seed: int, b: int, p: int) -> None:
    z, y, prototypes, classes = drawn(seed, b, D), labels(seed, b, C), drawn(seed + 1, p, D), labels(seed + 2, p, C)
    u, present = fpl.unbiased_prototypes(prototypes, classes, C)
    assert present.tolist() == [k in classes for k in range(C)]
    for k in range(C):
        wanted = as64(prototypes[classes == k]).mean(0) if present[k] else np.zeros(D)
        np.testing.assert_allclose(u[k], wanted, rtol=1e-4, atol=1e-6)
    apart = ((as64(z) - as64(u)[y]) ** 2).mean(1)[present[y].numpy()]
    wanted = apart.mean() if apart.size else 0.0
    if present.all() and b == B:
        check_edges(partial(prototype_distance, reduction="mse_mean"), z, y, u, present)
    assert float(prototype_distance(z, y, u, present, reduction="mse_mean")) == pytest.approx(wanted, rel=1e-4)


HEADS = [{"weight": drawn(10 + m, C, D), "bias": drawn(20 + m, C)} for m in range(3)]


def slow_others(z: Float, y: Any) -> float:
    return sum(cross_entropy(z @ as64(head["weight"]).T + as64(head["bias"]), y) for head in HEADS)


def test_loss_of_copa_by_other_heads() -> None:
    own = nn.Linear(D, C)
    check(lambda x, y: copa.others_loss(own, HEADS, x, y), slow_others, Z, Y)
    copa.others_loss(own, HEADS, Z.clone().requires_grad_(), Y).backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is None for weight in own.parameters())


def test_ensemble_of_copa() -> None:
    logits = 3 * drawn(5, 3, B, C)
    for part in (logits, logits[:1]):
        found = as64(copa.ensemble(part, "probabilities"))
        np.testing.assert_allclose(found, np.log(softmax(as64(part)).mean(axis=0)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(as64(copa.ensemble(logits, "logits")), as64(logits).mean(axis=0), rtol=1e-5, atol=1e-6)
    assert copa.ensemble(200 * logits, "probabilities").isfinite().all()


def slow_information(mu: Float, sigma: Float, m: Float, s: Float) -> Any:
    return (np.log(s / sigma) + (sigma**2 + (mu - m) ** 2) / (2 * s**2) - 0.5).sum(1).mean()


@pytest.mark.parametrize("place", range(4))
def test_information_of_fedsr(place: int) -> None:
    """Each of its four tensors has a gradient."""
    x, *others = (drawn(k, B, D).abs() + 0.1 for k in (place, *({0, 1, 2, 3} - {place})))

    def of(term: Any) -> Any:
        return lambda x, *more: term(*more[:place], x, *more[place:])

    check(of(fedsr.conditional_information), of(slow_information), x, *others)


@pytest.mark.parametrize(("form", "wanted"), [("norm", (5 + 13) / 2), ("squared", (25 + 169) / 2)])
def test_length_of_fedsr_by_hand(form: Any, wanted: float) -> None:
    check_edges(fedsr.length, Z, form)
    assert float(fedsr.length(torch.tensor([[3.0, 4.0], [5.0, 12.0]]), form)) == pytest.approx(wanted)


# --- FedSeProto ------------------------------------------------------------------------------------


def slow_gaussian(log_variance: Float, mean: Float) -> Any:
    return (0.5 * (mean**2 + np.exp(log_variance) - log_variance - 1)).mean()


def slow_moment(z: Float) -> Any:
    m, v = z.mean(0, keepdims=True), z.var(0, keepdims=True)
    return (0.5 * m**2 if len(z) == 1 else 0.5 * (m**2 + v - np.log(v + 1e-6) - 1)).mean()


@pytest.mark.parametrize("b", [1, 2, B])
def test_divergences_of_fedseproto(b: int) -> None:
    z, mean = drawn(0, b, D), drawn(50, b, D)
    check(lambda x, mean: fedseproto.gaussian_kl(mean, x), slow_gaussian, z, mean)
    check_edges(lambda x: fedseproto.gaussian_kl(x, x.clamp(-10, 10)), z)
    check_features(fedseproto.moment_kl, slow_moment, z, slope=(2e-2, 1e-5))
    check_features(fedseproto.squared_norm, lambda x: (x**2 / 2).mean(), z)


def test_moments_of_equal_samples_are_finite_and_do_not_move_them_apart() -> None:
    # Variance 0: -log(1e-6)/2 - 1/2 on top; at the minimum of v its gradient is zero.
    z = torch.zeros(4, 2)
    assert float(fedseproto.moment_kl(z)) == pytest.approx((-math.log(1e-6) - 1) / 2, rel=1e-5)
    assert torch.equal(gradient(fedseproto.moment_kl, z), z)


def slow_distillation(s: Float, d: Float, t: Float, temperature: float, form: str, direction: str) -> Any:
    teacher, *others = (softmax(each / temperature) for each in (t, s, d))
    pairs = [(teacher, q) if direction == "teacher_student" else (q, teacher) for q in others]
    own, other = (np.minimum((p * np.log(p / q)).sum(1), 50) for p, q in pairs)
    return np.log1p(np.exp(other - own if form == "printed" else own - other)).mean()


@pytest.mark.parametrize("form", ["corrected", "printed"])
@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
@pytest.mark.parametrize("temperature", [0.5, 4.0])
def test_distillation_of_fedseproto(form: Any, direction: Any, temperature: float) -> None:
    def fast(s: Tensor, d: Tensor, t: Tensor, *_: Any) -> Tensor:
        return fedseproto.distillation(t, s, d, temperature=temperature, form=form, direction=direction)

    t, s, d = (drawn(10 * i, B, C) for i in range(3))
    given = t, temperature, form, direction
    check_features(fast, slow_distillation, s, d, *given)
    check_features(
        lambda x, s, *more: fast(s, x, *more), lambda x, s, *more: slow_distillation(s, x, *more), d, s, *given
    )
    assert not fast(s, d, t.requires_grad_()).requires_grad  # the teacher is left alone
    # Teacher and semantic agree that it is class 0, domain says class 1, all at 1e4: s1 = 0, s2 = 10^4 -> 50 (A2).
    one, other = torch.tensor([[1e5, 0.0]]), torch.tensor([[0.0, 1e5]])
    assert float(fast(one, other, one)) == pytest.approx(0 if form == "corrected" else 50, abs=1e-6)
    assert gradient(lambda x: fast(one, x, one), other).isfinite().all()
