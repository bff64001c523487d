"""MixStyle: its equation against NumPy, its draws, and whole runs with other modules."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import check_term
from numpy.typing import NDArray
from refusals import refused
from support import InlineRun, as64, drawn

from fedshift_clients.models import networks
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.modules import mixstyle
from fedshift_clients.modules.mixstyle import MixStyle, MixStyleModules
from fedshift_clients.modules.params import MixStyleParams
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError

FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
M = "modules.mixstyle."
Float = NDArray[np.float64]


def slow_style(f: Float, b: int, c: int) -> tuple[float, float]:
    pixels = f[b, c].ravel()
    mean = sum(pixels) / len(pixels)
    return mean, (sum((pixel - mean) ** 2 for pixel in pixels) / (len(pixels) - 1) + 1e-6) ** 0.5


def slow_mixed(f: Float, partner: Sequence[int], lam: Sequence[float], cut: Float | None = None) -> Float:
    """Equations 6 to 8, one number after another; the statistics are those of ``cut``, by default of the map."""
    mixed = np.empty_like(f)
    of = f if cut is None else cut
    for b, c in np.ndindex(f.shape[:2]):
        (mu, sigma), (other_mu, other_sigma) = slow_style(of, b, c), slow_style(of, partner[b], c)
        scale, shift = lam[b] * sigma + (1 - lam[b]) * other_sigma, lam[b] * mu + (1 - lam[b]) * other_mu
        mixed[b, c] = scale * (f[b, c] - mu) / sigma + shift
    return mixed


def model_of(network: str = "cnn", **params: Any) -> tuple[MixStyleModules, SplitModel]:
    modules = MixStyleModules(MixStyleParams(**params))
    plan = Blueprint(ModelConfig(name=network), 5, 32, 7)
    return modules, modules.wrap(networks.build(network, 5, seed=7, size=32), plan)


def test_the_map_is_that_of_a_slow_version_and_statistics_have_no_gradient() -> None:
    f, partner, lam = drawn(0, 4, 2, 3, 3), [2, 3, 1, 1], [0.9, 0.2, 1.0, 0.0]

    def run(x: torch.Tensor) -> torch.Tensor:
        return mixstyle.mixed(x, torch.tensor(partner), torch.tensor(lam, dtype=x.dtype))

    np.testing.assert_allclose(as64(run(f)), slow_mixed(as64(f), partner, lam), atol=1e-5)
    weights = as64(drawn(1, 4, 2, 3, 3))
    check_term(
        lambda x: (run(x) * torch.from_numpy(weights).to(x.dtype)).sum(),
        lambda x: float((slow_mixed(x, partner, lam, as64(f)) * weights).sum()),
        f,
    )


def test_partners_across_domains_are_of_others_each_equally_often() -> None:
    domains, rng = np.array([3, 3, 1, 1, 1, 0]), np.random.default_rng(0)
    drawn_often = np.zeros((6, 6))
    for _ in range(1000):
        partner = mixstyle.other_domain(domains, rng)
        assert partner is not None
        drawn_often[np.arange(6), partner] += 1
    same = domains[:, None] == domains
    assert (drawn_often[same] == 0).all()
    wanted = np.where(same, 0, 1000 / (~same).sum(1, keepdims=True))
    assert np.abs(drawn_often - wanted).max() < 100
    assert mixstyle.other_domain(np.array([2, 2, 2]), rng) is None


@pytest.mark.parametrize(("network", "count"), [("cnn_bn", 1), ("resnet10", 3)])
def test_the_lower_stages_are_mixed_and_nothing_else_of_the_model_changes(network: str, count: int) -> None:
    modules, model = model_of(network, probability=1.0)
    plain = networks.build(network, 5, seed=7, size=32)
    assert [*model.state_dict()] == [*plain.state_dict()]
    assert type(model) is SplitModel
    assert (len(modules.layers(model)), model.opens_after) == (count, 1)
    x = drawn(3, 2, 3, 32, 32)
    modules.start_round(model, torch.Generator().manual_seed(0))
    assert torch.equal(model.eval()(x)[1], plain.eval()(x)[1])
    assert not torch.equal(model.train()(x)[1], plain.train()(x)[1])
    with torch.no_grad():  # no training step
        assert torch.equal(model(x)[1], plain(x)[1])


def test_draws_are_the_rounds_and_none_are_made_before_the_first() -> None:
    modules, model = model_of("cnn", probability=1.0, alpha=1.0, stages="all")
    x = drawn(4, 6, 3, 32, 32)
    plain = model.train()(x)[1]
    assert torch.equal(model.eval()(x)[1], plain)
    outcomes = []
    for seed in (0, 0, 1):
        modules.start_round(model.train(), torch.Generator().manual_seed(seed))
        outcomes.append(model(x)[1])
    assert torch.equal(outcomes[0], outcomes[1])
    assert not torch.equal(outcomes[0], outcomes[2])


def test_across_domains_views_of_a_batch_count_one_after_another_and_one_domain_stays() -> None:
    modules, model = model_of("cnn", probability=1.0, mix="crossdomain", alpha=0.5)
    modules.start_round(model.train(), torch.Generator())
    x = drawn(6, 4, 3, 32, 32)
    plain = networks.build("cnn", 5, seed=7, size=32)(x)[1]

    def passed(domains: list[int] | None, images: torch.Tensor = x) -> torch.Tensor:
        of_each = None if domains is None else torch.tensor(domains)
        modules.start_batch(model, Batch(images, torch.zeros(len(images)).long(), 0, domains=of_each))
        return model(images)[1]

    assert torch.equal(passed([1, 1, 1, 1]), plain)
    assert torch.equal(passed(None), plain)
    assert not torch.equal(passed([0, 1, 1, 0]), plain)
    modules.start_batch(model, Batch(x, torch.zeros(4).long(), 0, domains=torch.tensor([0, 1, 1, 1])))
    assert not torch.equal(model(torch.cat([x, x]))[1][:4], plain)  # two views in one pass
    assert torch.allclose(model(x[:3])[1], plain[:3], atol=1e-6)  # other images


OVER = [
    ("fpl", "model.name=cnn_bn images.views=2", "train.precision=bf16"),
    ("fedavg", "modules=[within-domains,mixstyle,f2dc] modules.within-domains.coral=1.0",
     f"allocation.mixing=0.6 {M}mix=crossdomain"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "setting", "more"), OVER)
def test_it_goes_over_any_method_and_changes_what_is_trained(
    method: str, setting: str, more: str, run_inline: InlineRun
) -> None:
    entry = "" if "modules=" in setting else "modules=[mixstyle]"
    plain, mixing = (
        run_inline(nodes=2, method=method, rounds=2, set=f"{FEW} {entry} {setting} {more} {M}probability={p}")
        for p in (0.0, 1.0)
    )
    assert plain.rounds[-1]["losses"].keys() == mixing.rounds[-1]["losses"].keys()
    assert plain.rounds[-1]["losses"]["loss/ce"] != mixing.rounds[-1]["losses"]["loss/ce"]
    assert plain.results["weights_sha256"] != mixing.results["weights_sha256"]


def test_a_network_without_such_stages_is_refused() -> None:
    flat = SplitModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), 5, 3)
    with refused(ConfigError, "mixstyle", "cnn"):
        MixStyleModules(MixStyleParams()).wrap(flat, Blueprint(ModelConfig(name="cnn"), 5, 32, 7))


def test_a_map_is_mixed_as_often_as_its_probability_says() -> None:
    layer = MixStyle(MixStyleParams(probability=0.3)).train()
    layer.start_round(np.random.default_rng(0))
    f = drawn(5, 2, 1, 2, 2).requires_grad_()
    assert 250 < sum(layer.look(layer, (), f) is not None for _ in range(1000)) < 350
