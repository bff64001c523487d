"""gPerXAN: mixed norms against NumPy, the received head's loss, the tensors that stay on a node."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from support import Float, as64, batch, begun, changed, drawn, fit, new_client
from support import weights as state_of
from torch import nn

from fedshift_clients.methods.gperxan import AssembledNorm, GPerXANClient, assembled
from fedshift_clients.models import networks
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError


def client(index: int = 0, **params: Any) -> GPerXANClient:
    return new_client(GPerXANClient, params, model="cnn_bn", index=index, epochs=1, batch_size=4)


def layer(channels: int = 3) -> AssembledNorm:
    """Return a layer whose values all differ."""
    made = AssembledNorm(nn.BatchNorm2d(channels))
    for place, tensor in enumerate(made.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(drawn(place, *tensor.shape).abs() + 0.5)
    return made


def slow_norm(x: Float, made: AssembledNorm) -> Float:
    """Return w_BN BN(x) + w_IN IN(x)."""
    value = {name: as64(tensor)[..., None, None] for name, tensor in made.state_dict().items()}
    shares = np.exp([value["score"], value["instance_score"]])
    means, variances = (x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)) if made.training else (
        value["running_mean"], value["running_var"])  # fmt: skip
    of_batch = (x - means) / np.sqrt(variances + made.eps) * value["weight"] + value["bias"]
    centred = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + made.eps)
    of_instance = centred * value["instance_weight"] + value["instance_bias"]
    return np.asarray((shares[0] * of_batch + shares[1] * of_instance) / shares.sum(0))


@pytest.mark.parametrize(("training", "size"), [(True, (5, 2)), (False, (5, 2)), (False, (1, 1))])
def test_a_layer_is_that_of_a_slow_version(training: bool, size: tuple[int, int]) -> None:
    made, x = layer().train(training), drawn(0, 4, 3, *size)
    wanted = slow_norm(as64(x), made)
    np.testing.assert_allclose(as64(made(x)), wanted, atol=1e-5)


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
    (made, off), given = (begun(client(lambda_guide=value), 1) for value in (0.7, 0.0)), batch()
    received = copy.deepcopy(made.model.classifier)
    with torch.no_grad():  # as after some steps
        for parameter in made.model.classifier.parameters():
            parameter.mul_(1.5)
    terms, (z, logits), ce = made.loss(given), made.forward(given.x), nn.functional.cross_entropy
    torch.testing.assert_close(terms, {"ce": ce(logits, given.y), "guide": 0.7 * ce(received(z), given.y)})
    terms["guide"].backward()  # type: ignore[no-untyped-call]
    assert made.model.classifier.weight.grad is None
    assert made.model.encoder.get_parameter("1.instance_score").grad is not None
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
    own = state_of(made)
    made.take([np.asarray(array + 1, array.dtype) for array in own.values()])
    scored = state_of(made)
    assert np.array_equal(scored["encoder.1.running_mean"], own["encoder.1.running_mean"] + 1)
    made.start_round(2)
    kept = {name for name in own if name.startswith(("encoder.1.", "encoder.5.")) and "instance" not in name}
    assert changed(scored, state_of(made)) == kept and not kept & changed(own, state_of(made))


def test_a_network_without_norms_of_maps_is_refused() -> None:
    flat = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)), 5, 3)
    with refused(ConfigError, "flat"):
        assembled(flat, "flat")
