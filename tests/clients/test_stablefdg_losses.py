"""StableFDG's styles and attention against slow versions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import as64, drawn, gradient, numerical_gradient

from fedshift_clients.methods import stablefdg_styles as styles

Float = NDArray[np.float64]


def slow_attention(q: Float, k: Float, partner: list[int]) -> Float:
    """Return the attention with all scores of place against place, one number after another."""
    images, _, height, width = q.shape
    places = [(r, c) for r in range(height) for c in range(width)]
    scores = np.zeros((images, len(places)))
    for i in range(images):
        for p, at in enumerate(places):
            key = k[i][:, at[0], at[1]]
            for r in places:
                both = [q[j][:, r[0], r[1]] / np.linalg.norm(q[j][:, r[0], r[1]]) for j in (i, partner[i])]
                scores[i, p] += (both[0] + both[1]) / 2 @ key / np.linalg.norm(key) / len(places)
    shares = np.exp(scores)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("partner", [[1, 2, 0], None])
def test_attention_and_its_gradient_are_those_of_a_slow_version(partner: list[int] | None) -> None:
    q, k, w = drawn(0, 3, 2, 2, 3), drawn(1, 3, 2, 2, 3), as64(drawn(2, 3, 6))
    others = None if partner is None else torch.tensor(partner)
    slow = partner or [0, 1, 2]
    np.testing.assert_allclose(as64(styles.attention(q, k, others)), slow_attention(as64(q), as64(k), slow), rtol=1e-5)
    found = gradient(lambda x: (styles.attention(x, k, others) * torch.from_numpy(w).float()).sum(), q)
    wanted = numerical_gradient(lambda x: float((slow_attention(x, as64(k), slow) * w).sum()), q)
    np.testing.assert_allclose(as64(found), wanted, atol=2e-4)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 20), st.integers(0, 99))
def test_a_batch_is_levelled_from_its_rarest_classes_up(labels: list[int], number: int, seed: int) -> None:
    y = np.array(labels)
    places = styles.levelled(y, number, np.random.default_rng(seed))
    assert places.shape == (number,)
    before, counts = np.bincount(y, minlength=5), np.bincount(y, minlength=5)
    for place in places:
        held = counts[before > 0]
        assert counts[y[place]] == held.min()
        counts[y[place]] += 1
    partner = styles.next_of_class(y)
    assert (y[partner] == y).all()
    assert sorted(partner) == list(range(len(y)))
    assert all((partner[i] == i) == (before[y[i]] == 1) for i in range(len(y)))


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


def test_what_is_told_and_drawn_are_mean_and_deviation_channel_by_channel() -> None:
    mu, sigma = drawn(3, 4, 2), drawn(4, 4, 2).abs()
    one = styles.summary(mu[:1], sigma[:1])  # of several: a node's own, in test_stablefdg_client
    assert torch.allclose(one[0, 0], mu[0])
    assert torch.allclose(one[1], torch.tensor(1e-3))
    wide = np.array([[[2.0], [0.1]], [[3.0], [1.0]]])  # S = 1
    made = styles.drawn_style(wide, 5000, np.random.default_rng(0))
    assert made[0].mean() == pytest.approx(2.0, abs=0.2)
    assert made[0].std() == pytest.approx(3.0, abs=0.2)
    assert made[1].min() == 0  # about 46 % of sigma would be below
    assert np.isclose(made[1], 0).mean() == pytest.approx(0.46, abs=0.03)
