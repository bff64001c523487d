"""``model.projection`` and the frozen beginning of a model that is computed once
(``fedshift_clients.models.shortcut``)."""

import copy

import pytest
import torch
from refusals import refused
from support import drawn
from torch import Tensor, nn

from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import projection_of, unprojected
from fedshift_clients.models.shortcut import Shortcut, depth_of
from fedshift_core.errors import ConfigError

NAMES = ["cnn", "cnn_bn", "resnet10", "torchvision:mobilenet_v3_small"]


def _images(number: int = 3, seed: int = 0) -> Tensor:
    return drawn(seed, number, 3, 32, 32)


def _frozen(name: str, what: str, projection: int = 0) -> SplitModel:
    model = networks.build(name, 7, seed=0, size=32, projection=projection)
    freeze(model, what, name)
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_a_projection_is_the_feature_and_leaves_the_encoder_as_it_was(name: str) -> None:
    plain, model = (networks.build(name, 7, seed=0, projection=width).eval() for width in (0, 16))
    layer, own, x = projection_of(model.encoder), model.encoder.state_dict(), _images()
    torch.testing.assert_close({key: own[key] for key in plain.encoder.state_dict()}, dict(plain.encoder.state_dict()))
    assert own.keys() - plain.encoder.state_dict().keys() == {"projection.0.weight", "projection.0.bias"}
    features, logits = model(x)
    assert layer is not None and (model.feature_dim, layer.width_in) == (16, plain.feature_dim)
    torch.testing.assert_close(features, torch.relu(plain.encoder(x) @ layer[0].weight.T + layer[0].bias))
    torch.testing.assert_close(logits, model.classifier(features))
    torch.testing.assert_close(unprojected(model.encoder, x), plain.encoder(x))


@pytest.mark.parametrize(("what", "projection"), [("encoder", 0), ("encoder", 16), ("stages:1", 0), ("stages:2", 16)])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_goes_on_from_what_is_kept_as_from_images(name: str, what: str, projection: int) -> None:
    model, x, other = _frozen(name, what, projection), _images(2), _images(2, seed=1)
    wanted, wanted_of_other = model(x), model(other)
    shortcut = Shortcut(model, depth_of(model, what), 32)
    kept = shortcut.beginning(x)
    assert kept.ndim == (2 if what == "encoder" else 4) and set(shortcut.names) == model.frozen
    for _ in range(2):
        shortcut.close()
        torch.testing.assert_close(model(kept), wanted)
        with shortcut.opened():
            torch.testing.assert_close(model(other), wanted_of_other)
        torch.testing.assert_close(copy.deepcopy(model)(kept)[1], wanted[1])


class _Functional(nn.Module):
    """An encoder that does something to images which belongs to none of its stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.second(self.first(2 * x))
        return h.mean(dim=(2, 3))

    def feature_stages(self) -> object:
        from fedshift_clients.models.stages import stages_of

        return stages_of([self.first, self.second], lambda h: h.mean(dim=(2, 3)))


def test_a_network_that_does_not_go_on_alike_is_refused() -> None:
    model = SplitModel(_Functional(), 8, 7)
    freeze(model, "stages:1", "mine")
    with refused(ConfigError, "model.precompute=on", "stages:1", "off"):
        Shortcut(model, "stages:1", 32)
    assert len(model(_images())) == 2  # it takes images as before


def test_what_trains_is_not_computed_once() -> None:
    model = networks.build("resnet10", 7, seed=0)
    freeze(model, "stages:1", "resnet10")
    with refused(ConfigError, "trains"):
        Shortcut(model, "stages:2", 32)
    with refused(ConfigError, "model.precompute=on", "stages:N", "norm"):
        depth_of(model, "norm")
