"""FedOMG's server against the equations, in loops, and against FedAvg where it is off."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support import BUFFER, COUNT, federation, node, with_buffers
from torch import nn, optim, tensor

from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedomg import FedOMGParams
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedomg import SMALL, FedOMGStrategy, least, mixture

NODES = [node(i, counts=(i + 1, 0, 1)) for i in range(3)]


def server(**params: float) -> FedOMGStrategy:
    return FedOMGStrategy(
        federation(buffers=(BUFFER,)), FedOMGParams.model_validate(params), lambda *result: None
    )  # fmt: skip


def updates(sent: Arrays) -> list[Update]:
    collected = []
    for n in NODES:
        change = with_buffers(50 + n.index)
        arrays = {name: (array + (1 + n.index) * change[name] / 10).astype(array.dtype) for name, array in sent.items()}
        collected.append(Update(n, encode(arrays), {}, n.num_examples, {}))
    return collected


@pytest.mark.parametrize("kappa", [0.25, 0.5, 2.0])
def test_a_merge_against_the_equations(kappa: float) -> None:
    """With the weights Gamma that the next test holds against torch's."""
    made, sent = server(kappa=kappa, server_lr=0.7), with_buffers(0)
    made._global = encode(sent)
    came = updates(sent)
    q = made.node_weights(came)
    assert q == [1 / 3] * 3
    flat = [
        np.concatenate([(u.arrays()[n].astype(np.float64) - sent[n]).reshape(-1) for n in ("w", "b")]) for u in came
    ]
    buffers = np.mean([u.arrays()[BUFFER] for u in came], axis=0)
    counts = np.rint(np.mean([u.arrays()[COUNT] for u in came]))
    arrays = decode(made.merge(came, q))
    scale = float(np.mean([math.sqrt(c @ c + SMALL) for c in flat]))
    gram = np.array([[a @ b for b in flat] for a in flat]) / scale**2
    gamma = least(gram, gram @ np.array(q), kappa * math.sqrt(q @ gram @ q + SMALL), made.params)
    assert gamma.sum() == pytest.approx(1) and gamma.min() >= 0
    g = sum(w * c for w, c in zip(q, flat, strict=True))
    mixed = sum(w * c for w, c in zip(gamma, flat, strict=True))
    length = math.sqrt(mixed @ mixed / scale**2 + SMALL) + SMALL
    change = (g + kappa * math.sqrt(g @ g / scale**2 + SMALL) / length * mixed) / (1 + kappa**2)
    got = np.concatenate([(arrays[n] - sent[n]).reshape(-1) for n in ("w", "b")])
    assert_allclose(got, 0.7 * change, rtol=1e-4, atol=1e-6)
    assert_allclose(arrays[BUFFER], buffers, rtol=1e-6)
    assert arrays[COUNT] == counts
    assert [(name, array.dtype) for name, array in arrays.items()] == [(name, a.dtype) for name, a in sent.items()]


def test_updates_of_zeros_move_nothing() -> None:
    """All nodes sent what they were given, or only one took part."""
    assert np.isfinite(mixture(np.zeros((3, 3)), np.full(3, 1 / 3), FedOMGParams())).all()
    alone = mixture(np.array([[4.0]]), np.ones(1), FedOMGParams(kappa=0.5))
    assert alone == pytest.approx([1.5 / 1.25], rel=1e-3)  # (1 + kappa) / (1 + kappa^2) of its own change


def test_gamma_is_sought_as_torch_would() -> None:
    """SGD with momentum on logits, its rate halved after thirty steps, the best of all passes."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(4, 9))
    a = points @ points.T / 9
    b, radius = a.mean(axis=1), 0.3
    params = FedOMGParams(steps=70, rate=0.5, momentum=0.5)
    logits = nn.Parameter(tensor([0.0] * 4).double())
    optimizer = optim.SGD([logits], lr=0.5, momentum=0.5)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
    best, lowest = None, np.inf
    for step in range(71):
        gamma = logits.softmax(dim=0)
        result = gamma @ tensor(b) + radius * (gamma @ tensor(a) @ gamma + SMALL).sqrt()
        if result.item() < lowest:
            best, lowest = gamma.detach().numpy().copy(), result.item()
        if step < 70:
            optimizer.zero_grad()
            result.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    assert best is not None
    assert_allclose(least(a, b, radius, params), best, rtol=1e-9)
