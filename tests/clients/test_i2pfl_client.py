"""I2PFL on a node: where its augmented prototypes come from, the slopes of its alignment, noise on prototypes."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import INDEX, ROUND, SEED, C, D, batch, begun, flat_gradients, global_prototypes, new_client  # fmt: skip
from torch import Tensor

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.losses import class_means
from fedshift_clients.losses.styles import blended
from fedshift_clients.methods.i2pfl import (
    I2PFLClient,
    other_class_partner,
    prototype_alignment,
)  # fmt: skip
from fedshift_clients.training.batches import Batch
from fedshift_core.seeding import generator, torch_seed

client = partial(new_client, I2PFLClient)


def started(params: dict[str, Any] | None = None) -> I2PFLClient:
    return begun(client(params, global_prototypes()))


def rng_of(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(torch_seed(SEED, name, INDEX, ROUND))


class Draws:
    """Mixes features or images of one round as the node draws, batch after batch."""

    def __init__(self) -> None:
        self.partners = rng_of("i2pfl-mixup")
        self.gammas = generator(SEED, "i2pfl-mixup", INDEX, ROUND)

    def mixed(self, a: Tensor, y: Tensor) -> Tensor:
        partner = other_class_partner(y, torch.rand(len(y), len(y), generator=self.partners))
        return blended(a, a[partner], torch.from_numpy(self.gammas.beta(0.4, 0.4, size=len(y)).astype(np.float32)))


def check_aligned(made: I2PFLClient, given: Batch, means: Tensor, counts: Tensor) -> None:
    """Check Eq. 9 with stored targets."""
    p, h = made.params, made.model.encoder(given.x).detach()
    apart = prototype_alignment(h, given.y, means, counts > 0, level=p.apa_level, reduction=p.apa_reduction)
    assert float(made.loss(given)["apa"].detach()) == pytest.approx(p.lambda1 * float(apart), rel=1e-4)


def of_batches(made: I2PFLClient, draws: Draws, batches: list[Batch]) -> tuple[Tensor, Tensor]:
    """Return class means and counts of the mixed features of an epoch (Eq. 8)."""
    with torch.no_grad():
        rows = torch.cat([draws.mixed(made.model.encoder(given.x), given.y) for given in batches])
    return class_means(rows, torch.cat([given.y for given in batches]), C)


@pytest.mark.parametrize(
    ("intra", "level"),
    [
        ("feature_mixup", "sample"), ("input_mixup", "class_mean"), ("none_mixup", "sample"),
        ("none_mixup", "class_mean"),
    ],
)  # fmt: skip
def test_stop_gradient_changes_the_gradient_of_apa_and_no_value(intra: str, level: str) -> None:
    params = {"intra_proto": intra, "apa_level": level}
    default, live = (flat_gradients(started(params | more), batch()) for more in ({}, {"apa_stopgrad": False}))
    for name, (value, slope) in live.items():
        assert value == default[name][0]
        assert name == "apa" or np.array_equal(slope, default[name][1])
    if intra == "none_mixup":  # the deviations from a mean sum to 0, so the mean's own gradient is 0
        np.testing.assert_allclose(live["apa"][1], default["apa"][1], rtol=1e-3, atol=1e-6)
        assert live["apa"][1].any() == (level == "sample")  # else the target is the class mean itself
    else:
        assert not np.allclose(live["apa"][1], default["apa"][1], rtol=1e-2)


def test_scope_epoch_takes_the_means_of_the_epoch_before() -> None:
    made, draws = started({"augproto_scope": "epoch"}), Draws()
    # Weights do not move here, as no step is taken. Epoch 0 never sees class 2.
    epochs = [
        [batch(6, 0, [0, 0, 1, 1, 1, 0]), batch(4, 1, [1, 1, 0, 1])],
        [batch(6, 2, [0, 1, 2, 0, 1, 2]), batch(3, 3, [2, 2, 2])],
        [batch(6, 4, [0, 1, 2, 2, 1, 2])],
    ]
    stored = torch.zeros(C, D), torch.zeros(C)
    for epoch, batches in enumerate(epochs):
        for given in batches:
            if epoch > 0:
                check_aligned(made, given, *stored)
            else:
                made.loss(given)
        made.start_epoch(epoch + 1)
        stored = of_batches(made, draws, batches)


@pytest.mark.parametrize(
    ("intra", "form"),
    [("feature_mixup", {}), ("input_mixup", {"apa_level": "class_mean", "apa_reduction": "class_sum"})],
)
def test_scope_class_set_stores_the_means_of_all_images_for_an_epoch(intra: str, form: dict[str, Any]) -> None:
    """Weights do not move, but the pairs and the views of the second epoch are others."""
    made, draws = started({"augproto_scope": "class_set", "intra_proto": intra} | form), Draws()
    pipeline, encode = Pipeline(made.setup.images, torch.device("cpu")), made.model.encoder
    order, view = (rng_of(f"i2pfl-class-set-{name}") for name in ("order", "view"))
    x, y = torch.from_numpy(made.train_set.x), torch.from_numpy(made.train_set.y)
    for epoch in range(2):
        rows, places = [], torch.randperm(len(x), generator=order)
        for index in places.split(8):  # type: ignore[no-untyped-call]
            images = pipeline.train(x[index], view)
            with torch.no_grad():
                if intra == "input_mixup":
                    rows.append(encode(draws.mixed(images, y[index])))
                else:
                    rows.append(draws.mixed(encode(images), y[index]))
        for first in range(2):
            check_aligned(made, batch(first=first, y=[0, 1, 1, 2, 0]), *class_means(torch.cat(rows), y[places], C))
        made.start_epoch(epoch + 1)


def test_scope_round_keeps_the_sums_of_the_last_epoch() -> None:
    made, draws = started({"augproto_scope": "round"}), Draws()
    for epoch in range(2):
        batches = [batch(6, 10 * epoch + i, [0, 1, 2, 0, 1, 1]) for i in range(2)]
        if epoch > 0:
            made.start_epoch(epoch)
        for given in batches:
            made.loss(given)
        means, counts = of_batches(made, draws, batches)
    made.finish_round(ROUND)
    sums, held = made.memory["augmented-sums"], made.memory["augmented-counts"]
    assert held.tolist() == [4, 6, 2, 0] and len(made.memory) == 2
    np.testing.assert_allclose(sums, means * counts[:, None], rtol=1e-4, atol=1e-5)


# --- noise on prototypes (A13) -----------------------------------------------------------------------


@pytest.mark.parametrize(("dp", "kept", "noisy"), [("add", 1.0, 0.3), ("shrink_add", 0.7, 1.0)])
def test_noise_is_on_the_class_mean_and_cannot_be_drawn_again(dp: str, kept: float, noisy: float) -> None:
    """From the run's seed the server could draw it again, and subtract it."""
    settings = {"dp": dp, "dp_q": 0.3, "dp_scale": 0.5}
    plain, repeated, *others = (
        begun(client(params)).finish_round(ROUND)
        for params in ({}, settings | {"repeatable_noise": True}, settings, settings)
    )
    held, by_seed = plain["counts"] > 0, generator(SEED, "i2pfl-dp", INDEX, ROUND).normal(0.0, 0.5, (C, D))
    wanted = (kept * plain["prototypes"] + noisy * by_seed) * held[:, None]
    np.testing.assert_allclose(repeated["prototypes"], wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(repeated["counts"], plain["counts"])
    noise = [((other["prototypes"] - kept * plain["prototypes"]) / noisy)[held] for other in others]
    together = np.corrcoef([each.ravel() for each in (*noise, by_seed[held])])
    assert (abs(together[np.triu_indices(3, 1)]) < 5 / np.sqrt(noise[0].size)).all()
    assert np.concatenate(noise).std() == pytest.approx(0.5, rel=0.3)
