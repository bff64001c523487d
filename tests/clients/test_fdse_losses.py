"""FDSE's term against loops: the divergence of each channel, and what the released code computes in its place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from slow_terms import check
from support import as64, drawn

from fedshift_clients.methods.fdse import Outcome, Running, shift, shift_as_released


def outcomes(seed: int, layers: int = 3) -> list[Outcome]:
    def layer(at: int, c: int) -> Outcome:
        means, variances = drawn(at, 2, c), drawn(at + 100, 2, c).abs() + 0.2
        return Outcome(means[0], variances[0], means[1], variances[1], 1e-5, 0.1)

    return [layer(seed + place, 4 + place) for place in range(layers)]


def weighed(each: list[Any], beta: float) -> Any:
    return np.average(each, weights=np.exp(beta * np.arange(len(each))))


def slow(given: list[Outcome], beta: float) -> Any:
    each = []
    for at in given:
        f, s, g, v = (
            np.asarray(part, float) for part in (at.mean, at.var + 1e-5, at.global_mean, at.global_var + 1e-5)
        )
        each.append(0.5 * (np.log(s / v) + (v + (g - f) ** 2) / s - 1).mean())
    return weighed(each, beta)


def test_what_the_released_code_computes_against_numpy() -> None:
    running, fn, vn = Running(), None, None
    for seed in (0, 7, 14):
        each = []
        for at in outcomes(seed):
            mean, g, v = as64(at.mean), as64(at.global_mean), as64(at.global_var)
            fn = mean.mean() if fn is None else 0.9 * fn + 0.1 * mean.mean()
            vn = mean.var(ddof=1) if vn is None else 0.9 * vn + 0.1 * mean.var(ddof=1)
            each.append(((g**2 - fn**2) / (2 * vn) + 0.5 * (np.log(vn / (v + 1e-8)) + v / (vn + 1e-8))).mean())
        found = shift_as_released(outcomes(seed), 0.05, running)
        assert float(found) == pytest.approx(weighed(each, 0.05), rel=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.05, 2.0])
@pytest.mark.parametrize("name", ["mean", "var"])  # of the batch
def test_shift_and_its_gradient_against_numpy(beta: float, name: str) -> None:
    def of(term: Any) -> Any:
        first, *others = outcomes(3)
        return lambda x: term([replace(first, **{name: torch.as_tensor(x)}), *others], beta)

    check(of(shift), of(slow), getattr(outcomes(3)[0], name))
