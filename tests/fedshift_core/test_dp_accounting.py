"""What private training spends: against dp-accounting itself, Flower's accountant and a slow formula of its own."""

import importlib.util
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedshift_app.config.sections import PrivacyConfig
from fedshift_core import dp_accounting
from fedshift_core.dp_accounting import Spending, noise_for, spending
from fedshift_core.errors import ConfigError

pytest.importorskip("dp_accounting", reason="fedshift[dp] is not installed")
DELTA = 1e-5


def slow_epsilon(rate: float, noise: float, steps: int, orders: range) -> float:
    """Return epsilon by the sum of Mironov, Talwar & Zhang (2019), section 3.3, and Canonne et al. (2020), prop. 12."""
    best = math.inf
    for order in orders:
        terms = (
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * noise * noise))
            for k in range(order + 1)
        )
        renyi = steps * math.log(math.fsum(terms)) / (order - 1)
        best = min(best, renyi + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1))
    return best


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.1, 2.0, 100), (0.02, 1.1, 400), (0.5, 6.0, 60), (1.0, 8.0, 9)])
def test_epsilon_is_that_of_the_slow_formula(
    rate: float, noise: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = range(2, 33)
    wanted = slow_epsilon(rate, noise, steps, orders)
    assert Spending(1, rate, steps, noise, 0.0, DELTA).epsilon(1) <= wanted * (1 + 1e-9)  # by more orders
    monkeypatch.setattr(dp_accounting, "ORDERS", tuple(orders))
    dp_accounting._composed.cache_clear()
    assert Spending(1, rate, steps, noise, 0.0, DELTA).epsilon(1) == pytest.approx(wanted, rel=1e-6)
    dp_accounting._composed.cache_clear()


def test_one_release_over_all_images_spends_a_little_more_than_the_exact_gaussian() -> None:
    """As ``local-dp`` composes, exactly: its noise is 2C z there, with sensitivity 2C."""
    noise, rounds = 5.0, 10
    exact = PrivacyConfig(epsilon=math.sqrt(2 * math.log(1.25 / DELTA)) / noise, delta=DELTA).spent(rounds)
    assert exact < Spending(1, 1.0, 1, noise, 0.0, DELTA).epsilon(rounds) < 1.2 * exact


@settings(max_examples=4)
@given(st.floats(0.3, 20), st.floats(0.02, 1), st.integers(1, 300), st.sampled_from([0.0, 1.0, 3.0]))
def test_the_noise_of_a_target_meets_it_and_little_less_does_not(
    target: float, rate: float, steps: int, ratio: float
) -> None:
    def spends(noise: float) -> float:
        releases = [(1.0, ratio * noise, 3)] if ratio else []
        return dp_accounting._composed(((rate, noise, steps), *releases), DELTA)

    noise = noise_for(target, rate, steps, 3, ratio, DELTA)
    assert spends(noise) <= target < spends(0.99 * noise)


def test_each_node_has_its_own_rate_steps_and_noise() -> None:
    privacy = PrivacyConfig(name="dp-sgd", target_epsilon=3.0)
    nodes = [spending(privacy, images, 32, 2, 5, prototypes=False) for images in (20, 100, 400)]
    _, small, large = nodes
    assert [(node.sampling_rate, node.steps) for node in nodes] == [(1, 2), (0.32, 8), (0.08, 26)]  # 1: all images
    assert small.noise_multiplier > large.noise_multiplier
    assert 2.9 < small.epsilon(5) <= 3 and 2.9 < large.epsilon(5) <= 3
    assert small.epsilon(1) < small.epsilon(2) < small.epsilon(5)


def test_prototypes_are_accounted_for() -> None:
    privacy = PrivacyConfig(name="dp-sgd", noise_multiplier=2.0, prototype_noise=4.0)
    with_them, without = (spending(privacy, 300, 32, 1, 5, prototypes=sent) for sent in (True, False))
    assert (with_them.prototype_noise, without.prototype_noise) == (8.0, 0.0)
    assert with_them.epsilon(5) > without.epsilon(5) * 1.05


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("delta=0.01", {"noise_multiplier": 1.0, "delta": 0.01}),
        ("target_epsilon=0.01", {"target_epsilon": 0.01, "delta": 1e-20}),
    ],
)
def test_too_large_a_delta_and_too_small_a_target_are_refused(key: str, given: Any) -> None:
    with refused(ConfigError, key):
        spending(PrivacyConfig(name="dp-sgd", **given), 100, 32, 1, 1, prototypes=False)


def test_without_the_packages_a_run_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(ConfigError, "dp_accounting", "fedshift[dp]"):
        dp_accounting.check_installed()
