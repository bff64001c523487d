"""FedProx's term against loops, and its gradient by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedshift_clients.losses.proximal import proximal


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng) for shape in shapes]


def slow(weights: list[Tensor], received: list[Tensor], mu: float) -> float:
    total = 0.0
    for w, w_t in zip(weights, received, strict=True):
        for a, b in zip(w.flatten().tolist(), w_t.flatten().tolist(), strict=True):
            total += (a - b) ** 2
    return mu / 2 * total


@pytest.mark.parametrize("mu", [0.001, 0.01, 1.0])
def test_proximal_against_loops(mu: float) -> None:
    for seed in range(3):
        shapes = ((3, 2), (4,), (2, 1, 2, 2))
        weights, received = drawn(seed, *shapes), drawn(seed + 10, *shapes)
        assert float(proximal(weights, received, mu)) == pytest.approx(slow(weights, received, mu), rel=1e-5)


def test_gradient_is_mu_times_the_distance_and_does_not_reach_what_was_received() -> None:
    weights, received = drawn(1, (5, 3), (2,)), drawn(2, (5, 3), (2,))
    for w in weights:
        w.requires_grad_(True)
    proximal(weights, received, 0.3).backward()  # type: ignore[no-untyped-call]
    for w, w_t in zip(weights, received, strict=True):
        assert w.grad is not None
        np.testing.assert_allclose(w.grad.numpy(), 0.3 * (w.detach() - w_t).numpy(), rtol=1e-5, atol=1e-7)
        assert w_t.grad is None
