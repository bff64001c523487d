"""Networks of torchvision and timm: divided into encoder and head, cut into stages, refused in a line."""

import sys
from typing import Any

import pytest
import torch
from refusals import refused
from support import drawn
from torch import Tensor, nn
from torchvision import models

from fedshift_clients.models import libraries, networks, timm_nets, torchvision_nets
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.networks import MLPHead
from fedshift_clients.models.stages import feature_stages
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
