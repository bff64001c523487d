"""CORAL, MMD, IRM and V-REx as modules: the pass that counts, and a whole run with nodes of several domains."""

from itertools import combinations

import numpy as np
import pytest
import torch
from refusals import refused
from slow_terms import cross_entropy
from support import as64, drawn, labels
from torch.nn import functional as F

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.modules import within
from fedshift_clients.modules.params import WithinDomainsParams
from fedshift_clients.modules.within import WithinDomainsModules
from fedshift_clients.training.batches import Batch


def model_of(params: WithinDomainsParams) -> tuple[WithinDomainsModules, SplitModel]:
    modules = WithinDomainsModules(params)
    plain = SplitModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), 5, 3)
    model = modules.wrap(plain, None)  # type: ignore[arg-type]
    modules.start_round(model, torch.Generator())
    return modules, model.train()


def batch(domains: list[int] | None) -> Batch:
    rng = torch.Generator().manual_seed(1)
    number = 6 if domains is None else len(domains)
    x, y = torch.randn(number, 3, 2, 2, generator=rng), torch.randint(3, (number,), generator=rng)
    return Batch(x, y, 0, domains=None if domains is None else torch.tensor(domains))


def test_terms_are_those_of_the_first_pass_over_groups_of_two_or_more() -> None:
    modules, model = model_of(WithinDomainsParams(coral=2.0, rex=3.0))
    images = batch([4, 0, 4, 0, 7, 4])
    z, logits = model(images.x)
    model(2 * images.x)  # another pass of the method
    found = modules.terms(model, images)
    one, other = torch.tensor([1, 3]), torch.tensor([0, 2, 5])  # of domain 7 there is one image
    assert found["coral"].item() == pytest.approx(2 * within.coral([z[one], z[other]]).item(), rel=1e-6)
    labels = [images.y[one], images.y[other]]
    assert found["rex"].item() == pytest.approx(
        3 * within.rex([logits[one], logits[other]], labels, F.cross_entropy).item(), rel=1e-6
    )
    assert found.keys() == {"coral", "rex"}
    found["coral"].backward()  # type: ignore[no-untyped-call]
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("domains", [None, [2] * 6, [0, 0, 0, 0, 0, 1]])
def test_a_batch_of_one_domain_has_no_term(domains: list[int] | None) -> None:
    modules, model = model_of(WithinDomainsParams(mmd=1.0))
    images = batch(domains)
    model(images.x)
    assert modules.terms(model, images) == {}


def test_another_first_pass_is_an_error() -> None:
    modules, model = model_of(WithinDomainsParams(mmd=1.0))
    images = batch([0, 0, 1, 1])
    model(images.x[:3])
    with refused(RuntimeError, 3, 4):
        modules.terms(model, images)
    with refused(RuntimeError):
        modules.terms(model, images)


# --- terms over the domains within a node -------------------------------------------------------------

SIZES = (5, 7, 2)
Z = [drawn(n, n, 3).double() for n in SIZES]
LOGITS = [drawn(n + 9, n, 4).double() for n in SIZES]
LABELS = [labels(n, n, 4) for n in SIZES]
PAIRS = list(combinations([part.numpy() for part in Z], 2))


def test_coral() -> None:
    expected = [((a.mean(0) - b.mean(0)) ** 2).mean() + ((np.cov(a.T) - np.cov(b.T)) ** 2).mean() for a, b in PAIRS]
    assert float(within.coral(Z)) == pytest.approx(np.mean(expected), rel=1e-12)


def test_mmd() -> None:
    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        far = ((a[:, None] - b) ** 2).sum(2)
        return float(np.mean(sum(np.exp(-gamma * far) for gamma in (1e-3, 1e-2, 0.1, 1, 10, 100, 1000))))

    expected = np.mean([kernel(a, a) + kernel(b, b) - 2 * kernel(a, b) for a, b in PAIRS])
    assert float(within.mmd(Z)) == pytest.approx(expected, rel=1e-12)


def test_irm_is_the_product_of_the_gradients_of_both_halves() -> None:
    def slope(scores: torch.Tensor, y: torch.Tensor) -> float:
        up, down = (cross_entropy(as64(scores) * by, y) for by in (1 + 1e-5, 1 - 1e-5))
        return (up - down) / 2e-5

    expected = [slope(s[::2], y[::2]) * slope(s[1::2], y[1::2]) for s, y in zip(LOGITS, LABELS, strict=True)]
    assert float(within.irm(LOGITS, LABELS, F.cross_entropy)) == pytest.approx(np.mean(expected), rel=1e-7)


def test_irm_has_a_gradient_itself() -> None:
    logits = [part.clone().requires_grad_() for part in LOGITS]
    assert torch.autograd.gradcheck(lambda *parts: within.irm(parts, LABELS, F.cross_entropy), logits)


def test_rex_is_the_variance_of_the_domains_losses() -> None:
    expected = np.var([cross_entropy(as64(scores), y) for scores, y in zip(LOGITS, LABELS, strict=True)])
    assert float(within.rex(LOGITS, LABELS, F.cross_entropy)) == pytest.approx(expected, rel=1e-12)
