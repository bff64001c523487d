"""FedSR's terms against loops, by hand, and their gradients."""

import math

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import as64, drawn

from fedshift_clients.methods.fedsr import conditional_information, length
from fedshift_core.methods.fedsr import Length

B, D = 5, 4


def slow_information(mu: np.ndarray, sigma: np.ndarray, m: np.ndarray, s: np.ndarray) -> float:  # type: ignore[type-arg]
    total = 0.0
    for i in range(len(mu)):
        for d in range(mu.shape[1]):
            squares = sigma[i, d] ** 2 + (mu[i, d] - m[i, d]) ** 2
            total += math.log(s[i, d] / sigma[i, d]) + squares / (2 * s[i, d] ** 2) - 0.5
    return total / len(mu)


def given(seed: int) -> list[torch.Tensor]:
    deviations = [drawn(seed + place, B, D).abs() + 0.1 for place in (1, 3)]
    return [drawn(seed, B, D), deviations[0], drawn(seed + 2, B, D), deviations[1]]


@pytest.mark.parametrize("place", range(4))
def test_information_and_its_gradient_for_all_four_against_loops(place: int) -> None:
    tensors = given(2)

    def term(x: torch.Tensor) -> torch.Tensor:
        return conditional_information(*[x if i == place else t for i, t in enumerate(tensors)])

    slowly = [as64(t) for t in tensors]
    check_term(
        term, lambda x: slow_information(*[x if i == place else t for i, t in enumerate(slowly)]), tensors[place]
    )


@pytest.mark.parametrize(("form", "wanted"), [("norm", (5 + 13) / 2), ("squared", (25 + 169) / 2)])
def test_length_by_hand(form: Length, wanted: float) -> None:
    assert float(length(torch.tensor([[3.0, 4.0], [5.0, 12.0]]), form)) == pytest.approx(wanted)
