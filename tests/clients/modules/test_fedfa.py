"""FedFA: its equations against NumPy, the variance over nodes out of averages, and a whole run."""

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from slow_terms import check, styles, with_style
from support import as64, drawn

from fedshift_clients.modules import fedfa
from fedshift_clients.modules.fedfa import FeatureAugmentation, SharedStatistic
from fedshift_clients.modules.params import FedFAParams

Float = NDArray[np.float64]


def slow_augmented(f: Float, noise: Float, gammas: Float) -> Float:
    """Return the augmented map."""
    moved = []
    for value, gamma, eps in zip(styles(f), gammas, noise, strict=True):
        moved.append(value + eps * np.sqrt((1 + gamma) * (value.var(0, ddof=1) + 1e-6)))
    return with_style(f, *moved)


def test_the_map_and_its_gradient_are_those_of_a_slow_version() -> None:
    def fast(x: torch.Tensor, noise: torch.Tensor, gammas: torch.Tensor, w: torch.Tensor) -> Any:
        return (fedfa.augmented(x, (gammas[0], gammas[1]), (noise[0], noise[1])) * w).sum()

    f, noise, gammas = drawn(0, 4, 2, 3, 3), drawn(1, 2, 4, 2), torch.tensor([[0.3, 1.7], [1.0, 0.2]])
    found = fedfa.augmented(f, (gammas[0], gammas[1]), (noise[0], noise[1]))
    np.testing.assert_allclose(as64(found), slow_augmented(as64(f), as64(noise), as64(gammas)), atol=1e-5)
    check(
        fast,
        lambda x, noise, gammas, w: (slow_augmented(x, noise, gammas) * w).sum(),
        f,
        noise,
        gammas,
        drawn(2, *f.shape),
    )


@settings(max_examples=25)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 99), st.sampled_from([0.01, 1.0, 30.0]))
def test_averages_of_what_nodes_send_give_the_variance_over_them(sizes: list[int], seed: int, far: float) -> None:
    """Far from 0, where a difference of two mean squares would have nothing left of it."""
    rng, weights = np.random.default_rng(seed), np.array(sizes) / sum(sizes)
    first, nodes = far + rng.normal(size=4), [SharedStatistic(4, 0.0) for _ in sizes]
    for statistic in nodes:
        statistic.mean.copy_(torch.from_numpy(first))
        statistic.start_round()
        for _ in range(3):
            statistic.add(torch.from_numpy(first + 5 * rng.normal(size=(6, 4))).float(), 0.9)
    merged = SharedStatistic(4, 0.0)
    for name, tensor in merged.state_dict().items():
        tensor.copy_(torch.from_numpy(weights @ np.stack([as64(node.state_dict()[name]) for node in nodes])))
    means = np.stack([as64(node.mean) for node in nodes])
    wide = 1 / (1 + 1 / (weights @ (means - weights @ means) ** 2 + 1e-6))
    merged.start_round()
    np.testing.assert_allclose(as64(merged.gamma), wide / wide.mean(), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(as64(merged.origin), weights @ means, rtol=1e-6)


def test_running_statistics_move_where_a_map_is_augmented_and_gamma_stays_for_the_round() -> None:
    layer = FeatureAugmentation(2, FedFAParams(probability=1.0, momentum=0.75)).train()
    layer.start_round(np.random.default_rng(0))
    f, one = drawn(3, 5, 2, 4, 4), drawn(4, 1, 2, 4, 4)
    mean, deviation = (value.mean(0) for value in styles(as64(f)))
    assert layer.look(layer, (), f) is not None
    state = {name: as64(tensor) for name, tensor in layer.state_dict().items()}
    np.testing.assert_allclose(state["mu.mean"], 0.25 * mean, atol=1e-6)
    np.testing.assert_allclose(state["sigma.mean"], 0.75 + 0.25 * deviation, atol=1e-6)
    np.testing.assert_allclose(state["sigma.square"], (0.25 * (deviation - 1)) ** 2, atol=1e-6)
    assert layer.mu is not None and layer.mu.gamma.tolist() == [1, 1]  # a variance of 1 before the first round
    assert torch.equal(layer.changed(one, np.random.default_rng(0)), one)
    with torch.no_grad():
        assert layer.look(layer, (), f) is None
    assert layer.eval().look(layer, (), f) is None
    np.testing.assert_array_equal(as64(layer.mu.mean), state["mu.mean"])
