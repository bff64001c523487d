"""StableFDG's styles and attention against slow versions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from slow_terms import check, softmax
from support import as64, drawn

from fedshift_clients.methods import stablefdg_styles as styles

Float = NDArray[np.float64]


def slow_attention(q: Float, k: Float, partner: list[int]) -> Float:
    """Return the attention with all scores of place against place."""
    of_q, of_k = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (q, k))
    scores = np.einsum("bdrs,bdhw->bhwrs", (of_q + of_q[partner]) / 2, of_k).mean((3, 4)).reshape(len(q), -1)
    return softmax(scores)


@pytest.mark.parametrize("partner", [[1, 2, 0], None])
def test_attention_and_its_gradient_are_those_of_a_slow_version(partner: list[int] | None) -> None:
    q, k, w = drawn(0, 3, 2, 2, 3), drawn(1, 3, 2, 2, 3), drawn(2, 3, 6)
    others = None if partner is None else torch.tensor(partner)
    slow = partner or [0, 1, 2]
    check(
        lambda x, k, w: (styles.attention(x, k, others) * w).sum(),
        lambda x, k, w: (slow_attention(x, k, slow) * w).sum(),
        q, k, w, slope=(1e-7, 2e-4),
    )  # fmt: skip
    np.testing.assert_allclose(as64(styles.attention(q, k, others)), slow_attention(as64(q), as64(k), slow), rtol=1e-5)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 20), st.integers(0, 99))
def test_a_batch_is_levelled_from_its_rarest_classes_up(labels: list[int], number: int, seed: int) -> None:
    y, before = np.array(labels), np.bincount(labels, minlength=5)
    counts, places = before.copy(), styles.levelled(y, number, np.random.default_rng(seed))
    assert places.shape == (number,)
    for label in y[places]:
        assert counts[label] == counts[before > 0].min()
        counts[label] += 1
    partner = styles.next_of_class(y)
    assert (y[partner] == y).all() and sorted(partner) == list(range(len(y)))
    assert ((partner == np.arange(len(y))) == (before[y] == 1)).all()


def test_centres_are_seeds_moved_to_the_mean_of_what_is_nearest() -> None:
    rng = np.random.default_rng(0)
    far = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    of = np.repeat(np.arange(3), [2, 5, 3])
    x = far[of] + rng.normal(size=(10, 2))
    found = styles.centres(x, 3, rng)
    means = np.array([x[of == k].mean(axis=0) for k in range(3)])
    np.testing.assert_allclose(found[np.lexsort(found.T)], means[np.lexsort(means.T)], atol=1e-9)
    np.testing.assert_allclose(styles.centres(np.ones((4, 2)), 3, rng), 1)  # equal styles
    np.testing.assert_allclose(np.sort(styles.centres(x, 10, rng), axis=0), np.sort(x, axis=0))
