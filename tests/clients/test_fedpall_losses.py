"""FedPall's terms against slow loops in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn, labels
from torch import nn

from fedshift_clients.methods import fedpall

B, C, D, NODES = 7, 4, 5, 3


def slow_contrast(z: Float, y: list[int], g: Float, present: list[bool], tau: float, form: str) -> float:
    values = []
    for row, label in zip(z, y, strict=True):
        if present[label]:
            unit = row / np.linalg.norm(row)
            near = [float(unit @ p) / (float(np.linalg.norm(p)) or 1.0) for p in g]
            others = near if form == "cosine" else [float(unit @ p) for p in g]
            below = sum(math.exp(s / tau) for s, there in zip(others, present, strict=True) if there)
            values.append(-math.log(math.exp(near[label] / tau) / below))
    return sum(values) / len(values) if values else 0.0


@given(seed=st.integers(0, 10**6), form=st.sampled_from(["cosine", "released"]))
@settings(max_examples=40)
def test_collaboration_against_loops(seed: int, form: fedpall.Contrast) -> None:
    z, y, g = drawn(seed, B, D), labels(seed, B, C), drawn(seed + 1, C, D)
    present = torch.tensor([(seed >> k) & 1 == 0 for k in range(C)])
    if not present.any():
        present[0] = True
    g[~present] = 0
    result = float(fedpall.collaboration(z, y, g, present, 0.5, form))
    assert result == pytest.approx(slow_contrast(as64(z), y.tolist(), as64(g), present.tolist(), 0.5, form), rel=1e-4)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_confusion_against_loops(seed: int) -> None:
    logits = drawn(seed, B, NODES)
    total = 0.0
    for row in as64(logits):
        p = [math.exp(v) / sum(math.exp(w) for w in row) for v in row]
        total += sum(math.log(1 / NODES / v) / NODES for v in p)
    assert float(fedpall.confusion(logits)) == pytest.approx(total / B, rel=1e-4, abs=1e-6)
    assert float(fedpall.confusion(torch.zeros(B, NODES))) == pytest.approx(0, abs=1e-6)


def test_the_amplifier_is_torchs_own_layers_in_training_mode() -> None:
    layers = nn.Sequential(
        nn.Linear(D, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6),
        nn.ReLU(), nn.Linear(6, NODES, bias=False),
    )  # fmt: skip
    names = {"0.weight": "linear1", "1.weight": "scale1", "1.bias": "shift1", "3.weight": "linear2",
             "4.weight": "scale2", "4.bias": "shift2", "6.weight": "linear3"}  # fmt: skip
    weights = {names[name]: tensor.detach() for name, tensor in layers.named_parameters()}
    z = drawn(1, B, D)
    torch.testing.assert_close(fedpall.amplifier(z, weights), layers(z).detach(), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(fedpall.amplifier(z[:1], weights)).all()  # a batch of one image
