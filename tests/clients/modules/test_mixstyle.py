"""MixStyle: its equation against NumPy, its draws, and whole runs with other modules."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from slow_terms import check, styles, with_style
from support import Float, InlineRun, as64, drawn

from fedshift_clients.models import networks
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.modules import mixstyle
from fedshift_clients.modules.mixstyle import MixStyleModules
from fedshift_clients.modules.params import MixStyleParams
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError

FEW = (
    "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 "
    "evaluate.every=2 evaluate.last=1 evaluate.figures=false evaluate.site_figures=false"
)
M = "modules.mixstyle."


def slow_mixed(f: Float, partner: Any, lam: Float, cut: Float | None = None) -> Any:
    """Equations 6 to 8; the statistics are those of ``cut``, by default of the map."""
    of = f if cut is None else cut
    (mu, sigma), lam = styles(of), lam[:, None]
    changed = with_style(of, *(lam * value + (1 - lam) * value[partner] for value in (mu, sigma)))
    slope = (lam + (1 - lam) * sigma[partner] / sigma)[..., None, None]
    return changed + slope * (f - of)


def model_of(network: str = "cnn", **params: Any) -> tuple[MixStyleModules, SplitModel]:
    modules = MixStyleModules(MixStyleParams(**params))
    plan = Blueprint(ModelConfig(name=network), 5, 32, 7)
    return modules, modules.wrap(networks.build(network, 5, seed=7, size=32), plan)


def test_the_map_is_that_of_a_slow_version_and_statistics_have_no_gradient() -> None:
    f, partner, lam = drawn(0, 4, 2, 3, 3), torch.tensor([2, 3, 1, 1]), torch.tensor([0.9, 0.2, 1.0, 0.0])
    found = mixstyle.mixed(f, partner, lam)
    np.testing.assert_allclose(as64(found), slow_mixed(as64(f), partner.numpy(), as64(lam)), atol=1e-5)

    def fast(x: torch.Tensor, partner: Any, lam: Any, cut: Any, w: torch.Tensor) -> torch.Tensor:
        return (mixstyle.mixed(x, partner, lam) * w).sum()

    check(fast, lambda *given: (slow_mixed(*given[:4]) * given[4]).sum(), f, partner, lam, f, drawn(1, *f.shape))


@pytest.mark.parametrize(("network", "count"), [("cnn_bn", 1), ("resnet10", 3)])
def test_the_lower_stages_are_mixed_and_nothing_else_of_the_model_changes(network: str, count: int) -> None:
    (modules, model), x = model_of(network, probability=1.0), drawn(3, 2, 3, 32, 32)
    plain = networks.build(network, 5, seed=7, size=32)
    assert [*model.state_dict()] == [*plain.state_dict()]
    assert (type(model), len(modules.layers(model)), model.opens_after) == (SplitModel, count, 1)
    modules.start_round(model, torch.Generator().manual_seed(0))
    assert torch.equal(model.eval()(x)[1], plain.eval()(x)[1])
    assert not torch.equal(model.train()(x)[1], plain.train()(x)[1])
    with torch.no_grad():  # no training step
        assert torch.equal(model(x)[1], plain(x)[1])


def test_across_domains_views_of_a_batch_count_one_after_another_and_one_domain_stays() -> None:
    modules, model = model_of("cnn", probability=1.0, mix="crossdomain", alpha=0.5)
    modules.start_round(model.train(), torch.Generator())
    x = drawn(6, 4, 3, 32, 32)
    plain = networks.build("cnn", 5, seed=7, size=32)(x)[1]

    def passed(domains: list[int] | None) -> torch.Tensor:
        of_each = None if domains is None else torch.tensor(domains)
        modules.start_batch(model, Batch(x, torch.zeros(4).long(), 0, domains=of_each))
        return model(x)[1]

    assert torch.equal(passed([1, 1, 1, 1]), plain) and torch.equal(passed(None), plain)
    assert not torch.equal(passed([0, 1, 1, 0]), plain)
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
    text = f"{FEW} {'' if 'modules=' in setting else 'modules=[mixstyle]'} {setting} {more} {M}probability="
    plain, mixing = (run_inline(f"method={method} nodes=2 rounds=2 {text}{p}") for p in (0.0, 1.0))
    losses, others = (run.rounds[-1]["losses"] for run in (plain, mixing))
    assert losses.keys() == others.keys() and losses["loss/ce"] != others["loss/ce"]
    assert plain.results["weights_sha256"] != mixing.results["weights_sha256"]


def test_a_network_without_such_stages_is_refused() -> None:
    flat = SplitModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), 5, 3)
    with refused(ConfigError, "mixstyle", "cnn"):
        MixStyleModules(MixStyleParams()).wrap(flat, Blueprint(ModelConfig(name="cnn"), 5, 32, 7))
