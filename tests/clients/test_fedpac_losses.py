"""FedPAC's alignment and statistics against slow versions."""

import numpy as np
import torch
from method_cases import check_term
from support import as64, drawn, labels

from fedshift_clients.methods import fedpac as terms

B, C, D = 7, 4, 5


def test_alignment_and_its_gradient_against_numpy() -> None:
    z, g, y = drawn(1, B, D), drawn(2, C, D), labels(3, B, C)

    def slow(features: np.ndarray) -> float:
        return sum(float(((features[i] - as64(g)[y[i]]) ** 2).sum()) for i in range(B)) / (B * D)

    check_term(lambda x: terms.alignment(x, y, g), slow, z)


def test_statistics_against_numpy() -> None:
    """V as the authors' code has it: traces of second moments of each class, less the squares of h."""
    z, y = drawn(4, 20, D).double().numpy(), np.arange(20) % (C - 1)  # class 3 has no image
    h, v, means, squares = np.zeros((C, D)), 0.0, np.zeros((C, D)), np.zeros(C)
    for k in range(C - 1):
        own = z[y == k]
        means[k], squares[k], share = own.mean(axis=0), (own**2).sum(axis=1).mean(), len(own) / len(z)
        h[k] = share * means[k]
        v += share * float(np.trace(own.T @ own / len(own))) - share**2 * float((means[k] ** 2).sum())
    result = terms.statistics(
        torch.from_numpy(means), torch.from_numpy(squares), torch.from_numpy(np.bincount(y, minlength=C))
    )
    np.testing.assert_allclose(as64(result[0]), h, rtol=1e-6)
    np.testing.assert_allclose(as64(result[1]), [v / len(z)], rtol=1e-6)
    assert (result[0].dtype, result[1].dtype) == (torch.float32, torch.float32)
    one = terms.statistics(torch.ones(1, D), torch.full((1,), D - 1e-6), torch.tensor([3]))
    assert float(one[1]) == 0  # rounding must not make it negative
