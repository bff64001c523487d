"""Contrasts of all methods, values and gradients, against NumPy."""

import math
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from slow_terms import check, check_edges, check_features, cosines, softmax
from support import Float, as64, drawn, gradient, labels

from fedshift_clients import losses
from fedshift_clients.losses import common
from fedshift_clients.losses.contrast import instance_contrast, supervised_contrast
from fedshift_clients.losses.prototypes import prototype_distance
from fedshift_clients.methods import fedccrl, fedcode_terms, fedpall, fedplvm, fedrcl, moon

B, C, D = 9, 4, 5
Z, Y, OTHER, FAR = drawn(5, B, D), labels(5, B, C), drawn(6, B, D), drawn(7, B, D)


def slow_prototypes(z: Float, y: Any, g: Float, classes: Any, tau: float, alpha: float = 0) -> float:
    s = np.maximum(cosines(z, g), 1e-6) ** alpha if alpha else cosines(z, g)
    e = np.exp(s / tau)
    own = (e * (classes == y[:, None])).sum(1)
    held = own > 0
    return float(-np.log(own[held] / e[held].sum(1)).mean()) if held.any() else 0.0


@pytest.mark.parametrize(
    ("classes", "tau"),
    [([2, 0, 3, 1], 1.0), ([0, 0, 2, 3, 3], 0.07), ([2, 2, 2, 2, 0, 0], 1.0), ([1, 1, 1], 0.07), ([1, 1, 1], 1.0)],
)
def test_of_prototypes(classes: list[int], tau: float) -> None:
    """Not in the order of the classes, several of a class, none of a class."""
    g = drawn(6, len(classes), D)
    check_features(losses.prototype_contrast, slow_prototypes, Z, Y, g, torch.tensor(classes), tau)


@pytest.mark.parametrize(("tau", "alpha", "seed"), [(0.07, 0.25, 0), (0.02, 0.75, 1), (1.0, 1.0, 0)])
def test_of_fedplvm(tau: float, alpha: float, seed: int) -> None:
    z, v = drawn(seed, B, D).abs() + 0.1, drawn(seed + 1, 7, D).abs()  # as after a ReLU
    given = labels(seed, B, C), v, labels(seed + 2, 7, C), tau, alpha
    check_features(fedplvm.sparse_contrast, slow_prototypes, z, *given, rel=1e-3, slope=(2e-3, 2e-4))


def slow_hard(f: Float, y: Any, tau: float, negatives: int) -> Any:
    total, s = [], cosines(f, f)
    for row, alike in zip(s, y[:, None] == y, strict=True):
        kept = np.array([row[alike].min(), *np.sort(row[~alike])[::-1][:negatives]]) / tau
        total.append(np.log(np.exp(kept).sum()) - kept[0])
    return np.mean(total)


def slow_penalty(f: Float, y: Any, tau: float, threshold: float) -> Any:
    s = cosines(f, f)
    least = np.where((y[:, None] == y) & ~np.eye(len(y), dtype=bool), s, np.inf).min(1)
    least = np.where((least >= threshold) & np.isfinite(least), least, -1)
    return np.log1p(np.exp((least - 1) / tau)).mean()


@pytest.mark.parametrize(("tau", "negatives", "seed"), [(0.05, 2, 0), (0.5, 1, 1), (0.5, 100, 0)])
def test_of_fedrcl(tau: float, negatives: int, seed: int) -> None:
    def hard(f: torch.Tensor, *given: Any) -> torch.Tensor:
        return fedrcl.hard_contrast(common.cosines(f), *given)

    check_features(hard, slow_hard, drawn(seed, B, D), labels(seed, B, C), tau, negatives)


@pytest.mark.parametrize(("tau", "threshold", "seed"), [(0.05, 0.7, 0), (0.5, 0.7, 1), (0.5, -1.0, 0)])
def test_penalty_of_fedrcl(tau: float, threshold: float, seed: int) -> None:
    def penalty(f: torch.Tensor, *given: Any) -> torch.Tensor:
        return fedrcl.divergence_penalty(common.cosines(f), *given)

    check_features(penalty, slow_penalty, drawn(seed, B, D) + 2.5, labels(seed, B, C), tau, threshold, rel=1e-3)


def slow_views(first: Float, second: Float, y: Any, tau: float) -> Any:
    """Return the mean over anchors of what FedICON's Eq. 2 has; with a label for each image it is Eq. 5."""
    z, of = np.concatenate([first, second]), np.tile(y, 2)
    s, others = cosines(z, z) / tau, ~np.eye(len(of), dtype=bool)
    alike = (of[:, None] == of) & others
    logs = s - np.log((np.exp(s) * others).sum(1, keepdims=True))
    return -((logs * alike).sum(1) / alike.sum(1)).mean()


@pytest.mark.parametrize(("b", "d", "tau"), [(6, D, 0.07), (6, D, 2.0), (2, 1, 0.3), (7, 6, 1.0)])
def test_of_two_views(b: int, d: int, tau: float) -> None:
    first, second = drawn(b, b, d), drawn(b + 1, b, d)
    check_features(supervised_contrast, slow_views, first, second, labels(b, b, 3), tau)
    check_features(
        lambda x, other, _, tau: instance_contrast(x, other, tau), slow_views, first, second, torch.arange(b), tau
    )


def slow_copies(own: Float, copy: Float, y: Any, tau: float) -> Any:
    z, of = np.concatenate([copy, own]), np.tile(y, 2)
    s, alike = cosines(z, z) / tau, of[:, None] == of
    return (np.log(np.exp(s).sum(1) - np.exp(np.diag(s))) - (s * alike).sum(1) / alike.sum(1)).mean()


@pytest.mark.parametrize(("tau", "seed"), [(0.1, 0), (1.0, 2)])
def test_of_copies_of_fedccrl(tau: float, seed: int) -> None:
    own, copy = drawn(seed, 5, 4), drawn(seed + 100, 5, 4)
    given = own, copy, labels(seed, 5, 3), tau
    aligned = partial(supervised_contrast, itself=True)
    check(lambda x, other, *more: aligned(other, x, *more), slow_copies, *given)
    check_edges(aligned, *given, low=-100)  # has another bound


def slow_divergence(x: Float, *others: Float) -> Any:
    p = softmax(np.stack([x, *others]))
    return (p * (np.log(p) - np.log(np.maximum(p.mean(0), 1e-7)))).sum() / p.shape[0] / p.shape[1]


def test_divergence_of_fedccrl() -> None:
    for others in ([OTHER], [OTHER, FAR]):
        check_features(lambda *x: fedccrl.divergence([*x]), slow_divergence, Z, *others)
    sure = torch.tensor([[300.0, -300.0]])
    assert float(fedccrl.divergence([Z, Z, Z])) == pytest.approx(0, abs=1e-6)
    assert float(fedccrl.divergence([sure, -sure])) == pytest.approx(math.log(2), rel=1e-5)
    assert gradient(lambda x: fedccrl.divergence([x, -sure]), sure).isfinite().all()


def slow_moon(z: Float, g: Float, p: Float, tau: float) -> Any:
    return np.log1p(np.exp(np.diag(cosines(z, p) - cosines(z, g)) / tau)).mean()


@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_of_moon(tau: float) -> None:
    check_features(moon.model_contrast, slow_moon, Z, OTHER, FAR, tau)
    assert float(moon.model_contrast(Z, FAR, FAR, tau)) == pytest.approx(math.log(2), rel=1e-6)
    assert not gradient(lambda x: moon.model_contrast(x, FAR, FAR, tau), Z).any()


def slow_fedcode(z: Float, places: Any, g: Float, tau: float, own: list[Float], centre: list[Float]) -> Any:
    """Return Eqs 11 and 13: the prototype at the place of each image against all others, and more negatives."""
    mine = [np.diag(cosines(z, each))[:, None] for each in own]
    p = softmax(np.hstack([cosines(z, np.stack([*g, *centre])), *mine]) / tau)
    held = np.flatnonzero(places >= 0)
    return -np.log(p[held, places[held]]).mean()


@pytest.mark.parametrize(("own", "centre", "tau"), [(1, 1, 0.07), (1, 0, 0.5), (0, 1, 0.5), (0, 0, 1.0)])
def test_of_fedcode(own: int, centre: int, tau: float) -> None:
    """With features of the image itself and the centre of prototypes among the negatives, or without."""
    more, g = ([drawn(1, 6, D)][:own], [drawn(3, D)][:centre]), drawn(2, 3, D)
    y, classes = torch.tensor([0, 1, 2, 3, 1, 2]), torch.tensor([3, 0, 2])  # class 1 has none; they are not in order

    def first(given: Any) -> Any:
        return given[0] if given else None

    def semantic(x: Any, places: Any, g: Any, tau: float, own: Any, centre: Any) -> torch.Tensor:
        return fedcode_terms.semantic_contrast(x, y[: len(x)], g, classes, tau, style=first(own), centre=first(centre))

    check_features(semantic, slow_fedcode, drawn(0, 6, D), torch.tensor([1, -1, 2, 0, -1, 2]), g, tau, *more)

    def style(x: Any, places: Any, g: Any, tau: float, own: Any, centre: Any) -> torch.Tensor:
        return fedcode_terms.style_contrast(x, int(places[0]), g, tau, semantic=first(own), centre=first(centre))

    for j in range(3):
        check_features(style, slow_fedcode, drawn(0, 6, D), torch.full((6,), j), g, tau, *more)


def slow_decoupling(a: Float, b: Float, form: str) -> Any:
    if form == "literal":
        return (a * b != 0).sum(1).mean()
    if form == "abs_cos":
        return abs(np.diag(cosines(a, b))).mean()
    return np.diag(cosines(abs(a), abs(b))).mean()


@pytest.mark.parametrize("form", ["abs_cos", "sum_abs", "literal"])
def test_decoupling_of_fedcode(form: Literal["abs_cos", "sum_abs", "literal"]) -> None:
    a, b = Z.clone(), OTHER.clone()
    a[0, 0] = b[1, 1] = a[2, 2] = b[2, 2] = 0
    assert float(fedcode_terms.decoupling(a, b, form)) == pytest.approx(slow_decoupling(as64(a), as64(b), form))
    check_edges(fedcode_terms.decoupling, Z, OTHER, form)
    moves = gradient(lambda x: fedcode_terms.decoupling(x, OTHER, form), Z).any()
    assert bool(moves) is (form != "literal")


def slow_fedpall(z: Float, y: Any, g: Float, present: Any, tau: float, form: str) -> float:
    near = cosines(z, g)
    others = near if form == "cosine" else near * np.linalg.norm(g, axis=1)
    below = np.log((np.exp(others / tau) * present).sum(1))
    held = present[y]
    return float((below - near[np.arange(len(y)), y] / tau)[held].mean()) if held.any() else 0.0


@pytest.mark.parametrize("present", range(1, 16))
@pytest.mark.parametrize("form", ["cosine", "released"])
def test_collaboration_of_fedpall(present: int, form: fedpall.Contrast) -> None:
    held = torch.tensor([present >> k & 1 == 1 for k in range(C)])
    given = Y, drawn(present, C, D) * held[:, None], held, 0.5, form
    wanted = slow_fedpall(as64(Z), Y.numpy(), as64(given[1]), held.numpy(), 0.5, form)
    assert float(fedpall.collaboration(Z, *given)) == pytest.approx(wanted, rel=1e-4)
    if present == 15:
        check_edges(fedpall.collaboration, Z, *given, autocast=False)  # is called outside of it


def slow_confusion(logits: Float) -> Any:
    return (np.log(1 / logits.shape[1]) - np.log(softmax(logits))).mean()


def test_confusion_of_fedpall() -> None:
    check_features(fedpall.confusion, slow_confusion, 2 * drawn(3, B, 3))
    assert float(fedpall.confusion(torch.zeros(B, 3))) == pytest.approx(0, abs=1e-6)


def test_the_amplifier_of_fedpall_is_torchs_own_layers_in_training_mode() -> None:
    nn = torch.nn
    layers = nn.Sequential(
        nn.Linear(D, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6),
        nn.ReLU(), nn.Linear(6, 3, bias=False),
    )  # fmt: skip
    names = ["linear1", "scale1", "shift1", "linear2", "scale2", "shift2", "linear3"]
    weights = dict(zip(names, (tensor.detach() for tensor in layers.parameters()), strict=True))
    torch.testing.assert_close(fedpall.amplifier(Z, weights), layers(Z).detach(), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(fedpall.amplifier(Z[:1], weights)).all()  # a batch of one image


FAR_CLASSES = torch.arange(C) + C
WITHOUT: list[tuple[Any, ...]] = [
    (losses.prototype_contrast, Y, OTHER[:C], FAR_CLASSES, 0.07),
    (losses.prototype_contrast, Y, OTHER[:0], FAR_CLASSES[:0], 0.07),
    (fedcode_terms.semantic_contrast, Y, OTHER[:C], FAR_CLASSES, 0.5),
    (fedplvm.sparse_contrast, Y, OTHER[:C], FAR_CLASSES, 0.07, 0.25),
    (fedplvm.correction, Y, OTHER[:C], FAR_CLASSES < 0),
    (partial(prototype_distance, reduction="mse_mean"), Y, OTHER[:C], FAR_CLASSES < 0),
]


@pytest.mark.parametrize(("term", "given"), [(row[0], row[1:]) for row in WITHOUT])
def test_without_any_target_there_is_nothing_to_learn(term: Any, given: tuple[Any, ...]) -> None:
    assert float(term(Z, *given)) == 0 and not gradient(lambda x: term(x, *given), Z).any()
