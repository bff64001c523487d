"""The feature levels of networks: what the activations at the end of the stages are given."""

import pytest
import torch
from refusals import refused
from support import drawn
from torch import nn

from fedshift_clients.models.levels import feature_levels, level_features, levels_of
from fedshift_clients.models.networks import build
from fedshift_core.errors import ConfigError


def gathered(name: str) -> list[torch.Tensor]:
    model = build(name, 4, 0)
    with level_features(levels_of(model, name)) as result, torch.no_grad():
        model(drawn(0, 3, 3, 32, 32))
    return result


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("cnn", [32, 64, 64]), ("cnn_bn", [32, 64, 64]), ("cnn3", [32, 64, 128, 512]),
        ("resnet10", [64, 64, 128, 256, 512]), ("torchvision:resnet18", [64, 64, 128, 256, 512]),
    ],
)  # fmt: skip
def test_levels_are_taken_before_the_activation_and_pooled(name: str, widths: list[int]) -> None:
    result = gathered(name)
    assert [tuple(f.shape) for f in result] == [(3, width) for width in widths]
    assert all(f.dtype == torch.float32 for f in result)
    assert (result[0] < 0).any() and (result[-1] < 0).any()


@pytest.mark.parametrize("name", ["torchvision:resnet18"])
def test_levels_of_a_residual_network_by_its_maps(name: str) -> None:
    """Rectified, a map before the activation is the map of its stage, of which the mean is no more than that."""
    model, x = build(name, 4, 0).eval(), drawn(0, 2, 3, 32, 32)
    levels = levels_of(model, name)
    given: list[torch.Tensor] = []
    hooks = [level.register_forward_pre_hook(lambda m, args: given.append(args[0].clone())) for level in levels[2:]]
    with level_features(levels) as result, torch.no_grad():
        features, _ = model(x)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(given[-1].relu().mean((2, 3)), features, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(given[-1].mean((2, 3)), result[-1], rtol=1e-4, atol=1e-6)


def test_a_network_that_does_not_tell_is_refused_in_a_line() -> None:
    assert feature_levels(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) is None
    with refused(ConfigError, "method=x", "feature levels"):
        levels_of(build("torchvision:shufflenet_v2_x0_5", 4, 0), "method=x")
