"""StableFDG on a node: the training pass against a slow version, the styles that it tells, each part, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import (
    C,
    as64,
    batch,
    begun,
    check_accepted,
    drawn,
    features_of,
    fedavg,
    fit,
    image_set,
    new_client,
    weights,
)

from fedshift_clients.methods import stablefdg
from fedshift_clients.methods import stablefdg_styles as styles
from fedshift_clients.methods.stablefdg import StableFDGClient, StableFDGModel, Training
from fedshift_clients.models import networks
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.methods.stablefdg import StableFDGParams
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


def slow_style(f: Float) -> tuple[Float, Float]:
    images, channels = f.shape[:2]
    mu, sigma = np.empty((images, channels)), np.empty((images, channels))
    for b, s in np.ndindex(images, channels):
        pixels = f[b, s].ravel()
        mu[b, s] = sum(pixels) / len(pixels)
        sigma[b, s] = (sum((pixel - mu[b, s]) ** 2 for pixel in pixels) / (len(pixels) - 1) + 1e-6) ** 0.5
    return mu, sigma


def with_style(f: Float, mu: Float, sigma: Float) -> Float:
    own = slow_style(f)
    made = np.empty_like(f)
    for b, s in np.ndindex(f.shape[:2]):
        made[b, s] = (f[b, s] - own[0][b, s]) / own[1][b, s] * sigma[b, s] + mu[b, s]
    return made


def test_half_of_a_batch_gets_another_style_and_the_rest_cluster_centres() -> None:
    """Three images of which two stay: as many centres as images would be the images' own styles."""
    f, style = drawn(0, 3, 2, 2, 3), as64(torch.from_numpy(other(2)["style"]))
    noise = np.random.default_rng(0).normal(size=(2, 1, 2))
    found = stablefdg._shifted(f, style, Draws(np.zeros(0), noise))  # type: ignore[arg-type]
    mu, sigma = slow_style(as64(found))
    own = np.concatenate(slow_style(as64(f)), axis=1)
    splits = [(i, [j for j in range(3) if j != i]) for i in range(3)]  # one alone, the mean of the others
    pairs = [np.sort(np.stack([own[i], own[j].mean(axis=0)]), axis=0) for i, j in splits]
    kept = np.sort(np.concatenate([mu, sigma], axis=1)[:2], axis=0)
    assert min(float(np.abs(kept - pair).max()) for pair in pairs) < 1e-3
    for s in range(2):
        assert mu[2, s] == pytest.approx(style[0, 0, s] + noise[0, 0, s] * style[1, 0, s], abs=1e-4)
        assert sigma[2, s] == pytest.approx(max(style[0, 1, s] + noise[1, 0, s] * style[1, 1, s], 0), abs=2e-3)


def test_exploration_is_that_of_a_slow_version_and_adds_images_once_in_a_pass() -> None:
    f, lam = drawn(1, 3, 2, 2, 2), np.array([0.2, 0.7, 1.0, 0.0, 0.5, 0.9])
    made = model_of(client(exploration_level=2.0))
    plan = Training(Draws(lam, np.zeros((2, 0, 2))), None, np.array([1, 0, 1]))  # type: ignore[arg-type]
    found = made._mixed(f, plan, add=True)
    assert plan.labels is not None
    again = [1, 1, 0]  # class 0 up to two images, then each class one more, which of 0 and 1 comes first as drawn
    assert plan.labels.tolist() == [1, 0, 1, *([1, 0, 1][i] for i in again)]
    mu, sigma = slow_style(as64(f))
    grown = []
    for value in (mu, sigma):
        mean = sum(value) / 3
        grown.append(np.stack([*value, *(value[i] + 2 * (value[i] - mean) for i in again)]))
    mixed = [np.stack([lam[i] * v[i] + (1 - lam[i]) * v[5 - i] for i in range(6)]) for v in grown]
    whole = np.concatenate([as64(f), as64(f)[again]])
    np.testing.assert_allclose(as64(found), with_style(whole, *mixed), atol=2e-5)
    second = made._mixed(found, plan, add=False)
    assert (len(second), len(plan.labels)) == (6, 6)


def test_the_loss_is_of_the_batch_with_what_was_added_and_features_have_the_attention() -> None:
    made, given = begun(client(True, oversampling=0.5)), batch()
    made.model.train()
    before, plan = weights(made), model_of(made).training_pass
    assert plan is not None
    loss = made.loss(given)["ce"]
    assert plan.labels is None  # no pass of others is changed
    with torch.no_grad():
        features, _ = made.model(given.x)
        assert torch.equal(made.model.eval()(given.x)[0], features)
    rows: list[int] = []
    made.cross_entropy = lambda logits, y, of=None: rows.extend(map(len, (logits, y))) or logits.sum()  # type: ignore
    made.model.train()
    made.loss(given)
    assert rows == [12, 12]
    assert torch.isfinite(loss)
    assert all(np.array_equal(before[name], after) for name, after in weights(made).items())
    f = as64(model_of(made)._stages.maps[1](model_of(made).first_map(given.x)))
    np.testing.assert_allclose(as64(features[:, :64]), features_of(made.model, given.x), atol=1e-5)
    lit = model_of(made).highlighter
    assert lit is not None
    maps = torch.from_numpy(f).float()
    a = as64(styles.attention(lit.query(maps), lit.key(maps)))
    np.testing.assert_allclose(as64(features[:, 64:]), (f.reshape(8, 64, -1) * a[:, None]).sum(axis=2), atol=1e-5)


def test_a_node_tells_the_styles_of_its_images_at_the_received_weights() -> None:
    made = client(True)
    plain, images = weights(made), made.train_set
    fit(made)
    sent = made.contribution()["style"]
    check_accepted(made, StableFDGStrategy)
    fresh = client()
    assert all(np.array_equal(plain[name], value) for name, value in weights(fresh).items())
    x = torch.cat([x.clone() for x, _ in fresh.plain_batches(images)])
    mu, sigma = slow_style(as64(model_of(fresh).eval().first_map(x)))
    np.testing.assert_allclose(sent[0], [mu.mean(axis=0), sigma.mean(axis=0)], atol=1e-5)
    wanted = [np.sqrt(v.var(axis=0, ddof=1) + 1e-6) for v in (mu, sigma)]
    np.testing.assert_allclose(sent[1], wanted, atol=1e-5)
    assert made.memory == {}
    few = new_client(StableFDGClient, ALL, train_set=image_set(4), epochs=1)
    fit(few)
    assert few.contribution()["style"].shape == (2, 2, 0)
    check_accepted(few, StableFDGStrategy)


def test_each_part_changes_the_training_and_none_is_fedavg() -> None:
    wanted = fit(fedavg(epochs=1))[1]["loss"]
    for part, sent, differs in (
        ({}, True, False), ({"shift": 1.0}, False, False), ({"shift": 1.0}, True, True),
        ({"explore": 1.0}, False, True), ({"explore": 1.0, "oversampling": 0.0}, False, True),
        ({"attention": True}, False, True),
    ):  # fmt: skip
        found = fit(client(sent, **OFF | part))[1]["loss"]
        assert np.isfinite(found)
        assert (found != wanted) is differs, part


@pytest.mark.parametrize("network", ["resnet10", "cnn_bn"])
def test_it_fits_other_networks_heads_and_projections(network: str) -> None:
    for head, projection in (("linear", 0), ("mlp", 8)):
        plan = networks.Blueprint(
            ModelConfig.model_validate({"name": network, "head": head, "projection": projection}), C, 32, 0
        )
        model = StableFDGClient.build_model(plan, StableFDGParams())
        features, logits = model.eval()(drawn(0, 2, 3, 32, 32))
        assert features.shape == (2, model.feature_dim)
        width = {"resnet10": 512, "cnn_bn": 64}[network]
        assert model.feature_dim == (projection or width) + width
        assert logits.shape == (2, C)
        assert type(model.classifier).__name__ == ("Linear" if head == "linear" else "MLPHead")


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(FedShiftError, (2, 2, 5), (2, 2, 32)):
        new_client(StableFDGClient, ALL, other(5)).start_round(2)
    monkeypatch.setattr(stablefdg, "feature_stages", lambda encoder: None)
    with refused(ConfigError, "cnn"):
        client()
    assert type(client(**OFF).model) is networks.SplitModel
