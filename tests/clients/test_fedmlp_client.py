"""FedMLP (an approximation) on a node: its terms against loops in float64."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import (
    batch,
    begun,
    features_of,
    global_prototypes,
    new_client,
)  # fmt: skip

from fedshift_clients.methods.fedmlp import FedMLPClient, semantic_prototypes

client = partial(new_client, FedMLPClient)


def started(params: dict[str, Any] | None = None) -> FedMLPClient:
    return begun(client(params, global_prototypes()))


def slow_semantic(p: dict[int, NDArray[np.float64]], tau: float) -> dict[int, NDArray[np.float64]]:
    content = {}
    for k in p:
        alike = {j: np.exp(p[k] @ p[j] / (np.linalg.norm(p[k]) * np.linalg.norm(p[j])) / tau) for j in p}
        content[k] = sum(alike[j] * p[j] for j in p) / sum(alike.values())
    return content


@pytest.mark.parametrize("tau", [0.5, 0.05])
def test_terms_against_loops(tau: float) -> None:
    made, given, result = (
        started({"tau": tau, "lambda_proto": 2.0, "lambda_semantic": 3.0}),
        batch(),
        global_prototypes(),
    )
    z, y = features_of(made.model, given.x), given.y.tolist()
    p = {int(k): row.astype(np.float64) for k, row in zip(result["labels"], result["prototypes"], strict=True)}
    s = slow_semantic(p, tau)
    has = [i for i in range(len(y)) if y[i] in p]  # class 1 has no prototype
    assert 0 < len(has) < len(y)
    terms = {name: float(term.detach()) for name, term in made.loss(given).items()}
    assert list(terms) == ["ce", "proto", "semantic"]
    for name, weight, targets in (("proto", 2.0, p), ("semantic", 3.0, s)):
        wanted = weight * np.mean([((z[i] - targets[y[i]]) ** 2).mean() for i in has])
        assert terms[name] == pytest.approx(wanted, rel=1e-4), name


def test_semantic_prototypes_lie_between_those_that_are_alike() -> None:
    p, present = torch.tensor([[1.0, 0], [9.0, 9.0], [0, 2]]), torch.tensor([True, False, True])
    assert torch.allclose(semantic_prototypes(p, present, 1e-3)[[0, 2]], p[[0, 2]])
    assert torch.allclose(semantic_prototypes(p, present, 1e6)[0], torch.tensor([0.5, 1.0]), atol=1e-4)
