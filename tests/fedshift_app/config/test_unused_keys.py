"""Keys that do nothing in a run: shipped values have an effect, and a sweep leaves such keys out of its other runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from refusals import refused
from support import ROOT
from words import config as config_of

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift.lab.grid.rescore import command as rescoring
from fedshift.lab.grid.sweep import grid
from fedshift.run.launch import watching
from fedshift_app.config import options_of_a_kind, recipes, registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.requested import requested_by_method
from fedshift_app.config.resolving import FLAT_KEYS, resolve
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import as_yaml

NETWORK = "model.name=cnn_bn"  # which has what every recipe needs


@pytest.mark.parametrize("method", [name for name in registry.METHODS if registry.get(name).parameters])
def test_every_recipes_values_reach_their_keys(method: str) -> None:
    """Of each parameter its own value, typed."""
    spec, typed = registry.get(method), f"method={method} {NETWORK}"
    config = config_of(typed)
    for key in spec.parameters:
        target, meanings = recipes.targets_of(spec, key)[0]
        if recipes.moved(spec, key) and not meanings:
            value = recipes.value_of(config, target)
            if value is not recipes.NOTHING:
                config_of(f"{typed} 'method.{key}={json.dumps(value)}'")


def test_what_a_key_needs_are_values_that_another_key_can_have() -> None:
    marked = {
        f"{section}.{key}": mark
        for section in RunConfig.model_fields
        for key, mark in options_of_a_kind.options(section).items()
    }
    assert {"server.lr", "shift.severity", "model.groups", "privacy.epsilon"} < {*marked}
    for name, mark in marked.items():
        kind: Any = RunConfig.model_fields[name.partition(".")[0]].annotation
        assert kind.model_fields[mark.key].default not in mark.values
        assert all(accepts(kind, mark.key, value) for value in mark.values)


def accepts(section: type[BaseModel], key: str, value: str | bool) -> bool:
    try:
        section.model_validate({key: value})
    except ValidationError as error:  # of other keys, which a section may need
        return all(key not in entry["loc"] for entry in error.errors())
    return True


def test_a_run_of_an_earlier_version_is_repeated_as_it_was(tmp_path: Path) -> None:
    sections = resolve({}).model_dump(mode="json")
    sections["privacy"]["epsilon"], sections["model"]["bn"] = 8.0, "local"
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml({"resolved": sections}))
    assert resolve({"experiment": str(file)}).privacy.epsilon == 8.0


def points(*arguments: str) -> tuple[list[str], list[str]]:
    result, notes = grid.points(grid.read(["handwritten", *arguments]))
    return [point.label for point in result], notes


def test_a_sweep_leaves_the_key_out_of_the_runs_in_which_it_does_nothing() -> None:
    labels, notes = points("shift.name=none,corruption", "shift.severity=1,3")
    corrupted = [f"fedavg shift.name=corruption shift.severity={severity}" for severity in (1, 3)]
    assert labels == ["fedavg shift.name=none", *corrupted]
    assert len(notes) == 2 and notes[0].startswith("shift.severity ") and notes[1].startswith("3 runs ")
    labels, notes = points("method=fedavg,afl", "aggregation.afl_step=0.5")
    assert labels == ["fedavg", "afl"] and notes[0].startswith("aggregation.afl_step ")


def test_a_sweep_in_which_no_run_needs_the_key_is_refused() -> None:
    with refused(ConfigError, "shift.severity=1", "shift.name=none"):
        points("method=fedavg,fedprox", "shift.severity=1,3")
    with refused(ConfigError, "fedavg privacy.name=none", "privacy.epsilon=4"):
        points("privacy.name=none,local-dp", "set=privacy.epsilon=4")


# --- keys that are set to nothing ---------------------------------------------------------------------

# --- A key with an empty value, as a shell's unset variable leaves it, is refused ---

LAUNCH = ("engine", "nodes", "workers", "actors", "cpus-per-client", "gpus-per-client", "report")


def test_of_a_run() -> None:
    for key in (*FLAT_KEYS, *LAUNCH):
        for value in ("", " "):
            with refused(ConfigError, f"{key}: "):
                parse_arguments(["handwritten", f"{key}={value}"])
    with refused(ConfigError, "experiment: "):
        parse_arguments([""])


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: grid.points(grid.read(["handwritten", "data-dir="])), "data-dir"),
        (lambda: grid.points(grid.read(["handwritten", "method="])), "method"),
        (lambda: prepare.prepare("pacs", ["data-dir="], as_json=False), "data-dir"),
        (lambda: init_files.init("mine", ["data-dir="]), "data-dir"),
        (lambda: rescoring.rescore(["output-dir=", "runs"]), "output-dir"),
        (lambda: watching.show(["output-dir="], as_json=False, watch=False, site=""), "output-dir"),
    ],
)
def test_of_other_commands(call: Callable[[], object], key: str, here: Path) -> None:
    with refused(ConfigError, key):
        call()
    assert not list(here.iterdir())


# --- What a method asks of an experiment that only its user has: its runs tell it, and compare ---


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a copy of ``handwritten`` under another name, in which FedProx asks for something too."""
    content = yaml.safe_load((ROOT / "conf" / "experiments" / "handwritten.yaml").read_text())
    content["methods"]["fedprox"] = {"train": {"lr": 0.02}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_it_is_what_the_experiment_and_the_method_say(mine: Path) -> None:
    def asked(**given: str) -> dict[str, tuple[object, object]]:
        return requested_by_method(given, resolve(given))

    assert asked(experiment=str(mine), method="fedprox") == {"train.lr": (0.02, 0.01)}
    assert asked(experiment=str(mine), method="fedavg") == {}
    bn = asked(experiment=str(mine), method="fedbn")
    assert (bn["model.bn"], bn["model.name"]) == (("local", "average"), ("cnn_bn", "cnn"))
    # By hand is no asking; of an experiment of ours anybody can find out.
    assert asked(experiment=str(mine), method="fedprox", set="train.lr=0.5") == {"train.lr": (0.02, 0.01)}
    assert asked(experiment="handwritten", method="fedbn") == {}
