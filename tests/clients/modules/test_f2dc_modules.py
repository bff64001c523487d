"""F2DC's modules: Eqs 3 to 9 over all insertions, noise, the pass that counts, refusals."""

from typing import Any

import pytest
import torch
from refusals import refused
from support import batch as batch_of
from support import drawn, rng
from torch import Tensor, nn

from fedshift_clients.models.networks import Blueprint, SplitModel, build
from fedshift_clients.models.stages import feature_stages
from fedshift_clients.modules import f2dc_terms as equations
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


def images(b: int = 6, seed: int = 0, size: int = 32) -> Tensor:
    return drawn(seed, b, 3, size, size)


def batch(b: int = 6, seed: int = 0, y: list[int] | None = None) -> Batch:
    return batch_of(b, seed, y, classes=C)


def enlarged(model: F2DCModel) -> F2DCModel:
    """Make attributions large, so that masks differ clearly from one half."""
    with torch.no_grad():
        for at in model.decoupling.values():
            at.decoupler[-1].weight.mul_(5)  # type: ignore[index, union-attr]
    return model


# --- shapes and counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoder",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 8)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)),
    ],
)
def test_network_without_stages_is_refused_by_name(encoder: nn.Module) -> None:
    assert feature_stages(encoder) is None
    with refused(ConfigError, "mlp"):
        modules().wrap(SplitModel(encoder, 8, C), Blueprint(ModelConfig(name="mlp"), C, 32, SEED))


# --- Eqs 3 to 9 ------------------------------------------------------------------------------------


def expected_terms(model: F2DCModel, given: Batch, seed: int, p: F2DCParams) -> dict[str, Tensor]:
    """Return the equations; modules in training mode, as they are, and noise as the first pass of a round draws it."""
    drawn = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng(seed))))
    h, y, latents = given.x, given.y, []
    for n, stage in enumerate(model._stages.maps, start=1):
        f = h = stage(h)
        if f"stage{n}" in model.decoupling:
            at: Any = model.decoupling[f"stage{n}"]
            mask = equations.soft_mask(at.decoupler(f), equations.pair_noise(f, p.noise, drawn), p.sigma)
            corrected = (1 - mask) * at.corrector((1 - mask) * f)
            h = f + corrected
            maps = (mask * f, (1 - mask) * f, (1 - mask) * f + corrected)
            latents.append((at.auxiliary, *(part.mean((2, 3)) for part in maps)))
    logits, terms = model.classifier(model._stages.rest(h)), {"dfd": torch.zeros(()), "dfc": torch.zeros(())}
    for m, plus, minus, star in latents:
        wrong = equations.most_confident_wrong(logits if p.y_hat_from == "classifier" else m(minus), y)
        apart = equations.decoupling(plus, minus, m(plus), m(minus), y, wrong, p.tau)
        terms["dfd"] += p.lambda1 * apart / len(latents)
        terms["dfc"] += p.lambda2 * equations.calibration(m(star), y) / len(latents)
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
    p, model, given = F2DCParams(**params), enlarged(wrapped(name, **params)), batch()
    model.train()
    with torch.no_grad():
        expected = expected_terms(model, given, 3, p)
    model.start_round(rng(3))
    _, logits = model(given.x)
    terms = {"ce": nn.functional.cross_entropy(logits, given.y)} | F2DCModules(p).terms(model, given)
    assert list(terms) == list(expected)
    for key, term in terms.items():
        torch.testing.assert_close(term.detach(), expected[key], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("feature", ["fused", "f_plus", "f_minus", "f_star"])
@pytest.mark.parametrize("insert_after", [[2], [1, 2]])
def test_test_feature_chooses_the_last_map_at_test_only(feature: str, insert_after: list[int]) -> None:
    """The fused map is f + (1 - mask) A_C((1 - mask) f)."""
    fused = enlarged(wrapped(insert_after=insert_after))
    chosen = enlarged(wrapped(insert_after=insert_after, test_feature=feature))
    x = images()
    for model in (fused, chosen):
        model.start_round(rng(2))
        model.train()
    assert torch.equal(fused(x)[1], chosen(x)[1])
    h = x
    with torch.no_grad():
        for n, stage in enumerate(fused.eval()._stages.maps, start=1):
            f = h = stage(h)
            if n in insert_after:
                at = fused.decoupling[f"stage{n}"]
                mask = torch.sigmoid(at.decoupler(f) / 0.1)  # type: ignore[operator]
                corrected = (1 - mask) * at.corrector((1 - mask) * f)  # type: ignore[operator]
                h = f + corrected
        maps = {"fused": h, "f_plus": mask * f, "f_minus": (1 - mask) * f, "f_star": (1 - mask) * f + corrected}
        features, logits = chosen.eval()(x)
        torch.testing.assert_close(features, chosen._stages.rest(maps[feature]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logits, chosen.classifier(features))


# --- noise -----------------------------------------------------------------------------------------


def test_noise_of_training_comes_from_the_rounds_generator_alone() -> None:
    model, x = enlarged(wrapped()), images()
    model.train()

    def two_passes(seed: int) -> list[Tensor]:
        model.start_round(rng(seed))
        state = torch.random.get_rng_state()
        values = [model(x)[1].detach() for _ in range(2)]
        assert torch.equal(torch.random.get_rng_state(), state)
        return values

    first, again, other = two_passes(1), two_passes(1), two_passes(2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_mask_at_test_has_no_noise_unless_asked_for() -> None:
    x = images()
    model = enlarged(wrapped()).eval()
    noisy = enlarged(wrapped(eval_noise=True)).eval()
    with torch.no_grad():
        assert torch.equal(model(x)[1], model(x)[1])
        first, second = noisy(x)[1], noisy(x)[1]
        assert not torch.equal(first, second) and not torch.equal(first, model(x)[1])
        plainly = wrapped(local_modules="local", eval_modules="none").eval()
        assert torch.equal(plainly(x)[1], plain().eval()(x)[1])
        noisy.eval()  # each scoring begins so
        assert torch.equal(noisy(x)[1], first)


# --- what a pass leaves ----------------------------------------------------------------------------


def test_first_training_pass_counts() -> None:
    model, given, p = enlarged(wrapped()), batch(), modules()
    model.train()
    model(given.x)
    alone = p.terms(model, given)
    model.eval()
    model(images(3))
    model.train()
    with torch.no_grad():
        model(images(9))
    model.start_round(rng(1))
    model(given.x)
    model(images(4, seed=8))  # another view, say
    assert all(torch.equal(term, alone[key]) for key, term in p.terms(model, given).items())


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
    model(images(5))
    with refused(RuntimeError, 5, 6):
        p.terms(model, batch())
    model(images(5))
    p.start_round(model, rng(1))  # forgets what the round before left
    with refused(RuntimeError):
        p.terms(model, batch())


# --- refusals --------------------------------------------------------------------------------------


def test_a_single_class_is_refused() -> None:
    with refused(ConfigError, "class"):
        modules().wrap(plain(classes=1), plan(classes=1))
