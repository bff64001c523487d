"""BatchNorm's statistics: taken of images, those of a batch, put in place and taken out again."""

import contextlib

import numpy as np
import torch
from support import Float, as64, drawn, fedavg, image_set
from torch import Tensor, nn

from fedshift_clients.training import statistics


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9))
    made[0].weight.data.uniform_(0.5, 2)
    made[0].bias.data.uniform_(-1, 1)
    return made


def batches() -> list[Tensor]:
    return [3 * drawn(size, size, 3, 6, 6) + torch.arange(3)[:, None, None] for size in (5, 4, 2)]


def test_moments_against_numpy_with_each_batch_normalised_by_its_own() -> None:
    model, given = network(), batches()
    result = statistics.take(model, model, given)
    norm, conv = ({name: p.detach().double() for name, p in layer.named_parameters()} for layer in (model[0], model[2]))
    inputs: dict[str, list[Float]] = {"0": [as64(batch) for batch in given], "3": []}
    for x in inputs["0"]:
        unit = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
        y = np.maximum(unit * as64(norm["weight"])[:, None, None] + as64(norm["bias"])[:, None, None], 0)
        inputs["3"].append(nn.functional.conv2d(torch.from_numpy(y), **conv).numpy())
    assert list(result) == ["0", "3"]
    stats = statistics.of_moments(result, 11)
    for name, seen in inputs.items():
        every = np.concatenate(seen)
        np.testing.assert_allclose(result[name].sums, every.mean((2, 3)).sum(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(result[name].squares, np.square(every).mean((2, 3)).sum(0), rtol=1e-4)
        np.testing.assert_allclose(stats[f"{name}.running_mean"], every.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(stats[f"{name}.running_var"], every.var((0, 2, 3)), rtol=1e-4)


def test_taking_leaves_the_model_as_it_was() -> None:
    model, before = network().train(), network().state_dict()
    first, again = (statistics.take(model, model, batches())["3"].sums for _ in range(2))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(first, again)  # no dropout, no state


def test_by_batch_is_training_mode_of_batchnorm_alone() -> None:
    model, x = network().eval(), batches()[0]
    plain = network().eval()(x)
    with statistics.by_batch(model):
        result = model(x)
    assert torch.equal(model(x), plain) and not any(module.training for module in model.modules())
    torch.testing.assert_close(result, network()[:4].train()(x))  # as dropout does nothing in evaluation mode


def test_statistics_are_put_back_whatever_happens() -> None:
    model, before = network(), network().state_dict()
    put = {"0.running_mean": torch.full((3,), 7.0), "3.running_var": torch.full((4,), 2.0)}
    with contextlib.suppress(KeyError), statistics.in_place(model, put):
        torch.testing.assert_close(dict(model.state_dict()), dict(before) | put, rtol=0, atol=0)
        raise KeyError
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


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
