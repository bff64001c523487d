"""A loss whose gradient is shifted, against autograd of the written-out term."""

import numpy as np
import torch
from support import drawn
from torch import Tensor

from fedshift_clients.losses.common import shifted


def test_the_value_is_the_same_to_the_bit_and_its_gradient_has_the_shift() -> None:
    shapes = ((3, 2), (4,), (), (2, 1, 2, 2))
    weights = [drawn(0, *shape or (1,)).reshape(shape).requires_grad_() for shape in shapes]
    by = [drawn(1, *shape or (1,)).reshape(shape) for shape in shapes]

    def value() -> Tensor:
        return torch.stack([w.square().sum() for w in weights]).sum()

    loss = shifted(value(), weights, by)
    assert torch.equal(loss.detach(), value().detach())
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    for w, delta in zip(weights, by, strict=True):
        assert w.grad is not None
        expected = 3 * (2 * w.detach().numpy() + delta.numpy())
        np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-6, atol=1e-6)
        assert delta.grad is None


def test_a_weight_that_does_not_learn_is_left_alone() -> None:
    learns, frozen = drawn(2, 3).requires_grad_(), drawn(3, 2)
    loss = shifted(learns.sum(), [learns, frozen], [drawn(4, 3), drawn(5, 2)])
    loss.backward()  # type: ignore[no-untyped-call]
    assert learns.grad is not None
    assert frozen.grad is None


def test_a_gradient_has_the_format_of_its_weight() -> None:
    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    shifted(torch.zeros(()), [weight], [torch.tensor([1.0, 2.0, 3.0])]).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.tolist() == [1, 2, 3]
