"""I2PFL on a node: Eq. 7 to 10 against NumPy, every switch against the term it names."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import (
    INDEX,
    ROUND,
    SEED,
    C,
    D,
    Float,
    batch,
    begun,
    changed,
    features_of,
    fit,
    flat_gradients,
    global_prototypes,
    new_client,
    same,
    weights,
)

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.methods.i2pfl import AUGMENTED_COUNTS, AUGMENTED_SUMS, I2PFLClient
from fedshift_clients.training.batches import Batch
from fedshift_core.methods.i2pfl import I2PFLParams
from fedshift_core.seeding import generator, torch_seed

client = partial(new_client, I2PFLClient)


def started(params: dict[str, Any] | None = None) -> I2PFLClient:
    return begun(client(params, global_prototypes()))


# --- the slow version of Eq. 7 to 9 ----------------------------------------------------------------


class Draws:
    """Random numbers of one round as the node draws them, batch after batch."""

    def __init__(self, server_round: int = ROUND, index: int = INDEX) -> None:
        self.partners = torch.Generator()
        self.partners.manual_seed(torch_seed(SEED, "i2pfl-mixup", index, server_round))
        self.gammas = generator(SEED, "i2pfl-mixup", index, server_round)

    def partner(self, y: list[int]) -> list[int]:
        """For each sample the one with the highest random score among those of another class (Eq. 7)."""
        scores = torch.rand(len(y), len(y), generator=self.partners).numpy()
        chosen = []
        for i in range(len(y)):
            others = [j for j in range(len(y)) if y[j] != y[i]]
            chosen.append(max(others, key=lambda j, i=i: scores[i, j]) if others else i)  # type: ignore[misc]
        return chosen

    def gamma(self, number: int, alpha: float, *, per_batch: bool = False, at_least_half: bool = False) -> Float:
        drawn = [float(g) for g in self.gammas.beta(alpha, alpha, size=1 if per_batch else number)]
        if at_least_half:
            drawn = [max(g, 1 - g) for g in drawn]
        return np.array(drawn * number if per_batch else drawn)


def mixed(a: Float, partner: list[int], gamma: Float) -> Float:
    return np.stack([gamma[i] * a[i] + (1 - gamma[i]) * a[partner[i]] for i in range(len(a))])


def targets(h: Float, y: list[int]) -> dict[int, Float]:
    """Eq. 8: the mean of the mixed features whose own label is k."""
    content = {}
    for k in set(y):
        members = [h[i] for i in range(len(y)) if y[i] == k]
        content[k] = np.sum(members, axis=0) / len(members)
    return content


def alignment(
    h: Float, y: list[int], p: dict[int, Float], level: str = "sample", reduction: str = "mse_mean", dist: str = "l2sq"
) -> float:
    """Eq. 9 over the classes that have a target."""
    by_class = {k: [h[i] for i in range(len(y)) if y[i] == k] for k in sorted(set(y)) if k in p}
    if level == "class_mean":
        by_class = {k: [np.mean(rows, axis=0)] for k, rows in by_class.items()}
    over = h.shape[1] if reduction == "mse_mean" else 1
    far: dict[int, list[float]] = {
        k: [(sum((a - b) ** 2 for a, b in zip(row, p[k], strict=True)) / over) ** (0.5 if dist == "l2" else 1)
            for row in rows]
        for k, rows in by_class.items()
    }  # fmt: skip
    if reduction == "class_sum":
        return sum(sum(values) / len(values) for values in far.values())
    every = [value for values in far.values() for value in values]
    return sum(every) / len(every)


# --- the terms of Eq. 10 ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"alpha": 2.0},
        {"gamma_per": "batch", "gamma_max": True},
        {"apa_level": "class_mean", "apa_reduction": "class_sum", "lambda1": 3.0},
        {"apa_dist": "l2", "apa_reduction": "class_sum"},
        {"apa_dist": "l2", "apa_level": "class_mean", "apa_reduction": "class_sum"},
    ],
)
def test_alignment_with_mixed_features_against_numpy(params: dict[str, Any]) -> None:
    made, draws, p = started(params), Draws(), I2PFLParams(**params)
    for first in range(3):  # the generators run on from batch to batch
        given = batch(first=first)
        y = given.y.tolist()
        h = features_of(made.model, given.x)
        partner = draws.partner(y)
        gamma = draws.gamma(len(y), p.alpha, per_batch=p.gamma_per == "batch", at_least_half=p.gamma_max)
        far = alignment(h, y, targets(mixed(h, partner, gamma), y), p.apa_level, p.apa_reduction, p.apa_dist)
        expected = p.lambda1 * far
        assert expected > 0
        assert float(made.loss(given)["apa"].detach()) == pytest.approx(expected, rel=1e-4)


def test_alignment_with_mixed_images_against_numpy() -> None:
    made, draws, given = started({"intra_proto": "input_mixup"}), Draws(), batch()
    y = given.y.tolist()
    x = mixed(given.x.numpy().astype(np.float64), draws.partner(y), draws.gamma(len(y), 0.4))
    p = targets(features_of(made.model, torch.from_numpy(x.astype(np.float32))), y)
    expected = 10 * alignment(features_of(made.model, given.x), y, p)
    assert float(made.loss(given)["apa"].detach()) == pytest.approx(expected, rel=1e-4)


def test_alignment_without_mixup_against_numpy() -> None:
    made, given = started({"intra_proto": "none_mixup"}), batch()
    h, y = features_of(made.model, given.x), given.y.tolist()
    assert float(made.loss(given)["apa"].detach()) == pytest.approx(10 * alignment(h, y, targets(h, y)), rel=1e-4)


def test_contrast_and_cross_entropy_against_numpy() -> None:
    made, given = started({"tau": 0.3, "lambda2": 2.5}), batch()
    y, g = given.y.tolist(), global_prototypes()["prototypes"].astype(np.float64)
    h = features_of(made.model, given.x)
    contrast, entropy = [], []
    for i in range(len(y)):
        s = [float(h[i] @ row) / float(np.linalg.norm(h[i]) * np.linalg.norm(row)) for row in g]
        place = {3: 0, 0: 1, 2: 2}.get(y[i])  # class 1 has no prototype: left out
        if place is not None:
            contrast.append(-np.log(np.exp(s[place] / 0.3) / sum(np.exp(v / 0.3) for v in s)))
        with torch.no_grad():
            logits = made.model.classifier(torch.from_numpy(h[i].astype(np.float32))).numpy().astype(np.float64)
        entropy.append(-np.log(np.exp(logits[y[i]]) / np.exp(logits).sum()))
    terms = made.loss(given)
    assert list(terms) == ["ce", "apa", "gpcl"]
    assert float(terms["gpcl"].detach()) == pytest.approx(2.5 * np.mean(contrast), rel=1e-4)
    assert float(terms["ce"].detach()) == pytest.approx(np.mean(entropy), rel=1e-4)


def test_batch_of_one_class_is_aligned_with_its_mean() -> None:
    made, given = started(), batch(y=[2] * 8)
    h = features_of(made.model, given.x)
    expected = 10 * alignment(h, [2] * 8, {2: h.mean(axis=0)})
    terms = made.loss(given)
    assert float(terms["apa"].detach()) == pytest.approx(expected, rel=1e-4)
    assert all(term.isfinite() for term in terms.values())


# --- switches --------------------------------------------------------------------------------------


def values_and_gradients(params: dict[str, Any]) -> dict[str, tuple[float, NDArray[np.float32]]]:
    """Each term of a batch, and its gradient with respect to all weights."""
    return flat_gradients(started({"tau": 0.5} | params), batch())


@pytest.mark.parametrize(
    ("intra", "level"),
    [
        ("feature_mixup", "sample"),
        ("input_mixup", "class_mean"),
        ("none_mixup", "sample"),
        ("none_mixup", "class_mean"),
    ],
)
def test_stop_gradient_changes_the_gradient_of_apa_and_no_value(intra: str, level: str) -> None:
    params = {"intra_proto": intra, "apa_level": level}
    default, live = values_and_gradients(params), values_and_gradients(params | {"apa_stopgrad": False})
    for name in default:
        assert live[name][0] == default[name][0]
    assert np.array_equal(live["ce"][1], default["ce"][1])
    assert np.array_equal(live["gpcl"][1], default["gpcl"][1])
    if (intra, level) == ("none_mixup", "class_mean"):  # the target is the class mean itself
        assert not default["apa"][1].any()
        assert not live["apa"][1].any()
    elif intra == "none_mixup":  # the deviations from a mean sum to 0, so the mean's own gradient is 0
        np.testing.assert_allclose(live["apa"][1], default["apa"][1], rtol=1e-3, atol=1e-6)
    else:
        assert not np.allclose(live["apa"][1], default["apa"][1], rtol=1e-2)


@pytest.mark.parametrize("reduction", ["mse_mean", "class_sum"])
@pytest.mark.parametrize("level", ["sample", "class_mean"])
def test_unsquared_distance_has_a_gradient_where_a_feature_lies_on_its_target(level: str, reduction: str) -> None:
    """The root's own has none at 0; here it is 0."""
    params = {"apa_dist": "l2", "apa_level": level, "apa_reduction": reduction, "intra_proto": "none_mixup"}
    _, grad = flat_gradients(started(params), batch(b=1))["apa"]
    assert not grad.any()
    assert np.isfinite(flat_gradients(started(params), batch(y=[0, 0, 1, 2]))["apa"][1]).all()


# --- where the augmented prototypes come from ------------------------------------------------------


def epoch_of_mixed_features(made: I2PFLClient, draws: Draws, batches: list[Batch]) -> tuple[Float, list[int]]:
    rows, every = [], []
    for given in batches:
        y = given.y.tolist()
        h = features_of(made.model, given.x)
        rows.append(mixed(h, draws.partner(y), draws.gamma(len(y), 0.4)))
        every += y
    return np.concatenate(rows), every


def test_scope_epoch_takes_the_means_of_the_epoch_before() -> None:
    made, draws = started({"augproto_scope": "epoch"}), Draws()
    # Weights do not move here, as no step is taken. Epoch 0 never sees class 2.
    epochs = [
        [batch(6, 0, [0, 0, 1, 1, 1, 0]), batch(4, 1, [1, 1, 0, 1])],
        [batch(6, 2, [0, 1, 2, 0, 1, 2]), batch(3, 3, [2, 2, 2])],
        [batch(6, 4, [0, 1, 2, 2, 1, 2])],
    ]
    stored: dict[int, Float] = {}
    for epoch, batches in enumerate(epochs):
        if epoch > 0:
            made.start_epoch(epoch)
        for given in batches:
            value = float(made.loss(given)["apa"].detach())
            if epoch > 0:
                y = given.y.tolist()
                known = any(label in stored for label in y)
                expected = 10 * alignment(features_of(made.model, given.x), y, stored) if known else 0.0
                assert value == pytest.approx(expected, rel=1e-4)
        stored = targets(*epoch_of_mixed_features(made, draws, batches))


def class_set_targets(made: I2PFLClient, draws: Draws, epochs: int, p: I2PFLParams) -> dict[int, Float]:
    """Eq. 8 over all training images, as training sees them: the last of ``epochs`` passes, each with its own draws."""
    pipeline, x = Pipeline(made.setup.images, torch.device("cpu")), torch.from_numpy(made.train_set.x)
    order, view = (
        torch.Generator().manual_seed(torch_seed(SEED, f"i2pfl-class-set-{name}", INDEX, ROUND))
        for name in ("order", "view")
    )
    for _ in range(epochs):
        rows, labels = [], []
        for index in torch.randperm(len(x), generator=order).split(8):  # type: ignore[no-untyped-call]
            y = made.train_set.y[index.numpy()].tolist()
            images = pipeline.train(x[index], view)
            partner, gamma = draws.partner(y), draws.gamma(len(y), p.alpha)
            if p.intra_proto == "input_mixup":
                mixed_images = mixed(images.numpy().astype(np.float64), partner, gamma)
                rows.append(features_of(made.model, torch.from_numpy(mixed_images.astype(np.float32))))
            else:
                rows.append(mixed(features_of(made.model, images), partner, gamma))
            labels += y
    return targets(np.concatenate(rows), labels)


@pytest.mark.parametrize(
    ("intra", "form"),
    [("feature_mixup", {}), ("input_mixup", {"apa_level": "class_mean", "apa_reduction": "class_sum"})],
)
def test_scope_class_set_stores_the_means_of_all_images_for_an_epoch(intra: str, form: dict[str, Any]) -> None:
    made = started({"augproto_scope": "class_set", "intra_proto": intra} | form)
    for epoch in range(2):
        if epoch > 0:
            made.start_epoch(epoch)  # weights did not move, but the pairs and the views are others
        stored = class_set_targets(made, Draws(), epoch + 1, made.params)
        for first in range(2):
            given = batch(first=first, y=[0, 1, 1, 2, 0])
            h = features_of(made.model, given.x)
            expected = 10 * alignment(h, given.y.tolist(), stored, *form.values())
            assert float(made.loss(given)["apa"].detach()) == pytest.approx(expected, rel=1e-4)


def test_pass_over_the_class_set_changes_nothing_else() -> None:
    """Neither weights nor BatchNorm's statistics, nor what training draws; and nothing is kept between rounds."""
    params = {"augproto_scope": "class_set", "lambda1": 0.0}
    assert same(fit(client(params, model="cnn_bn"), 1)[0], fit(client({"lambda1": 0.0}, model="cnn_bn"), 1)[0])
    made = client({"augproto_scope": "class_set"}, model="cnn_bn")
    made.model.train()
    before = weights(made)
    begun(made)
    assert not changed(before, weights(made))
    assert made.model.training and all(weight.requires_grad for weight in made.model.parameters())
    fit(made)
    assert made.memory == {}


def test_scope_round_keeps_the_sums_of_the_last_epoch() -> None:
    made, draws = started({"augproto_scope": "round"}), Draws()
    for epoch in range(2):
        batches = [batch(6, 10 * epoch + i, [0, 1, 2, 0, 1, 1]) for i in range(2)]
        if epoch > 0:
            made.start_epoch(epoch)
        for given in batches:
            made.loss(given)
        rows, y = epoch_of_mixed_features(made, draws, batches)
    made.finish_round(ROUND)
    sums = np.zeros((C, D))
    for row, label in zip(rows, y, strict=True):
        sums[label] += row
    assert set(made.memory) == {AUGMENTED_SUMS, AUGMENTED_COUNTS}
    np.testing.assert_allclose(made.memory[AUGMENTED_SUMS], sums, rtol=1e-4, atol=1e-5)
    assert made.memory[AUGMENTED_COUNTS].tolist() == [4, 6, 2, 0]


def test_scope_round_uses_what_the_round_before_left() -> None:
    rng = np.random.default_rng(5)
    sums = rng.uniform(size=(C, D)).astype(np.float32)
    counts = np.array([2, 0, 5, 0])
    made = client({"augproto_scope": "round"}, global_prototypes())
    made.memory = {AUGMENTED_SUMS: sums.copy(), AUGMENTED_COUNTS: counts.copy()}
    made.start_round(ROUND)
    stored = {k: sums[k].astype(np.float64) / counts[k] for k in (0, 2)}
    for epoch in range(2):  # fixed for the whole round
        made.start_epoch(epoch)
        given = batch(first=epoch)
        h, y = features_of(made.model, given.x), given.y.tolist()
        assert float(made.loss(given)["apa"].detach()) == pytest.approx(10 * alignment(h, y, stored), rel=1e-4)
    assert np.array_equal(made.memory[AUGMENTED_SUMS], sums)


# --- noise on prototypes (A13) -----------------------------------------------------------------------


def contribution(server_round: int = ROUND, **params: Any) -> dict[str, NDArray[Any]]:
    made = client(params)
    made.start_round(server_round)
    return made.finish_round(server_round)


@pytest.mark.parametrize(("dp", "kept", "noisy"), [("add", 1.0, 0.3), ("shrink_add", 0.7, 1.0)])
def test_noise_is_on_the_class_mean(dp: str, kept: float, noisy: float) -> None:
    plain = contribution()
    result = contribution(dp=dp, dp_q=0.3, dp_scale=0.5, repeatable_noise=True)
    noise = generator(SEED, "i2pfl-dp", INDEX, ROUND).normal(0.0, 0.5, (C, D))
    held = plain["counts"] > 0
    np.testing.assert_allclose(
        result["prototypes"][held], kept * plain["prototypes"][held] + noisy * noise[held], rtol=1e-5, atol=1e-6
    )
    assert not result["prototypes"][~held].any()
    assert result["counts"].tolist() == plain["counts"].tolist()


@pytest.mark.parametrize("dp", ["add", "shrink_add"])
def test_noise_is_the_systems_and_cannot_be_drawn_again(dp: str) -> None:
    """From the run's seed the server could draw it again, and subtract it."""
    plain, first, again = contribution(), *(contribution(dp=dp, dp_q=0.5, dp_scale=1.0) for _ in range(2))
    held = plain["counts"] > 0
    factor = 0.5 if dp == "add" else 1.0
    kept = 1.0 if dp == "add" else 0.5
    by_seed = generator(SEED, "i2pfl-dp", INDEX, ROUND).normal(0.0, 1.0, (C, D))[held].ravel()
    noise = [((result["prototypes"] - kept * plain["prototypes"])[held] / factor).ravel() for result in (first, again)]
    for one, other in ((noise[0], noise[1]), (noise[0], by_seed), (noise[1], by_seed)):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 5 / np.sqrt(len(one))
    assert np.concatenate(noise).std() == pytest.approx(1.0, rel=0.3)
