"""Private training on a node: clipped gradients against one image at a time, noise, batches, prototypes, an attack."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from support import SEED, C, D, N, batch, begun, drawn, fit, image_set, labels, new_client, shared
from torch import Tensor, nn

from fedshift_app.config.sections import PrivacyConfig
from fedshift_clients.base import DomainClient
from fedshift_clients.losses import cross_entropy, cross_entropy_of_each
from fedshift_clients.methods.feddyn import FedDynClient
from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_clients.methods.fedprox import FedProxClient
from fedshift_clients.methods.fpl import FPLClient
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training import dp_sgd, per_image
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.dp_sgd import PrivateTraining
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.names import SERVER_ROUND
from fedshift_datasets.base import ImageSet

for package in ("opacus", "dp_accounting"):
    pytest.importorskip(package, reason="fedshift[dp] is not installed")


def small(seed: int = 0, middle: nn.Module | None = None) -> SplitModel:
    """Return a network with a convolution, a normalisation and two linear layers, for images of 8 pixels."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), middle or nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 6), nn.ReLU(),
    )  # fmt: skip
    return SplitModel(encoder, 6, C)


def wide() -> SplitModel:
    """Return a network that can remember, for images of 8 pixels."""
    torch.manual_seed(0)
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 128), nn.ReLU()), 128, C)


def private_client(kind: Any = DomainClient, *, network: SplitModel | None = None, **options: Any) -> Any:
    """Return a client that trains privately; options of the section ``privacy`` and of ``new_client``."""
    keys = PrivacyConfig.model_fields
    privacy = {key: options.pop(key) for key in list(options) if key in keys}
    if "target_epsilon" not in privacy:
        privacy.setdefault("noise_multiplier", 1.0)
    made = new_client(kind, network=network, **options)
    made.trained_by = PrivateTraining(PrivacyConfig(name="dp-sgd", **privacy))
    return made


# --- gradients -------------------------------------------------------------------------------------


def slow_sum(model: SplitModel, x: Tensor, y: Tensor, clip: float) -> list[Tensor]:
    """Return the sum of clipped gradients, one image after another."""
    every = []
    for image, label in zip(x.split(1), y.split(1), strict=True):
        gradients = torch.autograd.grad(cross_entropy(model(image)[1], label), list(model.parameters()))
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        every.append([gradient * min(1.0, clip / norm) for gradient in gradients])
    return [sum(parts[1:], parts[0]) for parts in zip(*every, strict=True)]


@pytest.mark.parametrize(("clip", "layout"), [(0.3, torch.channels_last), (2.0, torch.contiguous_format)])
def test_the_sum_is_that_of_one_image_at_a_time(clip: float, layout: torch.memory_format) -> None:
    """And nothing of Opacus is left on the model."""
    model, y = small().to(memory_format=layout), labels(2, 7, C)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    x = drawn(1, 7, 3, 8, 8).contiguous(memory_format=layout)
    wanted = slow_sum(model, x, y, clip)
    with per_image.per_image(model) as images:
        images.clipped_sum(nn.functional.cross_entropy(model(x)[1], y, reduction="none"), clip)
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=1e-4, atol=1e-5)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    assert all(not {"grad_sample", "_norm_sample"} & set(vars(parameter)) for parameter in model.parameters())


class Twice(nn.Module):
    """Uses a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Mixing(nn.Module):
    """Takes the mean image of a batch off each."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0, keepdim=True)


class Adding(nn.Conv2d):
    """Adds to a map where it stands, as shortcuts of timm's networks do."""

    def forward(self, x: Tensor) -> Tensor:
        x += super().forward(x)
        return x


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (nn.BatchNorm2d(4), "encoder.1"), (Twice(), "Opacus"), (Mixing(), "mixes"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "encoder.1.running_mean"), (Adding(4, 4, 1), "inplace"),
    ],
)  # fmt: skip
def test_networks_without_gradients_of_single_images_are_refused(middle: nn.Module, message: str) -> None:
    model = small(middle=middle).eval()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with refused(ConfigError, message):
        per_image.check(model, drawn(0, 2, 3, 8, 8), freeze_batchnorm=False)
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(dict(model.named_buffers()), buffers, rtol=0, atol=0)


def test_wrong_norms_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping as Hooks

    monkeypatch.setitem(Hooks.NORM_SAMPLERS, nn.Linear, lambda layer, given, back: {
        parameter: torch.ones(len(back)) for parameter in layer.parameters()})  # fmt: skip
    with refused(ConfigError, "encoder.5.weight"):
        per_image.check(small(), torch.randn(2, 3, 8, 8), freeze_batchnorm=False)


# --- losses ----------------------------------------------------------------------------------------

PROTOTYPES = {"prototypes": np.random.default_rng(3).normal(size=(C, D)).astype(np.float32), "labels": np.arange(C)}


@pytest.mark.parametrize("kind", [DomainClient, FedProxClient, FedDynClient, FedProtoClient, FPLClient])
def test_the_loss_is_the_mean_over_images_and_the_terms_of_weights(kind: Any) -> None:
    client, given = new_client(kind, knowledge=PROTOTYPES if kind.sends_prototypes else None), batch(6, classes=C)
    client.take([array + 0.01 for array in shared(client)])
    begun(client)
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.mul_(1.1)  # so that terms of weights are not 0
    of_images, of_weights, whole = client.image_losses(given), client.weight_losses(), client.loss(given)
    assert kind.is_per_image() and len(whole) >= (1 if kind is DomainClient else 2)
    torch.testing.assert_close({name: term.mean() for name, term in of_images.items()} | of_weights, dict(whole))
    alone = [client.image_losses(Batch(given.x[i : i + 1], given.y[i : i + 1], 0)) for i in range(6)]
    joined = {name: torch.cat([of_one[name] for of_one in alone]) for name in of_images}
    torch.testing.assert_close(dict(of_images), joined, rtol=1e-4, atol=1e-5)


def test_who_changes_the_loss_must_say_that_it_is_of_single_images() -> None:
    class Changed(FedProxClient):
        def loss(self, batch: Batch) -> dict[str, Tensor]:
            return {"ce": super().loss(batch)["ce"] * batch.y.float().mean()}

    class Named(FedProxClient):
        remembers_shared = True

    assert not Changed.is_per_image() and Named.is_per_image()


# --- steps -----------------------------------------------------------------------------------------


def test_an_empty_batch_is_a_step_of_noise_with_its_deviation() -> None:
    client = private_client(noise_multiplier=3.0, clipping_norm=0.5)
    spends = client.trained_by.spending(client)
    client.trained_by._set_gradient(client, None, None, spends, np.random.default_rng(0))
    noise = torch.cat([parameter.grad.flatten() for parameter in client.model.parameters()])
    assert noise.std() == pytest.approx(3.0 * 0.5 / 8, rel=0.01)  # a batch of eight is expected
    assert abs(float(noise.mean())) < 5 * float(noise.std()) / math.sqrt(len(noise))


def test_the_gradient_is_the_noised_sum_over_the_expected_batch_and_terms_of_weights_come_on_top() -> None:
    client = private_client(FedProxClient, params={"mu": 0.7}, noise_multiplier=0.01, clipping_norm=0.1)
    client.take(shared(client))
    client.start_round(1)
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.add_(0.001)
    by, given, rng = client.trained_by, batch(5, classes=C), np.random.default_rng(0)
    wanted = [part / 8 + 0.7 * 0.001 for part in slow_sum(client.model, given.x, given.y, 0.1)]
    with per_image.per_image(client.model) as images:
        by._set_gradient(client, images, given, by.spending(client), rng)
    found, bound = [parameter.grad for parameter in client.model.parameters()], 6 * 0.01 * 0.1 / 8 + 1e-5
    torch.testing.assert_close(found, wanted, rtol=0, atol=bound)


def test_batches_are_poisson_samples_whose_sizes_are_binomial() -> None:
    client = private_client()
    views = client.torch_rng("augment", 1), client.torch_rng("augment-second", 1)
    seen = dp_sgd._batches(client, 0, 3000, 0.1, np.random.default_rng(5), views)
    sizes = np.array([0 if batch is None else len(batch.y) for batch in seen])
    assert len(sizes) == 3000 and (sizes == 0).mean() == pytest.approx(0.9**N, rel=0.2)
    assert (sizes.mean(), sizes.var()) == pytest.approx((N * 0.1, N * 0.1 * 0.9), rel=0.1)


def test_a_round_has_the_steps_that_are_accounted_for_and_draws_anew() -> None:
    ends = []
    for _ in range(2):
        client = private_client(noise_multiplier=2.0)
        arrays, number, metrics = client.fit(shared(client), {SERVER_ROUND: 1})
        assert (number, client.steps) == (N, client.trained_by.spending(client).steps) == (N, 6)
        assert metrics == {} and client.steps == client.trained_by.spending(client).steps
        ends.append(arrays)
    assert not any(np.array_equal(one, other) for one, other in zip(*ends, strict=True))


def test_half_precision_is_refused_on_the_node() -> None:
    client = private_client(precision="bf16")
    with refused(FedShiftError, "train.precision=bf16", "float32"):
        fit(client)


# --- prototypes ------------------------------------------------------------------------------------


def test_prototypes_are_class_means_of_clipped_features_with_noise_of_the_stated_deviation() -> None:
    images, wanted = image_set(60), torch.zeros(C, D)
    given: dict[str, Any] = {"train_set": images, "prototype_clip": 0.05}
    client = private_client(FedProtoClient, **given, prototype_noise=0.01, noise_multiplier=0.01)
    client.model.eval()
    with torch.no_grad():
        z = torch.cat([client.forward(x)[0] for x, _ in client.plain_batches(images)])
    assert float(z.norm(dim=1).min()) > 0.05
    for label in range(C - 1):
        wanted[label] = 0.05 * nn.functional.normalize(z[images.y == label]).mean(dim=0)
    means, counts = client.class_prototypes()
    torch.testing.assert_close(means, wanted, atol=1e-4, rtol=0)
    assert counts.tolist() == [20, 20, 20, 0]
    with refused(FedShiftError):
        client.class_prototypes()

    means, counts = private_client(FedProtoClient, **given, noise_multiplier=1.0).class_prototypes()
    assert (counts >= 0).all() and (counts <= torch.tensor([20, 20, 20, 0])).all()
    off = (means - wanted)[: C - 1] * 20
    assert off.std() == pytest.approx(math.sqrt(2) * 0.05, rel=0.35)  # the counts are noisy, too


def test_a_method_that_does_not_declare_prototypes_gets_none() -> None:
    with refused(FedShiftError):
        private_client().class_prototypes()


# --- does it learn? --------------------------------------------------------------------------------


# --- does it protect? ------------------------------------------------------------------------------


def advantage(client: DomainClient, *sets: ImageSet) -> float:
    """Return how much better than chance the best threshold on the loss tells members from others, 0 to 1."""
    client.model.eval()
    with torch.no_grad():
        losses = [
            np.concatenate([cross_entropy_of_each(client.forward(x)[1], y) for x, y in client.plain_batches(images)])
            for images in sets
        ]
    return max(float((losses[0] <= t).mean() - (losses[1] <= t).mean()) for t in np.concatenate(losses))


def test_an_attack_by_the_loss_finds_members_without_noise_and_not_with_it() -> None:
    """Random labels, so that only remembering helps. Bound: (e^eps - 1 + 2 delta) / (e^eps + 1) (Humphries, 2023)."""
    rng = np.random.default_rng(SEED)
    x, y = rng.integers(0, 256, (120, 8, 8, 3), dtype=np.uint8), rng.integers(0, C, 120)
    members, others = ImageSet(x[:60], y[:60]), ImageSet(x[60:], y[60:])
    options: dict[str, Any] = {"train_set": members, "epochs": 25, "batch_size": 20, "images": ImageConfig()}
    bare = new_client(DomainClient, network=wide(), **options)
    private = private_client(network=wide(), target_epsilon=0.5, **options)
    for client in (bare, private):
        fit(client)
    epsilon = private.trained_by.spending(private).epsilon(1)
    bound = (math.exp(epsilon) - 1 + 2e-5) / (math.exp(epsilon) + 1)
    chance = math.sqrt(math.log(1e6) / 60)  # of the largest gap of two samples of 60, exceeded once in a million
    assert epsilon <= 0.5 and advantage(bare, members, others) > 0.8
    assert advantage(private, members, others) < bound + chance < 0.8
