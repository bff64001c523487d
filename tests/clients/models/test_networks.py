"""Networks: the numbers of the papers, their sizes of images, and a step with BatchNorm."""

import pytest
import torch
from refusals import refused
from support import drawn
from torch import nn

from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.levels import feature_levels, level_features, levels_of
from fedshift_clients.models.networks import batchnorm_names, build
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS

NAMES = sorted(name for name in NETWORKS if NETWORKS.origin(name) == OURS)
FEATURE_DIM = {"cnn": 64, "cnn_bn": 64, "cnn2": 512, "cnn3": 512, "resnet10": 512, "resnet18": 512}


def images(b: int, size: int = 32) -> torch.Tensor:
    return drawn(0, b, 3, size, size)


# --- shapes and sizes ------------------------------------------------------------------------------


#: Of the CNNs: 5x5 convolutions 3 -> 32 -> 64 (-> 128), FC to 64 or 512, FC to the classes, all with biases.
CONVOLUTIONS = (75 * 32 + 32) + (25 * 32 * 64 + 64)
BY_HAND = {
    "cnn": CONVOLUTIONS + (1600 * 64 + 64) + (64 * 10 + 10),
    "cnn2": CONVOLUTIONS + (64 * 64 * 512 + 512) + (512 * 10 + 10),
    "cnn3": CONVOLUTIONS + (25 * 64 * 128 + 128) + (128 * 16 * 512 + 512) + (512 * 10 + 10),
    # Stem 3*64*9 + 2*64 = 1,856. A block a -> b: 9ab + 9bb + 4b, and with a shortcut ab + 2b more.
    # 64 -> 64: 73,984; 64 -> 128: 230,144; 128 -> 256: 919,040; 256 -> 512: 3,673,088. Of 7 classes 4,901,703.
    "resnet10": 4_901_703 + 3 * 513,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_networks_have_the_published_number_of_parameters(name: str) -> None:
    assert sum(p.numel() for p in build(name, 10, 0).parameters()) == BY_HAND[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue_says_what_is_true_of_a_network(name: str) -> None:
    """It imports no torch, so it cannot look."""
    known, model = NETWORKS[name], build(name, 7, 0, 28).eval()
    assert (known.name, known.batchnorm) == (name, bool(batchnorm_names(model)))
    if known.size is not None:
        assert known.size == 32
        with pytest.raises(RuntimeError):
            model(images(2, 28))
    else:
        features, logits = model(images(2, 28))
        assert (features.shape, logits.shape) == ((2, FEATURE_DIM[name]), (2, 7))


# --- BatchNorm -------------------------------------------------------------------------------------


# --- feature levels -----------------------------------------------------------------------------------


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
