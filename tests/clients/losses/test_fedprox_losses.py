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


def test_proximal_by_hand() -> None:
    # w - w^t is (3, 4) and 12: the squared norm is 9 + 16 + 144 = 169, its half times 0.1 is 8.45.
    weights = [torch.tensor([4.0, 4.0]), torch.tensor([[12.0]])]
    received = [torch.tensor([1.0, 0.0]), torch.tensor([[0.0]])]
    assert float(proximal(weights, received, 0.1)) == pytest.approx(8.45)


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


def test_at_the_received_weights_value_and_gradient_are_zero() -> None:
    weights = drawn(1, (4,))
    received = [weights[0].clone()]
    weights[0].requires_grad_(True)
    value = proximal(weights, received, 1.0)
    value.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == 0
    assert weights[0].grad is not None and not weights[0].grad.any()


def test_it_computes_in_float32_under_autocast() -> None:
    weights, received = drawn(1, (7, 7)), drawn(2, (7, 7))
    with torch.autocast("cpu", torch.bfloat16):
        value = proximal(weights, received, 0.01)
    assert value.dtype == torch.float32
    assert torch.equal(value, proximal(weights, received, 0.01))
