"""FedSA's terms against slow versions, values and gradients."""

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import Float, as64, drawn
from torch import nn

from fedshift_clients.methods import fedsa

B, C, D = 5, 4, 3
Y = torch.tensor([0, 2, 2, 3, 1])


def slow_contrast(z: Float, anchors: Float, margin: float) -> float:
    total = 0.0
    for i in range(B):
        distances = [sum((z[i][d] - anchors[c][d]) ** 2 for d in range(D)) ** 0.5 for c in range(C)]
        distances[int(Y[i])] += margin
        total -= np.log(np.exp(-distances[int(Y[i])]) / sum(np.exp(-distance) for distance in distances))
    return total / B


@pytest.mark.parametrize("margin", [0.0, 2.5])
def test_margin_contrast(margin: float) -> None:
    z, anchors = drawn(0, B, D), drawn(1, C, D)
    delta = torch.tensor(margin)
    check_term(
        lambda x: fedsa.margin_contrast(x, Y, anchors, delta), lambda x: slow_contrast(x, as64(anchors), margin), z
    )


def test_anchor_distance_is_a_mean_over_images_and_dimensions() -> None:
    z, anchors = drawn(2, B, D), drawn(3, C, D)
    slow = sum((as64(z)[i][d] - as64(anchors)[int(Y[i])][d]) ** 2 for i in range(B) for d in range(D)) / (B * D)
    assert float(fedsa.anchor_distance(z, Y, anchors)) == pytest.approx(slow, rel=1e-5)


def test_calibration_has_the_head_right_on_each_anchor_and_moves_nothing_else() -> None:
    head, anchors = nn.Linear(D, C), drawn(4, C, D).requires_grad_(False)
    with torch.no_grad():
        logits = head(anchors).double().numpy()
    slow = np.mean([-np.log(np.exp(logits[k][k]) / np.exp(logits[k]).sum()) for k in range(C)])
    result = fedsa.calibration(head, anchors)
    assert float(result.detach()) == pytest.approx(slow, rel=1e-5)
    result.backward()  # type: ignore[no-untyped-call]
    assert head.weight.grad is not None


def test_mean_gap_is_the_mean_distance_to_the_nearest_other() -> None:
    points = drawn(5, 6, D)
    p = as64(points)
    slow = np.mean([min(np.linalg.norm(p[i] - p[j]) for j in range(6) if j != i) for i in range(6)])
    assert float(fedsa.mean_gap(points)) == pytest.approx(slow, rel=1e-5)
    assert float(fedsa.mean_gap(points[:1])) == float(fedsa.mean_gap(points[:0])) == 0
