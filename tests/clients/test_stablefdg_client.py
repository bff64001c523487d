"""StableFDG on a node: the training pass against a slow version, the styles that it tells, each part, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused
from slow_terms import check, softmax, with_style
from slow_terms import styles as slow_style
from support import as64, batch, begun, changed, check_accepted, drawn, features_of, fit, image_set, new_client, weights

from fedshift_clients.methods import stablefdg
from fedshift_clients.methods import stablefdg_styles as styles
from fedshift_clients.methods.stablefdg import StableFDGClient, StableFDGModel, Training
from fedshift_clients.models import networks
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_strategies.methods.stablefdg import StableFDGStrategy

Float = NDArray[np.float64]
S = 32  # channels of the CNN's first stage
ALL: dict[str, Any] = {"shift": 1.0, "explore": 1.0}
OFF: dict[str, Any] = {"shift": 0.0, "explore": 0.0, "attention": False}


def other(channels: int = S) -> dict[str, NDArray[np.float32]]:
    return {"style": np.random.default_rng(5).uniform(0.1, 1, (2, 2, channels)).astype(np.float32)}


def client(sent: bool = False, **params: Any) -> StableFDGClient:
    return new_client(StableFDGClient, ALL | params, other() if sent else None, epochs=1)


def model_of(made: StableFDGClient) -> StableFDGModel:
    assert isinstance(made.model, StableFDGModel)
    return made.model


class Draws:
    """Draws that the slow version knows, too."""

    def __init__(self, lam: Float, noise: Float) -> None:
        self.lam, self.noise = lam, noise

    def random(self) -> float:
        return 0.0

    def integers(self, high: int) -> int:
        return 1

    def standard_normal(self, shape: tuple[int, ...]) -> Float:
        return self.noise[: shape[0], : shape[1], : shape[2]]

    def beta(self, a: float, b: float, number: int) -> Float:
        return self.lam[:number]

    def permutation(self, of: Any) -> Any:
        return np.arange(of)[::-1].copy() if isinstance(of, int) else of

    def choice(self, of: Any) -> Any:
        return of[0]


def test_half_of_a_batch_gets_another_style_and_the_rest_cluster_centres() -> None:
    """Three images of which two stay: as many centres as images would be the images' own styles."""
    f, style, noise = drawn(0, 3, 2, 2, 3), other(2)["style"], np.random.default_rng(0).normal(size=(2, 1, 2))
    found = stablefdg._shifted(f, style.astype(float), Draws(np.zeros(0), noise))  # type: ignore[arg-type]
    (mu, sigma), own = slow_style(as64(found)), np.hstack(slow_style(as64(f)))
    # One alone, the mean of the others.
    pairs = [np.sort([own[i], np.delete(own, i, axis=0).mean(axis=0)], axis=0) for i in range(3)]
    kept = np.sort(np.hstack([mu, sigma])[:2], axis=0)
    assert min(float(np.abs(kept - pair).max()) for pair in pairs) < 1e-3
    wanted = style[0] + noise[:, 0] * style[1]
    np.testing.assert_allclose(mu[2], wanted[0], atol=1e-4)
    np.testing.assert_allclose(sigma[2], np.maximum(wanted[1], 0), atol=2e-3)


def test_exploration_is_that_of_a_slow_version_and_adds_images_once_in_a_pass() -> None:
    f, lam = drawn(1, 3, 2, 2, 2), np.array([0.2, 0.7, 1.0, 0.0, 0.5, 0.9])
    made = model_of(client(exploration_level=2.0))
    plan = Training(Draws(lam, np.zeros((2, 0, 2))), None, np.array([1, 0, 1]))  # type: ignore[arg-type]
    found = made._mixed(f, plan, add=True)
    again = [1, 1, 0]  # class 0 up to two images, then each class one more, which of 0 and 1 comes first as drawn
    assert plan.labels is not None and plan.labels.tolist() == [1, 0, 1, 0, 0, 1]
    mixed = []
    for value in slow_style(as64(f)):
        grown, share = np.vstack([value, (3 * value - 2 * value.mean(0))[again]]), lam[:, None]
        mixed.append(share * grown + (1 - share) * grown[::-1])
    np.testing.assert_allclose(as64(found), with_style(np.concatenate([as64(f), as64(f)[again]]), *mixed), atol=2e-5)
    assert (len(made._mixed(found, plan, add=False)), len(plan.labels)) == (6, 6)


def test_the_loss_is_of_the_batch_with_what_was_added_and_features_have_the_attention() -> None:
    made, given = begun(client(True, oversampling=0.5)), batch()
    model, before, rows = model_of(made).train(), weights(made), list[int]()
    assert model.training_pass is not None and torch.isfinite(made.loss(given)["ce"])
    assert model.training_pass.labels is None  # no pass of others is changed
    with torch.no_grad():
        features, _ = model(given.x)
        assert torch.equal(model.eval()(given.x)[0], features)
    made.cross_entropy = lambda logits, y, of=None: rows.extend(map(len, (logits, y))) or logits.sum()  # type: ignore
    model.train()
    made.loss(given)
    assert rows == [12, 12]
    assert not changed(before, weights(made))
    maps, lit = model._stages.maps[1](model._stages.maps[0](given.x)), model.highlighter
    assert lit is not None
    a = styles.attention(lit.query(maps), lit.key(maps)).detach()
    wanted = np.hstack([features_of(model, given.x), as64((maps.flatten(2) * a[:, None]).sum(2))])
    np.testing.assert_allclose(as64(features), wanted, atol=1e-5)


def test_a_node_tells_the_styles_of_its_images_at_the_received_weights() -> None:
    made, fresh = client(True), client()
    assert not changed(weights(made), weights(fresh))
    fit(made)
    check_accepted(made, StableFDGStrategy)
    x = torch.cat([x.clone() for x, _ in fresh.plain_batches(made.train_set)])
    told = np.stack(slow_style(as64(model_of(fresh).eval()._stages.maps[0](x))))
    wanted = [told.mean(axis=1), np.sqrt(told.var(axis=1, ddof=1) + 1e-6)]
    np.testing.assert_allclose(made.contribution()["style"], wanted, atol=1e-5)
    assert made.memory == {}
    few = new_client(StableFDGClient, ALL, train_set=image_set(4), epochs=1)
    fit(few)
    assert few.contribution()["style"].shape == (2, 2, 0)
    check_accepted(few, StableFDGStrategy)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(FedShiftError, (2, 2, 5), (2, 2, 32)):
        new_client(StableFDGClient, ALL, other(5)).start_round(2)
    monkeypatch.setattr(stablefdg, "feature_stages", lambda encoder: None)
    with refused(ConfigError, "cnn"):
        client()
    assert type(client(**OFF).model) is networks.SplitModel


# --- styles and attention -----------------------------------------------------------------------------


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
