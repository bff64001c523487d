"""Recipes: a method that is a configuration of another one; its parameters are keys of other sections."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from words import config as config_of

from fedshift.lab.grid.sweep import grid, records
from fedshift_app.config import registry, validating, written
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_clients.base import DomainClient
from fedshift_strategies.base import DomainStrategy


def asked(words: str) -> dict[str, Any]:
    return as_requested(flat(config_of(words).model_dump(mode="json")))


def f2dc(method: str) -> RunConfig:
    return config_of(f"f2dc-pacs method={method} dataset.data_dir=/data")


@pytest.mark.parametrize("name", ["f2dc", "f2dc-code", "fedavg-ft", "fedbn"])
def test_a_recipe_has_no_class(name: str) -> None:
    method = registry.get(name)
    assert (method.of, method.strategy_class(), method.client_class()) == ("fedavg", DomainStrategy, DomainClient)
    assert registry.METHODS[name].strategy == registry.METHODS[name].client == ""


def test_f2dc_is_fedavg_with_modules_and_weights() -> None:
    config, of = f2dc("f2dc"), f2dc("f2dc").aggregation
    assert (dict(config.method), [entry["name"] for entry in config.modules]) == ({"name": "f2dc"}, ["f2dc"])
    assert (of.weights, of.alpha, of.beta) == ("domain-aware", 1.0, 0.4)


#: mala-lab/F2DC at 6b0a8ed: main.py, best_args.py and models/f2dc.py.
OF_THE_CODE = yaml.safe_load("""
{lambda1: 0.8, lambda2: 1.0, tau: 0.06, sigma: 0.1, conv_layers: 3, hidden: 50, noise: gumbel_pair, eval_noise: true,
 y_hat_from: classifier, local_modules: aggregate, eval_modules: aggregated}
""")


def test_the_released_code_has_its_own_values_and_leaves_those_of_others() -> None:
    of = {method: f2dc(method).train for method in ("f2dc-code", "fedavg", "f2dc")}
    trained = [(train.lr, train.momentum, train.weight_decay) for train in of.values()]
    assert trained == [(0.1, 0.0, 0.0), (0.01, 0.9, 1e-5), (0.01, 0.9, 1e-5)]
    code = f2dc("f2dc-code")
    assert code.aggregation.weights == "samples"
    assert OF_THE_CODE.items() <= code.modules[0].items()


@pytest.mark.parametrize("typed", ["method.sigma=5", "modules.f2dc.sigma=5", "modules.sigma=5"])
def test_a_parameter_of_a_recipe_is_a_key_of_its_sections(typed: str) -> None:
    (modules,) = config_of(f"method=f2dc {typed}").modules
    assert (modules["sigma"], modules["hidden"]) == (5, 64)
    assert asked(f"method=f2dc {typed}")["method.sigma"] == 5


def test_values_may_have_another_name_there() -> None:
    assert config_of("method=f2dc method.aggregation=fedavg").aggregation.weights == "samples"
    assert asked("method=f2dc aggregation.weights=samples")["method.aggregation"] == "fedavg"


def test_what_an_experiment_says_of_a_recipe_reaches_its_sections() -> None:
    (modules,) = config_of("method=f2dc").modules  # methods: f2dc: {noise: ..., lambda1: 0.1}
    assert (modules["noise"], modules["lambda1"]) == ("gumbel_pair", 0.1)
    assert config_of("method=f2dc method.lambda1=0.3").modules[0]["lambda1"] == 0.3


OLD: dict[str, dict[str, Any]] = yaml.safe_load("""
f2dc: {aggregation: fedavg, alpha: 1.0, beta: 0.3, balance: exact, sigma: 5.0, tau: 0.06}
fedbn: {weighting: samples}
fedavg-ft: {ft_epochs: 3}
fedicon: {tta: false, tta_mode: online, tta_epochs: 1, tta_batch: 8, tta_lr: 0.1, tau: 0.5}
""")


@pytest.mark.parametrize("name", sorted(OLD))
def test_runs_from_before_are_read_as_what_they_were(name: str) -> None:
    """Kept results have parameters of recipes under ``method``, and ``modules`` as one mapping."""
    now = config_of(f"method={name}").model_dump(mode="json")
    old = {key: value for key, value in now.items() if key not in ("modules", "adapt", "aggregation", "plugins")}
    old |= {"method": now["method"] | OLD[name], "modules": {"name": "none"}}
    read = as_requested(flat(validate(sections_of_run({"resolved": old})).model_dump(mode="json")))
    for key, value in OLD[name].items():
        if name != "fedicon" or not key.startswith("tta_"):  # without an adaptation they say nothing
            assert read[f"method.{key}"] == value


@pytest.mark.parametrize("name", [name for name in registry.METHODS if registry.get(name).parameters])
def test_every_parameter_of_a_recipe_stands_for_a_key_that_there_is(name: str) -> None:
    method = registry.get(name)
    network = "model.name=cnn_bn" if method.needs.get("network") == "batchnorm" else ""
    assert {f"method.{key}" for key in method.parameters} <= {*asked(f"method={name} {method.short} {network}")}


@pytest.mark.parametrize("given", ["=[f2dc]", "=f2dc", "='[{name: f2dc, tau: 0.5}]'", ".name=f2dc modules.tau=0.5"])
def test_the_section_modules_takes_a_list(given: str) -> None:
    (entry,) = config_of(f"method=fedprox modules{given}").modules
    assert entry["name"] == "f2dc" and (entry["tau"] == 0.5 or "tau" not in given)
    assert not config_of("method=fedprox modules=[]").modules and not config_of("modules.name=none").modules


# --- keys that recorded runs lack ---------------------------------------------------------------------


def read_back(layers: dict[str, Any]) -> RunConfig:
    return written.read_back(validating.sections_of_run({"resolved": layers}))


def recorded(text: str) -> dict[str, Any]:
    """Return the sections that a run recorded before ``evaluate.bn_order`` existed."""
    layers = config_of(f"model.name=cnn_bn {text}").model_dump(mode="json")
    del layers["evaluate"]["bn_order"]
    return layers


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("evaluate.bn=[averaged,own]", "listed"),
        ("evaluate.bn=[retaken]", "listed"),
        ("evaluate.bn=[averaged,batch]", "shuffled"),  # it takes no statistics of training images
    ],
)
def test_statistics_of_runs_from_before_are_of_images_as_listed(text: str, order: str) -> None:
    layers = recorded(text)
    assert read_back(layers).evaluate.bn_order == order
    again: RunConfig = validating.validate(validating.sections_of_run({"resolved": layers}))
    assert again.evaluate.bn_order == order
    said = {**layers, "evaluate": {**layers["evaluate"], "bn_order": "shuffled"}}
    assert read_back(said).evaluate.bn_order == "shuffled"
    assert config_of(f"model.name=cnn_bn {text}").evaluate.bn_order == "shuffled"


def test_a_sweep_takes_a_run_from_before_only_for_what_it_was(tmp_path: Path) -> None:
    """Else seeds of one row would be of two orders."""
    text = "evaluate.bn=[averaged,own]"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"resolved": recorded(text), "nodes": 4}))
    made = records.read_run(file)
    assert made is not None
    listed, shuffled = (
        grid.identity(config_of(f"model.name=cnn_bn {text} evaluate.bn_order={order}"), 4)
        for order in ("listed", "shuffled")
    )
    assert made[0] == listed != shuffled
