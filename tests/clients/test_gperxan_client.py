"""gPerXAN: mixed norms against NumPy, the received head's loss, the tensors that stay on a node."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import as64, batch, drawn, fit, new_client, shared
from torch import nn

from fedshift_clients.methods.gperxan import AssembledNorm, GPerXANClient, assembled
from fedshift_clients.models import networks, weights
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError

Float = NDArray[np.float64]


def client(index: int = 0, **params: Any) -> GPerXANClient:
    return new_client(GPerXANClient, params, model="cnn_bn", index=index, epochs=1, batch_size=4)


def layer(channels: int = 3) -> AssembledNorm:
    """Return a layer whose values all differ."""
    made = AssembledNorm(nn.BatchNorm2d(channels))
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=rng) + 0.5)
        for statistic in (made.running_mean, made.running_var):
            assert statistic is not None
            statistic.copy_(torch.rand(channels, generator=rng) + 0.5)
    return made


def slow_norm(x: Float, made: AssembledNorm, *, training: bool) -> Float:
    """Return w_BN BN(x) + w_IN IN(x), one channel of one image after another."""
    value = {name: as64(tensor) for name, tensor in made.state_dict().items()}
    scores = np.exp([value["score"][0], value["instance_score"][0]])
    of_batch, of_instance = scores / scores.sum()
    out = np.empty_like(x)
    for b, c in np.ndindex(x.shape[:2]):
        mean, var = (x[:, c].mean(), x[:, c].var()) if training else (
            value["running_mean"][c], value["running_var"][c])  # fmt: skip
        batch_norm = (x[b, c] - mean) / np.sqrt(var + made.eps) * value["weight"][c] + value["bias"][c]
        centred = (x[b, c] - x[b, c].mean()) / np.sqrt(x[b, c].var() + made.eps)
        instance_norm = centred * value["instance_weight"][c] + value["instance_bias"][c]
        out[b, c] = of_batch * batch_norm + of_instance * instance_norm
    return out


@pytest.mark.parametrize(("training", "size"), [(True, (5, 2)), (False, (5, 2)), (False, (1, 1))])
def test_a_layer_is_that_of_a_slow_version(training: bool, size: tuple[int, int]) -> None:
    made = layer().train(training)
    before, x = copy.deepcopy(made), drawn(0, 4, 3, *size)
    np.testing.assert_allclose(as64(made(x)), slow_norm(as64(x), before, training=training), atol=1e-5)


@pytest.mark.parametrize(("network", "norms"), [("cnn_bn", 2), ("resnet10", 12)])
def test_each_norm_of_a_map_is_mixed_and_begins_half_and_half(network: str, norms: int) -> None:
    plain = networks.build(network, 5, seed=7)
    made = assembled(networks.build(network, 5, seed=7), network)
    layers = [module for module in made.modules() if isinstance(module, AssembledNorm)]
    assert len(layers) == norms
    assert len(made.state_dict()) == len(plain.state_dict()) + 4 * norms
    x = drawn(2, 3, layers[0].num_features, 4, 4)
    wanted = (nn.BatchNorm2d(x.shape[1])(x) + nn.InstanceNorm2d(x.shape[1])(x)) / 2
    assert torch.allclose(layers[0](x), wanted, atol=1e-6)


def test_the_guide_is_the_received_head_on_the_same_features() -> None:
    made, given = client(lambda_guide=0.7), batch()
    made.start_round(1)
    received = copy.deepcopy(made.model.classifier)
    with torch.no_grad():  # as after some steps
        for parameter in made.model.classifier.parameters():
            parameter.mul_(1.5)
    terms = made.loss(given)
    z, logits = made.forward(given.x)
    assert terms["ce"].item() == pytest.approx(nn.functional.cross_entropy(logits, given.y).item(), rel=1e-5)
    guide = 0.7 * nn.functional.cross_entropy(received(z), given.y)
    assert terms["guide"].item() == pytest.approx(guide.item(), rel=1e-5)
    terms["guide"].backward()  # type: ignore[no-untyped-call]
    assert made.model.classifier.weight.grad is None
    assert made.model.encoder.get_parameter("1.instance_score").grad is not None
    off = client(lambda_guide=0.0)
    off.start_round(1)
    assert off.loss(given).keys() == {"ce"}


def test_batchnorm_and_its_score_stay_and_the_instance_norm_is_shared() -> None:
    made = client()
    here = {name for name in made.model.state_dict() if name not in made.shared_names}
    of_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "score")
    assert here == {f"encoder.{place}.{name}" for place in (1, 5) for name in of_norm}
    assert {f"encoder.1.{name}" for name in ("instance_weight", "instance_bias", "instance_score")} <= {
        *made.shared_names
    }
    assert made.personal(made.model, made.setup.model, made.params)
    local = GPerXANClient.private(made.model, ModelConfig(name="cnn_bn", bn="local"), made.params)
    assert {name.rpartition(".")[0] for name in local} == {"encoder.1", "encoder.5"}
    assert len(local) == 18
    fit(made)
    assert made.memory.keys() == {f"model/{name}" for name in here}


def test_averaged_a_node_sends_its_batchnorm_scores_the_average_and_goes_on_with_its_own() -> None:
    made = client(batch_norm="averaged")
    assert made.shared_names == [*made.model.state_dict()]
    assert not made.personal(made.model, made.setup.model, made.params)
    fit(made)
    own = dict(zip(made.shared_names, shared(made), strict=True))
    others = [np.asarray(array + 1, array.dtype) for array in own.values()]
    made.take(others)
    scored = dict(zip(made.shared_names, shared(made), strict=True))
    assert np.array_equal(scored["encoder.1.running_mean"], own["encoder.1.running_mean"] + 1)
    made.start_round(2)
    trained = dict(zip(made.shared_names, shared(made), strict=True))
    for name in made.shared_names:
        stays = name.startswith(("encoder.1.", "encoder.5.")) and "instance" not in name
        assert np.array_equal(trained[name], own[name] if stays else scored[name]), name


def test_pretrained_weights_need_not_have_what_its_layers_add_but_all_else() -> None:
    name = "torchvision:shufflenet_v2_x0_5"
    state = networks.build(name, 4, 5).state_dict()
    made = assembled(networks.build(name, 4, 0), name)
    taken = weights.fitted(made, state, name, "/w.pth")
    assert taken.values.keys() == state.keys()
    made.load_state_dict(taken.values, strict=False)
    norm = next(module for module in made.modules() if isinstance(module, AssembledNorm))
    torch.testing.assert_close(norm.weight, state["encoder.body.conv1.1.weight"])
    assert (norm.instance_weight == 1).all()
    del state["encoder.body.conv1.1.bias"]
    with refused(ConfigError, "encoder.body.conv1.1.bias"):
        weights.fitted(made, state, name, "/w.pth")


def test_a_network_without_norms_of_maps_is_refused() -> None:
    flat = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)), 5, 3)
    with refused(ConfigError, "flat"):
        assembled(flat, "flat")
