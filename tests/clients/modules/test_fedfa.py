"""FedFA: its equations against NumPy, the variance over nodes out of averages, and a whole run."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import check_term
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support import InlineRun, as64, drawn

from fedshift_clients.modules import fedfa
from fedshift_clients.modules.fedfa import FeatureAugmentation, SharedStatistic
from fedshift_clients.modules.params import FedFAParams

FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
Float = NDArray[np.float64]


def slow_gamma(variances: Sequence[float]) -> list[float]:
    wide = [1 / (1 + 1 / (variance + 1e-6)) for variance in variances]
    return [len(wide) * each / sum(wide) for each in wide]


def slow_augmented(f: Float, gammas: tuple[Sequence[float], Sequence[float]], noise: Float) -> Float:
    """Return the augmented map, one number after another."""
    b_all, c_all = f.shape[:2]
    mu, sigma = np.empty((b_all, c_all)), np.empty((b_all, c_all))
    for b, c in np.ndindex(b_all, c_all):
        pixels = f[b, c].ravel()
        mu[b, c] = sum(pixels) / len(pixels)
        sigma[b, c] = (sum((pixel - mu[b, c]) ** 2 for pixel in pixels) / (len(pixels) - 1) + 1e-6) ** 0.5
    augmented = np.empty_like(f)
    for c in range(c_all):
        wide = []
        for values, gamma in zip((mu, sigma), gammas, strict=True):
            mean = sum(values[:, c]) / b_all
            variance = sum((value - mean) ** 2 for value in values[:, c]) / (b_all - 1) + 1e-6
            wide.append(((1 + gamma[c]) * variance) ** 0.5)
        for b in range(b_all):
            to_mu, to_sigma = mu[b, c] + noise[0, b, c] * wide[0], sigma[b, c] + noise[1, b, c] * wide[1]
            augmented[b, c] = to_sigma * (f[b, c] - mu[b, c]) / sigma[b, c] + to_mu
    return augmented


def test_the_map_and_its_gradient_are_those_of_a_slow_version() -> None:
    f, noise = drawn(0, 4, 2, 3, 3), drawn(1, 2, 4, 2)
    gammas = torch.tensor([[0.3, 1.7], [1.0, 0.2]])

    def run(x: torch.Tensor) -> torch.Tensor:
        mine = gammas.to(x.dtype), noise.to(x.dtype)
        return fedfa.augmented(x, (mine[0][0], mine[0][1]), (mine[1][0], mine[1][1]))

    slow_gammas = (as64(gammas[0]).tolist(), as64(gammas[1]).tolist())
    np.testing.assert_allclose(as64(run(f)), slow_augmented(as64(f), slow_gammas, as64(noise)), atol=1e-5)
    weights = as64(drawn(2, 4, 2, 3, 3))
    check_term(
        lambda x: (run(x) * torch.from_numpy(weights).to(x.dtype)).sum(),
        lambda x: float((slow_augmented(x, slow_gammas, as64(noise)) * weights).sum()),
        f,
    )


@settings(max_examples=25)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 99), st.sampled_from([0.01, 1.0, 30.0]))
def test_averages_of_what_nodes_send_give_the_variance_over_them(sizes: list[int], seed: int, far: float) -> None:
    """Far from 0, where a difference of two mean squares would have nothing left of it."""
    rng, weights = np.random.default_rng(seed), np.array(sizes) / sum(sizes)
    first = far + rng.normal(size=4)
    nodes = []
    for _ in sizes:
        statistic = SharedStatistic(4, 0.0)
        statistic.mean.copy_(torch.from_numpy(first))
        statistic.start_round()
        for _ in range(3):
            statistic.add(torch.from_numpy(first + 5 * rng.normal(size=(6, 4))).float(), 0.9)
        nodes.append(statistic)
    merged = SharedStatistic(4, 0.0)
    for name, tensor in merged.state_dict().items():
        values = np.stack([as64(node.state_dict()[name]) for node in nodes])
        tensor.copy_(torch.from_numpy(weights @ values))
    means = np.stack([as64(node.mean) for node in nodes])
    variances = weights @ (means - weights @ means) ** 2
    merged.start_round()
    np.testing.assert_allclose(as64(merged.gamma), slow_gamma(variances.tolist()), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(as64(merged.origin), weights @ means, rtol=1e-6)


def test_running_statistics_move_where_a_map_is_augmented_and_gamma_stays_for_the_round() -> None:
    layer = FeatureAugmentation(2, FedFAParams(probability=1.0, momentum=0.75)).train()
    layer.start_round(np.random.default_rng(0))
    assert layer.mu is not None and layer.sigma is not None
    f = drawn(3, 5, 2, 4, 4)
    mean, deviation = as64(f).mean((2, 3)).mean(0), np.sqrt(as64(f).var((2, 3), ddof=1) + 1e-6).mean(0)
    assert layer.look(layer, (), f) is not None
    np.testing.assert_allclose(as64(layer.mu.mean), 0.25 * mean, atol=1e-6)
    np.testing.assert_allclose(as64(layer.sigma.mean), 0.75 + 0.25 * deviation, atol=1e-6)
    np.testing.assert_allclose(as64(layer.sigma.square), (0.25 * (deviation - 1)) ** 2, atol=1e-6)
    assert torch.equal(layer.mu.gamma, torch.ones(2))  # a variance of 1 before the first round
    before = layer.state_dict()["mu.mean"].clone()
    one = drawn(4, 1, 2, 4, 4)
    assert torch.equal(layer.changed(one, np.random.default_rng(0)), one)
    with torch.no_grad():
        assert layer.look(layer, (), f) is None
    assert layer.eval().look(layer, (), f) is None
    assert torch.equal(layer.mu.mean, before)


def test_nodes_learn_what_they_differ_in(run_inline: InlineRun) -> None:
    """After a round the averaged buffers give each channel another gamma."""
    run = run_inline(nodes=2, method="fedfa", rounds=2, set=f"{FEW} method.probability=1.0 method.momentum=0.5")
    weights = load_file(run.folder / "checkpoint" / "weights-00002.safetensors")
    for stage, width in ((1, 32), (2, 64)):
        for statistic in ("mu", "sigma"):
            state = SharedStatistic(width, 0.0)
            name = f"augmentation.stage{stage}.{statistic}."
            state.load_state_dict({key: torch.from_numpy(weights[name + key]) for key in state.state_dict()})
            state.start_round()
            assert float(state.gamma.max()) > 1.5 > 0.7 > float(state.gamma.min())
