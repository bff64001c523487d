"""FDSE's term against loops: the divergence of each channel, and what the released code computes in its place."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import as64, drawn

from fedshift_clients.methods.fdse import Outcome, Running, shift, shift_as_released

EPS, MOMENTUM = 1e-5, 0.1


def outcomes(seed: int, layers: int = 3) -> list[Outcome]:
    collected = []
    for layer in range(layers):
        c = 4 + layer
        f, g = drawn(seed + layer, c), drawn(seed + layer + 50, c)
        s, v = drawn(seed + layer + 100, c).abs() + 0.2, drawn(seed + layer + 150, c).abs() + 0.2
        collected.append(Outcome(f, s, g, v, EPS, MOMENTUM))
    return collected


def slow(given: list[Outcome], beta: float) -> float:
    weights = [math.exp(beta * place) for place in range(len(given))]
    total = 0.0
    for weight, at in zip(weights, given, strict=True):
        each = []
        for f, s, g, v in zip(*(as64(t) for t in (at.mean, at.var, at.global_mean, at.global_var)), strict=True):
            s, v = s + EPS, v + EPS
            each.append(0.5 * (math.log(s / v) + (v + (g - f) ** 2) / s - 1))
        total += weight / sum(weights) * sum(each) / len(each)
    return total


def slow_released(steps: list[list[Outcome]], beta: float) -> list[float]:
    fn = vn = None
    collected = []
    for given in steps:
        weights = [math.exp(beta * place) for place in range(len(given))]
        total = 0.0
        for weight, at in zip(weights, given, strict=True):
            means = as64(at.mean)
            mf, vf = means.mean(), means.var(ddof=1)
            fn = mf if fn is None else (1 - MOMENTUM) * fn + MOMENTUM * mf
            vn = vf if vn is None else (1 - MOMENTUM) * vn + MOMENTUM * vf
            g, v = as64(at.global_mean), as64(at.global_var)
            first = np.mean((g**2 - fn**2) / (2 * vn))
            second = 0.5 * np.mean(np.log(vn / (v + 1e-8)) + v / (vn + 1e-8))
            total += weight / sum(weights) * float(first + second)
        collected.append(total)
    return collected


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_what_the_released_code_computes_against_loops(beta: float) -> None:
    steps = [outcomes(seed) for seed in (0, 7, 14)]
    running = Running()
    values = [float(shift_as_released(given, beta, running)) for given in steps]
    assert values == pytest.approx(slow_released(steps, beta), rel=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.05, 2.0])
def test_shift_and_its_gradient_against_loops(beta: float) -> None:
    assert float(shift(outcomes(0), beta)) == pytest.approx(slow(outcomes(0), beta), rel=1e-5)
    (at,) = outcomes(3, 1)
    for name in ("mean", "var"):  # of the batch

        def moved(x: Any, name: str = name) -> list[Outcome]:
            return [replace(at, **{name: torch.as_tensor(x)})]

        check_term(
            lambda x, moved=moved: shift(moved(x), beta), lambda x, moved=moved: slow(moved(x), beta), getattr(at, name)
        )  # type: ignore[misc]
