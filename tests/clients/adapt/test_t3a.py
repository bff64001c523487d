"""T3A against a slow version, batch by batch."""

import math

import numpy as np
import pytest
import torch
from support import Float, as64, drawn
from torch import Tensor, nn

from fedshift_clients.adapt.t3a import T3A, adjusting
from fedshift_clients.models.networks import MLPHead, initialised

CLASSES, WIDTH = 4, 5


def entropy(logits: Float) -> float:
    p = [math.exp(v) / sum(math.exp(w) for w in logits) for v in logits]
    return -sum(v * math.log(v) for v in p)


class Slow:
    """T3A in lists."""

    def __init__(self, weight: Float, bias: Float, most: int | None) -> None:
        self.weight, self.bias, self.most = weight, bias, most
        self.supports: dict[int, list[tuple[float, Float]]] = {k: [] for k in range(CLASSES)}
        for row in weight:
            self.add(row)

    def add(self, z: Float) -> None:
        logits = self.weight @ z + self.bias
        self.supports[int(np.argmax(logits))].append((entropy(logits), z))

    def predict(self, batch: Float) -> Float:
        for z in batch:
            self.add(z)
        templates = []
        for k in range(CLASSES):
            self.supports[k].sort(key=lambda one: one[0])
            self.supports[k] = self.supports[k][: self.most]
            total = sum((z / np.linalg.norm(z) for _, z in self.supports[k]), np.zeros(WIDTH))
            length = float(np.linalg.norm(total))
            templates.append(total / length if length else total)
        return np.array([[float(z @ c) for c in templates] for z in batch])


@pytest.mark.parametrize("most", [1, 3, None])
@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_batches_against_a_slow_version(most: int | None, scale: float) -> None:
    head = initialised(5, "t3a", lambda: nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        head.weight.mul_(scale)  # small rows are taken for the class of the largest bias: a class begins without any
        head.bias.mul_(3)
    slow = Slow(as64(head.weight), as64(head.bias), most)
    adjusted = T3A(head, most)
    for number in range(5):
        z = drawn(number, 7, WIDTH)
        logits = head(z).detach()
        np.testing.assert_allclose(adjusted(z, logits).numpy(), slow.predict(as64(z)), rtol=1e-4, atol=1e-6)


def test_what_stands_before_the_linear_layer_stays() -> None:
    """With a head of two layers the features are those of the hidden one."""
    head = initialised(5, "t3a", lambda: MLPHead(WIDTH, CLASSES, WIDTH))
    x = drawn(0, 9, WIDTH)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, head(x)

    result = adjusting(head, encode)(x)
    linear = nn.Linear(WIDTH, CLASSES)
    linear.load_state_dict({"weight": head.weight, "bias": head.bias})
    hidden = torch.relu(head.hidden(x)).detach()
    assert torch.equal(result, T3A(linear)(hidden, linear(hidden).detach()))
