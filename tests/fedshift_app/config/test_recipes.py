"""Recipes: a method that is a configuration of another one; its parameters are keys of other sections."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import on_images

from fedshift_app.config import registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_clients.base import DomainClient
from fedshift_core.errors import ConfigError
from fedshift_strategies.base import DomainStrategy

RECIPES = ["f2dc", "f2dc-code", "fedavg-ft", "fedbn"]


def asked(**given: Any) -> dict[str, Any]:
    return as_requested(flat(resolve(given).model_dump(mode="json")))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_no_class(name: str) -> None:
    method = registry.get(name)
    assert method.of == "fedavg"
    assert method.strategy_class() is DomainStrategy
    assert method.client_class() is DomainClient
    assert registry.METHODS[name].strategy == registry.METHODS[name].client == ""


def test_f2dc_is_fedavg_with_modules_and_weights() -> None:
    config = resolve({"experiment": "f2dc-pacs", "method": "f2dc", "data-dir": "/data"})
    assert dict(config.method) == {"name": "f2dc"}
    assert [entry["name"] for entry in config.modules] == ["f2dc"]
    assert config.aggregation.weights == "domain-aware"
    assert (config.aggregation.alpha, config.aggregation.beta) == (1.0, 0.4)


def test_the_released_code_has_its_own_values_and_leaves_those_of_others() -> None:
    """mala-lab/F2DC at 6b0a8ed: main.py, best_args.py and models/f2dc.py."""
    code = resolve({"experiment": "f2dc-pacs", "method": "f2dc-code", "data-dir": "/data"})
    assert (code.train.lr, code.train.momentum, code.train.weight_decay) == (0.1, 0.0, 0.0)
    assert code.aggregation.weights == "samples"
    (modules,) = code.modules
    values = {
        "lambda1": 0.8, "lambda2": 1.0, "tau": 0.06, "sigma": 0.1, "conv_layers": 3, "hidden": 50,
        "noise": "gumbel_pair", "eval_noise": True, "y_hat_from": "classifier", "local_modules": "aggregate",
        "eval_modules": "aggregated",
    }  # fmt: skip
    assert {key: modules[key] for key in values} == values
    for other in ("fedavg", "f2dc"):
        config = resolve({"experiment": "f2dc-pacs", "method": other, "data-dir": "/data"})
        assert (config.train.lr, config.train.momentum, config.train.weight_decay) == (0.01, 0.9, 1e-5)


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ("method.sigma=5", "sigma", 5),
        ("modules.f2dc.sigma=5", "sigma", 5),
        ("modules.sigma=5", "sigma", 5),
        ("method.insert_after=[1,2]", "insert_after", [1, 2]),
    ],
)
def test_a_parameter_of_a_recipe_is_a_key_of_its_sections(settings: str, key: str, value: Any) -> None:
    config = resolve({"method": "f2dc", "set": settings}).model_dump(mode="json")
    assert config["modules"][0][key] == value
    assert config["modules"][0]["hidden"] == 64
    assert asked(method="f2dc", set=settings)[f"method.{key}"] == value


def test_values_may_have_another_name_there() -> None:
    config = resolve({"method": "f2dc", "set": "method.aggregation=fedavg"})
    assert config.aggregation.weights == "samples"
    assert asked(method="f2dc", set="aggregation.weights=samples")["method.aggregation"] == "fedavg"
    with pytest.raises(ConfigError, match=r"method\.aggregation: 'median'; allowed are daa, fedavg"):
        resolve({"method": "f2dc", "set": "method.aggregation=median"})


def test_what_an_experiment_says_of_a_recipe_reaches_its_sections() -> None:
    config = resolve({"experiment": "handwritten", "method": "f2dc"})  # methods: f2dc: {noise: ..., lambda1: 0.1}
    assert config.modules[0]["noise"] == "gumbel_pair"
    assert config.modules[0]["lambda1"] == 0.1
    over = resolve({"experiment": "handwritten", "method": "f2dc", "set": "method.lambda1=0.3"})
    assert over.modules[0]["lambda1"] == 0.3


def test_unknown_parameters_are_reported_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown key method\.gamma for method 'f2dc'; there are aggregation, alpha"):
        resolve({"method": "f2dc", "set": "method.gamma=1"})
    with pytest.raises(ConfigError, match=r"modules\.f2dc\.sigma: Input should be greater than 0"):
        resolve({"method": "f2dc", "set": "method.sigma=0"})


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("f2dc", "modules=[]", "method f2dc needs the modules f2dc, found modules=none"),
        ("fedavg-ft", "adapt.name=none", "method fedavg-ft needs adapt.name=finetune, found none"),
        ("fedbn", "model.bn=freeze", "method fedbn needs model.bn=local, found freeze"),
        ("fedbn", "model.bn=average", "method fedbn needs model.bn=local, found average"),
        ("fedbn", "model.name=cnn", "fedbn needs a network with BatchNorm, found model.name=cnn; there are cnn_bn"),
    ],
)  # fmt: skip
def test_what_makes_it_the_method_cannot_be_taken_away(method: str, settings: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve({"method": method, "set": settings})


@pytest.mark.parametrize("name", [*RECIPES, "fedicon"])
def test_the_configuration_of_a_run_repeats_it(name: str, tmp_path: Path) -> None:
    settings = {
        "f2dc": "method.sigma=5",
        "f2dc-code": "method.sigma=5",
        "fedavg-ft": "method.ft_epochs=2",
        "fedbn": "method.weighting=samples",
    }
    config = resolve({"method": name, "set": settings.get(name, "method.tta_lr=0.5")})
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"resolved": config.model_dump(mode="json")}))
    assert resolve({"experiment": str(file)}) == config


OLD: dict[str, dict[str, Any]] = {
    "f2dc": {"aggregation": "fedavg", "alpha": 1.0, "beta": 0.3, "balance": "exact", "sigma": 5.0, "tau": 0.06},
    "fedbn": {"weighting": "samples"},
    "fedavg-ft": {"ft_epochs": 3},
    "fedicon": {"tta": False, "tta_mode": "online", "tta_epochs": 1, "tta_batch": 8, "tta_lr": 0.1, "tau": 0.5},
}


@pytest.mark.parametrize("name", sorted(OLD))
def test_runs_from_before_are_read_as_what_they_were(name: str) -> None:
    """Kept results have parameters of recipes under ``method``, and ``modules`` as one mapping."""
    now = resolve({"method": name}).model_dump(mode="json")
    own = {key: value for key, value in now["method"].items() if key != "name"}
    old = {key: value for key, value in now.items() if key not in ("modules", "adapt", "aggregation", "plugins")}
    old |= {"method": {"name": name} | own | OLD[name], "modules": {"name": "none"}}
    read = as_requested(flat(validate(sections_of_run({"resolved": old})).model_dump(mode="json")))
    for key, value in OLD[name].items():
        if name != "fedicon" or not key.startswith("tta_"):  # without an adaptation they say nothing
            assert read[f"method.{key}"] == value


def test_a_recipe_of_a_recipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    method = registry.METHODS["fedbn"].model_copy(update={"of": "f2dc"})
    monkeypatch.setitem(registry.METHODS._found, "fedbn2", method)
    monkeypatch.setattr(registry.METHODS, "_claims", lambda **_: {"fedbn2": []})
    with pytest.raises(ConfigError, match="which is a recipe itself"):
        registry.get("fedbn2")


@pytest.mark.parametrize("name", on_images(registry.METHODS))
def test_every_parameter_of_a_recipe_stands_for_a_key_that_there_is(name: str) -> None:
    method = registry.get(name)
    network = "model.name=cnn_bn" if method.needs.get("network") == "batchnorm" else ""
    settings = flat(resolve({"method": name, "set": f"{method.short} {network}".strip()}).model_dump(mode="json"))
    result = as_requested(settings)
    for key in method.parameters:
        assert f"method.{key}" in result


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("modules=[f2dc]", ["f2dc"]), ("modules=f2dc", ["f2dc"]), ("modules.name=f2dc", ["f2dc"]), ("modules=[]", []),
        ("modules.name=none", []), ("modules='[{name: f2dc, tau: 0.5}]'", ["f2dc"]),
    ],
)  # fmt: skip
def test_the_section_modules_takes_a_list(given: str, names: list[str]) -> None:
    config = resolve({"set": given})
    assert [entry["name"] for entry in config.modules] == names
    if "tau" in given:
        assert config.modules[0]["tau"] == 0.5


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("modules=[nothing]", "modules: unknown modules 'nothing'; there are f2dc"),
        ("modules=[f2dc,f2dc]", "modules: 'f2dc' comes twice"),
        ("modules=[3]", "modules: expected a list such as"),
        ("modules.tau=1", "expected modules.NAME.KEY with a name of the run's modules"),
        ("modules=[f2dc] modules.f2dc.nothing=1", "unknown key modules.f2dc.nothing; there are conv_layers"),
        ("adapt.name=nothing", "adapt.name: unknown adaptation 'nothing'; there are finetune, fedicon"),
        ("adapt.name=finetune adapt.lr=1", "unknown key adapt.lr for adapt.name=finetune; there are epochs"),
        ("adapt.epochs=1", "unknown key adapt.epochs for adapt.name=none"),
    ],
)
def test_what_the_sections_may_not_say(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve({"set": given})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("adapt.lr=0.1", "adapt.name=tent model.name=cnn_bn"),
        ("modules.f2dc.tau=0.5", "modules=[f2dc]"),
        ("modules.f2dc.tau=0.5", "modules.name=f2dc"),
        ("allocation.share.scan=0.5", "allocation.share='{scan: 0.1, street: 0.1, sketch: 0.1, texture: 0.1}'"),
    ],
)
def test_a_name_or_section_keeps_its_keys_in_whatever_order_they_are_typed(key: str, name: str) -> None:
    assert resolve({"set": f"{key} {name}"}) == resolve({"set": f"{name} {key}"}) != resolve({"set": name})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("adapt.typo=3 adapt.name=tent", "unknown key adapt.typo for adapt.name=tent"),
        ("adapt.lr=0.1 adapt.name=none", "unknown key adapt.lr for adapt.name=none"),
        ("modules.f2dc.tau=0.5 modules=[mixstyle]", "expected modules.NAME.KEY with a name of the run's modules"),
    ],
)
def test_a_key_typed_before_its_name_is_checked(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve({"method": "f2dc", "set": given})


def test_the_command_takes_a_list_of_modules() -> None:
    given, _ = parse_arguments(["handwritten", "method=fedprox", "modules=[f2dc]", "modules.f2dc.tau=0.1"])
    (entry,) = resolve(given).modules
    assert (entry["name"], entry["tau"]) == ("f2dc", 0.1)


@pytest.mark.parametrize(
    ("requested", "scalars", "left_out"),
    [
        ("", {"method.tta": True, "method.tta_lr": 0.001}, ["adapt.name", "adapt.lr"]),
        ("method.tta=false", {"method.tta": False}, ["adapt.name"]),
        ("adapt.name=tent adapt.lr=0.01", {"adapt.name": "tent", "adapt.lr": 0.01}, ["method.tta", "method.tta_lr"]),
    ],
)
def test_another_adaptation_over_fedicon_is_not_shown_as_its_own(
    requested: str, scalars: dict[str, object], left_out: list[str]
) -> None:
    config = resolve({"method": "fedicon", "set": f"model.name=cnn_bn {requested}"})
    settings = as_requested(flat(config.model_dump(mode="json")))
    assert {key: settings[key] for key in scalars} == scalars
    assert not set(left_out) & set(settings)


def test_the_adaptation_of_a_recipe_without_a_switch_is_shown_as_none() -> None:
    settings = as_requested(flat(resolve({"method": "tent", "set": "model.name=cnn_bn"}).model_dump(mode="json")))
    assert settings["adapt.name"] == "none"
