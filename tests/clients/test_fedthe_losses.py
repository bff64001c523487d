"""FedTHE's equations against slow ones in NumPy, number by number."""

from typing import Any

import numpy as np
import torch
from slow_terms import check, cosines, cross_entropy, softmax
from support import Float, as64, drawn, labels, numerical_gradient
from torch import Tensor

from fedshift_clients.methods import fedthe as eq

B, C, D = 6, 4, 5


def slow_objective(e: Float, g: Float, p: Float, far_g: Float, far_p: Float) -> Any:
    q = softmax(e[:, :1] * g + e[:, 1:] * p)
    rho = np.diag(cosines(softmax(g), softmax(p)))
    return (-rho * (q * np.log(q)).sum(1) + (1 - rho) * (e * np.stack([far_g, far_p], axis=1)).sum(1)).mean()


def given(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return drawn(seed, B, C), 2 * drawn(seed + 1, B, C), drawn(seed + 2, B).abs(), drawn(seed + 3, B).abs()


def test_balanced_cross_entropy_is_that_of_the_shifted_scores() -> None:
    logits, y, counts = drawn(0, B, C), labels(0, B, C), torch.tensor([5, 0, 2, 9])
    check(
        lambda x: eq.balanced_cross_entropy(x, y, counts),
        lambda x: cross_entropy(x + np.log(np.array(counts) + 1), y),
        logits,
    )


def test_the_history_goes_on_from_batch_to_batch_and_a_first_image_does_not_move_it() -> None:
    z, alpha = drawn(3, 7, D), 0.3
    slow, result = [as64(z[0])], list[Tensor]()
    for i in range(1, 7):  # in batches of 3: images 3 and 6 are the first of theirs
        slow.append(slow[-1] if i % 3 == 0 else alpha * as64(z[i]) + (1 - alpha) * slow[-1])
    for part in z.split(3):
        result.append(eq.history(part, result[-1][-1] if result else None, alpha))
    np.testing.assert_allclose(as64(torch.cat(result)), slow, rtol=1e-5, atol=1e-6)


def test_the_objective_and_its_gradient() -> None:
    check(eq.objective, slow_objective, drawn(9, B, 2).softmax(dim=1), *given())


def test_interpolation_is_adam_by_hand_from_equal_weights() -> None:
    parts, raw, m, v = given(20), np.ones((B, 2)), np.zeros(()), np.zeros(())
    others = [as64(part) for part in parts]
    for step in range(1, 4):
        grad = numerical_gradient(lambda x: float(slow_objective(softmax(x), *others)), torch.from_numpy(raw))
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        raw = raw - 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(as64(eq.interpolation(*parts, steps=3, lr=0.1)), softmax(raw), atol=1e-4)
    np.testing.assert_array_equal(as64(eq.interpolation(*parts, steps=0, lr=0.1)), np.full((B, 2), 0.5))
