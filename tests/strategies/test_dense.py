"""Small networks of the server against differences; their steps are held against torch's in FedGH's."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedshift_strategies.methods import dense
from fedshift_strategies.methods.dense import Floats, Network


def loss(network: Network, x: Floats, y: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy."""
    for k in range(1, dense.depth(network)):
        x = x @ network[f"linear{k}"].T
        x = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + dense.EPS)
        x = np.maximum(network[f"scale{k}"] * x + network[f"shift{k}"], 0)
    logits = x @ network[f"linear{dense.depth(network)}"].T + network.get("bias", 0)
    return float(np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_slopes_against_differences(layers: int, bias: bool) -> None:
    rng, sizes = np.random.default_rng(1), [4, *[5] * (layers - 1), 3]
    network = {f"linear{k}": rng.normal(size=(sizes[k], sizes[k - 1])) for k in range(1, layers + 1)}
    network |= {f"{name}{k}": rng.uniform(0.5, 1.5, 5) for k in range(1, layers) for name in ("scale", "shift")}
    network |= {"bias": rng.normal(size=3)} if bias else {}
    x, y = rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    result = dense.slopes(network, x, y)
    assert result.keys() == network.keys()
    for name, array in network.items():
        for place in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[place] = 1e-6
            more, less = (loss(network | {name: array + sign * step}, x, y) for sign in (1, -1))
            assert result[name][place] == pytest.approx((more - less) / 2e-6, rel=1e-4, abs=1e-7)
