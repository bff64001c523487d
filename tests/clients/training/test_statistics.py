"""BatchNorm's statistics: taken of images, those of a batch, put in place and taken out again."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import fedavg, image_set
from torch import Tensor, nn

from fedshift_clients.models.networks import SplitModel, with_group_norm
from fedshift_clients.training import statistics
from fedshift_core.errors import ConfigError
from fedshift_datasets.base import ImageSet

Float = NDArray[np.float64]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9))
    made[0].weight.data.uniform_(0.5, 2)
    made[0].bias.data.uniform_(-1, 1)
    return made


def batches(seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(size, 3, 6, 6, generator=rng) + torch.arange(3)[:, None, None] for size in (5, 4, 2)]


def test_moments_against_loops_with_each_batch_normalised_by_its_own() -> None:
    model, given = network(), batches()
    result = statistics.take(model, model, given)
    norm, conv = model[0], model[2]
    inputs: dict[str, list[Float]] = {"0": [], "3": []}
    for x in (batch.double().numpy() for batch in given):
        inputs["0"].append(x)
        mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        scale, shift = (p.detach().double().numpy()[:, None, None] for p in (norm.weight, norm.bias))
        y = np.maximum((x - mean) / np.sqrt(var + norm.eps) * scale + shift, 0)
        weights = (p.detach().double() for p in (conv.weight, conv.bias))
        inputs["3"].append(nn.functional.conv2d(torch.from_numpy(y), *weights).numpy())
    assert list(result) == ["0", "3"]
    for name, seen in inputs.items():
        every = np.concatenate(seen)
        np.testing.assert_allclose(result[name].sums, every.mean((2, 3)).sum(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(result[name].squares, np.square(every).mean((2, 3)).sum(0), rtol=1e-4)
        stats = statistics.of_moments(result, 11)
        np.testing.assert_allclose(stats[f"{name}.running_mean"], every.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(stats[f"{name}.running_var"], every.var((0, 2, 3)), rtol=1e-4)


def test_taking_leaves_the_model_as_it_was() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = statistics.take(model, model, batches())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = statistics.take(model, model, batches())
    assert all(torch.equal(first[name].sums, again[name].sums) for name in first)  # no dropout, no state


def test_by_batch_is_training_mode_of_batchnorm_alone() -> None:
    model, x = network().eval(), batches()[0]
    plain = model(x)
    with statistics.by_batch(model):
        result = model(x)
    wanted = nn.Sequential(*list(model)[:4]).train()(x)  # as dropout does nothing in evaluation mode
    assert torch.allclose(result, wanted)
    model = network().eval()
    assert torch.equal(model(x), plain)
    assert not any(module.training for module in model.modules())


def test_statistics_are_put_back_whatever_happens() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    put = {"0.running_mean": torch.full((3,), 7.0), "3.running_var": torch.full((4,), 2.0)}

    def failing() -> None:
        with statistics.in_place(model, put):
            assert float(model.state_dict()["0.running_mean"][1]) == 7
            assert float(model.state_dict()["3.running_var"][3]) == 2
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_node_takes_them_of_a_sample_that_stays_the_same() -> None:
    client = fedavg(model="cnn_bn", train_set=image_set(20))
    seen: list[int] = []
    client.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    whole, images = client.take_statistics(1000)
    assert (images, seen) == (20, [7, 7, 6])
    some, images = client.take_statistics(15)
    assert (images, seen[3:]) == (15, [7, 6, 2])  # no batch of one image, which has no variance
    again, _ = client.take_statistics(15)
    assert torch.equal(some["encoder.1"].sums, again["encoder.1"].sums)
    assert not torch.allclose(some["encoder.1"].sums / 15, whole["encoder.1"].sums / 20)


def test_images_that_come_class_by_class_are_mixed() -> None:
    """Else batches of one class hide from deeper layers what tells classes apart; here dark images from bright ones."""
    x = np.random.default_rng(0).integers(0, 40, (56, 32, 32, 3), dtype=np.uint8)
    x += np.repeat(np.arange(8, dtype=np.uint8) * 30, 7)[:, None, None, None]
    sorted_by_class = ImageSet(x, np.repeat(np.arange(8) % 4, 7))
    client = fedavg(model="cnn_bn", train_set=sorted_by_class)  # batches of 7
    deeper = list(statistics.layers(client.model))[1]

    def variance(moments: dict[str, statistics.Moments]) -> Tensor:
        return statistics.of_moments(moments, 56)[f"{deeper}.running_var"]

    one_batch = [torch.cat([x.clone() for x, _ in client.plain_batches(sorted_by_class)])]
    in_order = (x for x, _ in client.plain_batches(sorted_by_class))
    whole, misled = (variance(statistics.take(client.model, client.forward, given)) for given in (one_batch, in_order))
    taken = variance(client.take_statistics(1000)[0])
    client.setup = replace(client.setup, bn_order="listed")
    assert torch.equal(variance(client.take_statistics(1000)[0]), misled)
    assert float((misled / whole - 1).abs().mean()) > 3 * float((taken / whole - 1).abs().mean())


def modules_of(model: nn.Module) -> Iterator[str]:
    return (type(module).__name__ for module in model.modules())


def test_group_norm_takes_the_place_of_every_batchnorm() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)), nn.Flatten())
    model = with_group_norm(SplitModel(encoder, 4, 2), 2)
    assert "BatchNorm2d" not in modules_of(model)
    groups = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert [(norm.num_groups, norm.num_channels, norm.eps) for norm in groups] == [(2, 4, 1e-5)] * 2
    with refused(ConfigError, "model.groups=3", 4):
        with_group_norm(nn.Sequential(nn.BatchNorm2d(4)), 3)
