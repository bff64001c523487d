"""FedIIR on a node: the term against NumPy, its gradient against differences, what it contributes."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import head_gradient
from refusals import refused
from slow_terms import softmax
from support import (
    ROUND,
    C,
    D,
    Float,
    N,
    as64,
    batch,
    begun,
    drawn,
    fit,
    image_set,
    new_client,
    normalised,
)
from torch import Tensor, nn

from fedshift_clients.methods import fediir as terms
from fedshift_clients.methods.fediir import GRADIENT, FedIIRClient
from fedshift_core.errors import FedShiftError

P = C * D + C


client = partial(new_client, FedIIRClient, knowledge=head_gradient(), epochs=1)


def slow_gradient(z: Float, logits: Float, y: Any) -> Float:
    """Return the gradient of the mean cross-entropy by a linear head: (p - onehot) z^T, and p - onehot."""
    slope = (softmax(logits) - np.eye(C)[y]) / len(z)
    return np.concatenate([(slope.T @ z).reshape(-1), slope.sum(0)])


def outcome(made: FedIIRClient, x: Tensor) -> tuple[Float, Float]:
    z, logits = made.model(x)
    return as64(z), as64(logits)


def test_the_term_against_numpy() -> None:
    made, given = begun(client({"lambda_iir": 0.5})), batch()
    g = slow_gradient(*outcome(made, given.x), given.y)
    expected = 0.5 * ((g - head_gradient()[GRADIENT]) ** 2).sum()
    found = made.loss(given)
    assert list(found) == ["ce", "iir"]
    assert float(found["iir"].detach()) == pytest.approx(expected, rel=1e-4)
    assert float(found["ce"].detach()) == float(begun(client({"lambda_iir": 0.0})).loss(given)["ce"].detach())


def test_its_gradient_goes_through_the_gradient_of_the_head() -> None:
    """In float64 against differences, of the head's weights and of the features."""
    y, mean = torch.tensor([0, 1, 2, 3, 1]), drawn(4, 16).double()

    def value(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(nn.functional.linear(z, weight, bias), y)
        return (terms.gradient_of(loss, [weight, bias], twice=True) - mean).square().sum()

    given = [drawn(seed, *shape).double().requires_grad_() for seed, shape in enumerate(((5, 3), (4, 3), (4,)))]
    assert torch.autograd.gradcheck(value, given)


@pytest.mark.parametrize(("head", "precision"), [("linear", "float32"), ("linear", "bf16"), ("mlp", "float32")])
def test_a_node_sends_the_gradient_at_the_weights_that_came(head: str, precision: str) -> None:
    made = client(knowledge={}, precision=precision)
    if head == "mlp":
        made.model.classifier = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, C))
    images = image_set()
    z, logits = outcome(made, normalised(images, made.setup.images))
    begun(made, ROUND)
    sent = made.finish_round(ROUND)[GRADIENT]
    assert sent.dtype == np.float32
    if head == "mlp":
        assert sent.shape == (D * D + D + P,)
    else:
        wanted = slow_gradient(z, logits, images.y)
        np.testing.assert_allclose(sent, wanted, rtol=1e-3, atol=1e-5 if precision == "float32" else 2e-2)


def test_a_round_sends_what_it_began_with() -> None:
    made = client(train_set=image_set(N))
    before = begun(made, ROUND).finish_round(ROUND)[GRADIENT].copy()
    fit(made, ROUND)
    np.testing.assert_array_equal(made.contribution()[GRADIENT], before)
    after = begun(made, ROUND).finish_round(ROUND)[GRADIENT]
    assert not np.array_equal(after, before)


def test_the_gradient_of_another_head_is_refused() -> None:
    with refused(FedShiftError, GRADIENT, (3,), P):
        client(knowledge={GRADIENT: np.zeros(3, np.float32)}).start_round(ROUND)
