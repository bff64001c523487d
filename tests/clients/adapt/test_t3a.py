"""T3A against a slow version, batch by batch."""

import numpy as np
import pytest
import torch
from slow_terms import softmax
from support import Float, as64, drawn
from torch import nn

from fedshift_clients.adapt.t3a import T3A
from fedshift_clients.models.networks import initialised

CLASSES, WIDTH = 4, 5


class Slow:
    """T3A in lists."""

    def __init__(self, head: nn.Linear, most: int | None) -> None:
        self.weight, self.bias, self.most = as64(head.weight), as64(head.bias), most
        self.supports: list[list[Float]] = [[] for _ in range(CLASSES)]
        self.add(self.weight)

    def entropy(self, z: Float) -> float:
        p = softmax(self.weight @ z + self.bias)
        return -float((p * np.log(p)).sum())

    def add(self, rows: Float) -> None:
        for z in rows:
            self.supports[int(np.argmax(self.weight @ z + self.bias))].append(z)

    def predict(self, batch: Float) -> Float:
        self.add(batch)
        self.supports = [sorted(held, key=self.entropy)[: self.most] for held in self.supports]
        totals = [sum((z / np.linalg.norm(z) for z in held), np.zeros(WIDTH)) for held in self.supports]
        return batch @ np.stack([total / (np.linalg.norm(total) or 1) for total in totals]).T


@pytest.mark.parametrize("most", [1, 3, None])
@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_batches_against_a_slow_version(most: int | None, scale: float) -> None:
    head = initialised(5, "t3a", lambda: nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        head.weight.mul_(scale)  # small rows are taken for the class of the largest bias: a class begins without any
        head.bias.mul_(3)
    slow, adjusted = Slow(head, most), T3A(head, lambda z: (z, head(z)), supports=most)
    for number in range(5):
        z = drawn(number, 7, WIDTH)
        found = adjusted(z)
        np.testing.assert_allclose(found.numpy(), slow.predict(as64(z)), rtol=1e-4, atol=1e-6)
