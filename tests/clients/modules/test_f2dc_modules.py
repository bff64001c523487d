"""F2DC's modules: Eqs 3 to 9 over all insertions, noise, the pass that counts, refusals."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from slow_terms import check, check_edges, cosines, cross_entropy
from support import Float, as64, drawn, fedavg, labels, new_client, rng
from support import batch as batch_of
from torch import Tensor, nn

from fedshift_app.config.resolving import resolve
from fedshift_app.node.setup import initial_model, is_personal
from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import Blueprint, SplitModel, build
from fedshift_clients.models.stages import feature_stages
from fedshift_clients.modules import f2dc_terms as equations
from fedshift_clients.modules import f2dc_terms as terms
from fedshift_clients.modules.f2dc import F2DCModel, F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError

C, SEED = 4, 5


def plan(name: str = "cnn", classes: int = C) -> Blueprint:
    return Blueprint(ModelConfig.model_validate({"name": name}), classes, 32, SEED)


def plain(name: str = "cnn", classes: int = C) -> SplitModel:
    return build(name, classes, SEED)


def modules(**params: Any) -> F2DCModules:
    return F2DCModules(F2DCParams(**params))


def wrapped(name: str = "cnn", classes: int = C, **params: Any) -> F2DCModel:
    model = modules(**params).wrap(plain(name, classes), plan(name, classes))
    assert isinstance(model, F2DCModel)
    model.start_round(rng(1))
    return model


batch = partial(batch_of, 6, 0, classes=C)
images = partial(drawn, 0, 6, 3, 32, 32)


def enlarged(model: F2DCModel) -> F2DCModel:
    """Make attributions large, so that masks differ clearly from one half."""
    with torch.no_grad():
        for at in model.decoupling.values():
            at.decoupler[-1].weight.mul_(5)  # type: ignore[index, union-attr]
    return model


# --- shapes and counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Flatten(), nn.Linear(3072, 8)], [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()],
        [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()], [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)],
    ],
)  # fmt: skip
def test_network_without_stages_is_refused_by_name(layers: list[nn.Module]) -> None:
    encoder = nn.Sequential(*layers)
    assert feature_stages(encoder) is None
    with refused(ConfigError, "mlp"):
        modules().wrap(SplitModel(encoder, 8, C), plan("mlp"))


# --- Eqs 3 to 9 ------------------------------------------------------------------------------------


def slow_pass(model: F2DCModel, x: Tensor, p: F2DCParams, seed: int | None) -> tuple[Tensor, list[tuple[Any, ...]]]:
    """Return the last map, and of each insertion its classifier and f+, f- and f*; noise as a round draws it first."""
    noise, h, latents = rng(int(torch.randint(2**62, (), generator=rng(seed or 0)))), x, []
    for n, stage in enumerate(model._stages.maps, start=1):
        f = h = stage(h)
        if f"stage{n}" in model.decoupling:
            at: Any = model.decoupling[f"stage{n}"]
            drawn = None if seed is None else equations.pair_noise(f, p.noise, noise)
            mask = equations.soft_mask(at.decoupler(f), drawn, p.sigma)
            corrected = (1 - mask) * at.corrector((1 - mask) * f)
            h = f + corrected
            latents.append((at.auxiliary, mask * f, (1 - mask) * f, (1 - mask) * f + corrected))
    return h, latents


def expected_terms(model: F2DCModel, given: Batch, seed: int, p: F2DCParams) -> dict[str, Tensor]:
    """Return the equations; modules in training mode, as they are."""
    (h, latents), y = slow_pass(model, given.x, p, seed), given.y
    logits, terms = model.classifier(model._stages.rest(h)), {"dfd": torch.zeros(()), "dfc": torch.zeros(())}
    for m, *maps in latents:
        plus, minus, star = (part.mean((2, 3)) for part in maps)
        wrong = equations.most_confident_wrong(logits if p.y_hat_from == "classifier" else m(minus), y)
        apart = equations.decoupling(plus, minus, m(plus), m(minus), y, wrong, p.tau)
        terms["dfd"] += p.lambda1 * apart / len(latents)
        terms["dfc"] += p.lambda2 * nn.functional.cross_entropy(m(star), y) / len(latents)
    return {"ce": nn.functional.cross_entropy(logits, y)} | terms


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("cnn", {"sigma": 0.5, "tau": 0.3, "lambda1": 2.0, "lambda2": 0.7}),
        ("cnn_bn", {"noise": "gumbel_pair", "y_hat_from": "aux"}),
        ("resnet10", {"insert_after": (2, 4)}),
    ],
)
def test_terms_are_the_equations(name: str, params: dict[str, Any]) -> None:
    p, model, given = F2DCParams(**params), enlarged(wrapped(name, **params)).train(), batch()
    with torch.no_grad():
        expected = expected_terms(model, given, 3, p)
        model.start_round(rng(3))
    _, logits = model(given.x)
    terms = {"ce": nn.functional.cross_entropy(logits, given.y)} | F2DCModules(p).terms(model, given)
    torch.testing.assert_close(terms, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("place", "feature"), enumerate(["fused", "f_plus", "f_minus", "f_star"]))
@pytest.mark.parametrize("insert_after", [[2], [1, 2]])
def test_test_feature_chooses_the_last_map_at_test_only(place: int, feature: str, insert_after: list[int]) -> None:
    """The fused map is f + (1 - mask) A_C((1 - mask) f)."""
    fused, chosen = (enlarged(wrapped(insert_after=insert_after, test_feature=f)) for f in ("fused", feature))
    for model in (fused, chosen):
        model.train().start_round(rng(2))
    assert torch.equal(fused(images())[1], chosen(images())[1])
    with torch.no_grad():
        h, latents = slow_pass(fused.eval(), images(), F2DCParams(), None)
        features, logits = chosen.eval()(images())
        wanted = chosen._stages.rest([h, *latents[-1][1:]][place])
    torch.testing.assert_close(features, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, chosen.classifier(features))


# --- noise -----------------------------------------------------------------------------------------


def test_mask_at_test_has_no_noise_unless_asked_for() -> None:
    x, model, noisy = images(), enlarged(wrapped()).eval(), enlarged(wrapped(eval_noise=True)).eval()
    with torch.no_grad():
        first, second, silent = noisy(x)[1], noisy(x)[1], model(x)[1]
        assert torch.equal(model(x)[1], silent)
        assert not torch.equal(first, second) and not torch.equal(first, silent)
        assert torch.equal(noisy.eval()(x)[1], first)  # each scoring begins so
        plainly = wrapped(local_modules="local", eval_modules="none").eval()
        assert torch.equal(plainly(x)[1], plain().eval()(x)[1])


# --- what a pass leaves ----------------------------------------------------------------------------


def test_host_that_made_no_pass_is_an_error() -> None:
    p = modules()
    with refused(RuntimeError, "start_round"):
        p.wrap(plain(), plan()).train()(images())
    model = wrapped()
    model.train()
    model(images())
    p.terms(model, batch())
    with refused(RuntimeError):
        p.terms(model, batch())
    model(drawn(0, 5, 3, 32, 32))
    with refused(RuntimeError, 5, 6):
        p.terms(model, batch())
    model(drawn(0, 5, 3, 32, 32))
    p.start_round(model, rng(1))  # forgets what the round before left
    with refused(RuntimeError):
        p.terms(model, batch())


# --- refusals --------------------------------------------------------------------------------------


def test_a_single_class_is_refused() -> None:
    with refused(ConfigError, "class"):
        modules().wrap(plain(classes=1), plan(classes=1))


# --- equations 3, 5 and 7 of F2DC ---------------------------------------------------------------------

# --- the slow versions -----------------------------------------------------------------------------


# --- Eq. 3 -----------------------------------------------------------------------------------------


@given(st.floats(-4, 4), st.floats(0.02, 0.98), st.floats(0.02, 0.98), st.sampled_from([0.1, 0.3, 1.0, 5.0]))
@settings(max_examples=200)
def test_stable_mask_is_the_printed_one(s: float, u_a: float, u_b: float, sigma: float) -> None:
    """Eq. 3."""
    g_a, g_b = (math.log(u) - math.log(1 - u) for u in (u_a, u_b))
    one, other = (((1 / (1 + math.exp(-x))) * math.exp(g)) ** (1 / sigma) for x, g in ((s, g_a), (-s, g_b)))
    result = terms.soft_mask(torch.tensor([s]), torch.tensor([g_a - g_b]), sigma)
    assert float(result) == pytest.approx(one / (one + other), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("kind", "variance"), [("logistic_pair", 2 * math.pi**2 / 3), ("gumbel_pair", math.pi**2 / 3)])
def test_noise_has_the_variance_of_its_kind(kind: terms.Noise, variance: float) -> None:
    # 6.58 and 3.29 (section 7, row 5).
    noise = terms.pair_noise(torch.zeros(400_000), kind, rng())
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    assert float(noise.var()) == pytest.approx(variance, rel=0.02)


# --- y^ --------------------------------------------------------------------------------------------


# --- Eqs 5 and 7 -----------------------------------------------------------------------------------


def slow_wrong(logits: Any, y: Any) -> Any:
    """Return the second best class where the best is correct, else the best (A6)."""
    best = np.argsort(-logits)
    return np.where(best[:, 0] == y, best[:, 1], best[:, 0])


def slow_decoupling(plus: Float, minus: Float, m_plus: Float, m_minus: Float, y: Any, tau: float) -> float:
    apart = float(np.diag(cosines(plus, minus)).mean()) / tau
    return apart + cross_entropy(m_plus, y) + cross_entropy(m_minus, slow_wrong(m_minus, y))


@pytest.mark.parametrize("tau", [0.02, 0.06, 1.0])
def test_decoupling_and_the_most_confident_wrong_class(tau: float) -> None:
    def fast(plus: Tensor, minus: Tensor, m_plus: Tensor, m_minus: Tensor, y: Tensor, tau: float) -> Tensor:
        wrong = terms.most_confident_wrong(m_minus, y)
        assert wrong.tolist() == slow_wrong(as64(m_minus), y.numpy()).tolist()
        return terms.decoupling(plus, minus, m_plus, m_minus, y, wrong, tau)

    for seed in range(2):
        parts = drawn(seed, 7, 5), drawn(seed + 10, 7, 5), drawn(20, 7, 4), drawn(30, 7, 4)
        check(fast, slow_decoupling, *parts, labels(seed, 7, 4), tau)
        check_edges(terms.separability, parts[0], parts[1], tau, low=-100)  # has another bound
    check_edges(lambda x: terms.soft_mask(100 * x, None, 0.1).sum(), parts[0])


# --- F2DC on a node -----------------------------------------------------------------------------------


def client(params: dict[str, Any], **options: Any) -> DomainClient:
    return new_client(DomainClient, modules=[F2DCModules(F2DCParams(**params))], index=0, **options)


# --- switches --------------------------------------------------------------------------------------


# --- a round ---------------------------------------------------------------------------------------


def test_local_modules_make_no_personal_model() -> None:
    made = client({"local_modules": "local", "eval_modules": "none"})
    assert made.shared_names == fedavg().shared_names
    for scored, personal in (("none", False), ("client_mean", True)):
        config = resolve({"method": "f2dc", "set": f"method.local_modules=local method.eval_modules={scored}"})
        assert is_personal(config, initial_model(config)) is personal
