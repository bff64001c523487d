"""Small networks of the server against differences and torch's own steps."""

import numpy as np
import pytest

from fedshift_strategies.methods import dense
from fedshift_strategies.methods.dense import Floats, Network


def drawn(seed: int, *, hidden: int = 0, bias: bool = False) -> Network:
    """Return a network of three layers, or softmax regression, from 4 inputs to 3 outputs."""
    rng = np.random.default_rng(seed)
    if not hidden:
        content = {"linear1": rng.normal(size=(3, 4))}
    else:
        content = {"linear1": rng.normal(size=(hidden, 4)), "linear2": rng.normal(size=(hidden, hidden))}
        content |= {f"scale{k}": rng.uniform(0.5, 1.5, hidden) for k in (1, 2)}
        content |= {f"shift{k}": rng.normal(size=hidden) for k in (1, 2)}
        content |= {"linear3": rng.normal(size=(3, hidden))}
    return content | ({"bias": rng.normal(size=3)} if bias else {})


def slow_loss(network: Network, x: Floats, y: list[int]) -> float:
    """Return the mean cross-entropy, image by image and unit by unit."""
    h = x
    for k in range(1, dense.depth(network)):
        h = np.array([network[f"linear{k}"] @ row for row in h])
        for j in range(h.shape[1]):
            column = h[:, j].copy()
            variance = sum((v - column.mean()) ** 2 for v in column) / len(column)
            normal = (column - column.mean()) / np.sqrt(variance + dense.EPS)
            h[:, j] = [max(0.0, v) for v in network[f"scale{k}"][j] * normal + network[f"shift{k}"][j]]
    total = 0.0
    for row, label in zip(h, y, strict=True):
        logits = network[f"linear{dense.depth(network)}"] @ row + network.get("bias", 0)
        total -= logits[label] - np.log(np.exp(logits).sum())
    return total / len(y)


@pytest.mark.parametrize(("hidden", "bias"), [(0, True), (0, False), (5, False), (5, True)])
def test_slopes_against_differences(hidden: int, bias: bool) -> None:
    network, rng = drawn(1, hidden=hidden, bias=bias), np.random.default_rng(2)
    x, y = rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    result = dense.slopes(network, x, y)
    assert result.keys() == network.keys()
    for name, array in network.items():
        for place in np.ndindex(array.shape):
            values = []
            for step in (1e-6, -1e-6):
                moved = array.copy()
                moved[place] += step
                values.append(slow_loss(network | {name: moved}, x, y.tolist()))
            assert result[name][place] == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-7)


def test_initial_weights_are_within_their_bound() -> None:
    result = dense.uniform(np.random.default_rng(0), 200, 16)
    assert result.shape == (200, 16)
    assert 0.24 < np.abs(result).max() <= 0.25
