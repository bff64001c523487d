"""The configuration: layers one over the other, dotted keys, and what travels to nodes and into run folders."""

import copy
import functools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from support import on_images, refusal_of

from fedshift_app.config import dotted_keys, registry, resolving
from fedshift_app.config.arguments import WITHOUT_DOT, parse_arguments
from fedshift_app.config.files import CONF, names
from fedshift_app.config.layers import parse_set
from fedshift_app.config.resolving import FLAT_KEYS, resolve
from fedshift_app.config.validating import METHOD_SECTIONS, from_json
from fedshift_app.run.files import CONFIG_FILE
from fedshift_app.run.folder import RunFolder
from fedshift_clients.models import weights
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets import catalog

#: A small experiment as a person would write one.
EXPERIMENT: dict[str, Any] = {
    "title": "a test",
    "dataset": {"name": "handwritten"},
    "model": {"name": "cnn"},
    "train": {"epochs": 2, "batch_size": 16, "lr": 0.02},
    "allocation": {"counts": "any"},
    "method": {"name": "fedavg"},
    "methods": {"i2pfl": {"tau": 0.3, "alpha": 0.2}},
    "rounds": 7,
}


def written(folder: Path, **changes: Any) -> str:
    """Write the small experiment with changes; return its path."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT | changes))
    return str(path)


# --- what is in conf/ -------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", names("experiments"))
def test_every_experiment_resolves_with_every_method(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = functools.cache(read_yaml)  # 38 times the same file
    monkeypatch.setattr(resolving, "read_yaml", lambda path: copy.deepcopy(once(path)))
    monkeypatch.setattr(weights, "digest", functools.cache(weights.digest))  # of 18 MB
    frozen = "-pretrained" in experiment and experiment != "pacs-pretrained-stages"
    for method in on_images(registry.METHODS):
        own, flat = registry.get(method), {"experiment": experiment, "method": method}
        problem = ""
        if experiment.endswith("-heterogeneous") and not own.client_class().heterogeneous:
            problem = "so all nodes need the same network"
        elif frozen and own.needs.get("network") == "batchnorm":  # none trains
            problem = "model."
        elif "model.freeze=encoder" in own.short and "-pretrained" not in experiment:
            problem = "model.freeze=encoder"
        if problem:
            assert problem in refusal_of(ConfigError, resolve, flat)
            continue
        config = resolve(flat)
        assert (config.experiment, config.method["name"]) == (experiment, method)
        config.params()


def test_files_of_conf_are_those_of_methods_and_data_sets_and_experiments_have_titles() -> None:
    assert names("methods") == sorted(registry.METHODS)
    assert names("datasets") == sorted(catalog.DATASETS)
    assert all(read_yaml(CONF / "experiments" / f"{name}.yaml")["title"] for name in names("experiments"))


def test_a_method_file_holds_only_parameters_of_its_method_and_repeats_no_default() -> None:
    """The model of the parameters is the one place of defaults; the file says in a comment where they are from."""
    for method in map(registry.get, registry.METHODS):
        content = {key: value for key, value in method.defaults.items() if key not in METHOD_SECTIONS}
        assert method.checked_params(content).model_fields_set == set(content), method.name
        fields = method.params_class().model_fields
        assert not [key for key, value in content.items() if fields[key].default == value], method.name


def test_titles_state_the_shares_of_their_nodes() -> None:
    stated = {}
    for name in names("experiments"):
        content = read_yaml(CONF / "experiments" / f"{name}.yaml")
        if match := re.search(r"(\d+)-(\d+) % of a domain each", content["title"]):
            shares = content["allocation"]["share"].values()
            stated[name] = (match.groups(), (f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"))
    assert "digits-small-shift" in stated
    assert {name for name, (title, shares) in stated.items() if title != shares} == set()


# --- defaults and layers ----------------------------------------------------------------------------------


def test_keys_of_the_app_and_of_the_command() -> None:
    app = tomllib.loads((CONF.parent / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == FLAT_KEYS
    assert resolve(FLAT_KEYS) == resolve({})
    known = {*dotted_keys.known()}
    assert {"train.lr", "model.bn", "method.name", "adapt.name", "rounds", "dataset.window", "server.lr"} <= known
    assert not {"train", "method", "adapt", "dataset"} & known
    keys = {key for key in known if "." not in key} - {"plugins"}  # those are in an experiment's file
    assert "checkpoint_seconds" in keys and keys <= {*FLAT_KEYS, *WITHOUT_DOT}
    flat, _ = parse_arguments(["handwritten", "checkpoint_seconds=7"])
    assert resolve(flat).checkpoint_seconds == 7


def test_layers_of_a_method_lie_one_over_the_other(tmp_path: Path) -> None:
    # conf/methods/i2pfl.yaml: tau 0.07, alpha 0.4, lambda1 10
    path = written(tmp_path, method={"name": "i2pfl", "tau": 0.5}, seed=5)
    config = resolve({"experiment": path})
    assert config.method["tau"] == 0.5  # method: of the experiment
    assert config.method["alpha"] == 0.2  # methods: i2pfl: of the experiment
    assert config.method["lambda1"] == 10.0  # the method's file
    assert (config.experiment, config.rounds, config.seed) == ("mine", 7, 5)
    other = resolve({"experiment": path, "rounds": 3, "seed": 0, "method": "fedavg", "data-dir": str(tmp_path)})
    assert other.method == {"name": "fedavg"}  # without the parameters of the other
    assert (other.rounds, other.seed, other.dataset.data_dir) == (3, 0, str(tmp_path.resolve()))
    over = "rounds=4 seed=2 method.tau=0.9 train.lr=1 images.crop_padding=0 model.name=cnn_bn model.bn=freeze"
    last = resolve({"experiment": path, "rounds": 3, "seed": 1, "method": "i2pfl", "set": over})
    assert (last.rounds, last.seed, last.method["tau"], last.train.lr) == (4, 2, 0.9, 1.0)
    assert (last.images.crop_padding, last.model.bn) == (0, "freeze")


def test_a_method_asks_for_settings_below_the_experiments_own(tmp_path: Path) -> None:
    # conf/methods/fedicon.yaml: images.views 2, grayscale 0.2
    requested = resolve({"experiment": written(tmp_path, rounds=20), "method": "fedicon"}).images
    assert (requested.views, requested.grayscale) == (2, 0.2)
    assert requested.crop_padding == resolve({"experiment": written(tmp_path, rounds=20)}).images.crop_padding
    own = written(tmp_path, rounds=20, images={"grayscale": 0.5})
    assert resolve({"experiment": own, "method": "fedicon"}).images.grayscale == 0.5
    assert resolve({"experiment": own}).images.views == 1  # of another method it is not asked
    assert resolve({"experiment": own, "method": "fedicon", "set": "images.grayscale=0"}).images.grayscale == 0


def test_an_experiment_may_set_anything_for_one_method(tmp_path: Path) -> None:
    special = {"rounds": 33, "train": {"momentum": 0.0}, "images": {"flip": True}, "lambda2": 0.5}
    path = written(tmp_path, methods={"i2pfl": special}, images={"flip": False})
    plain, changed = resolve({"experiment": path, "method": "fedavg"}), resolve({"experiment": path, "method": "i2pfl"})
    assert (changed.rounds, changed.train.momentum, changed.images.flip) == (33, 0.0, True)
    assert changed.method["lambda2"] == 0.5
    assert changed.train.lr == plain.train.lr
    path = written(tmp_path, images={"flip": False})
    assert plain.model_dump(exclude={"experiment"}) == resolve({"experiment": path}).model_dump(exclude={"experiment"})


def test_model_per_node_has_two_spellings(tmp_path: Path) -> None:
    path = written(tmp_path, **{"model-per-node": ["cnn3", "cnn2"]}, model={"name": "cnn3"})
    assert resolve({"experiment": path, "method": "fedseproto"}).model.per_node == ("cnn3", "cnn2")
    for key in ("model-per-node", "model.per_node"):
        text = f"model.name=cnn3 '{key}=[cnn2,cnn3]'"
        assert resolve({"method": "fedseproto", "set": text}).model.per_node == ("cnn2", "cnn3")


@pytest.mark.parametrize("flat", [{"dataset": "digits"}, {"set": "dataset.name=digits"}])
def test_another_data_set_brings_its_own_defaults_in_place_of_those_of_the_other(
    flat: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path, dataset={"name": "handwritten", "domains": ["scan"]}, images={"crop_padding": 9})
    config = resolve({"experiment": path} | flat)
    assert config.dataset.name == "digits"
    assert config.dataset.domains == tuple(yaml.safe_load((CONF / "datasets/digits.yaml").read_text())["domains"])
    assert config.images.mean == (0.485, 0.456, 0.406)  # not the 0.5 of handwritten
    assert config.images.crop_padding != 9


def test_relative_paths_mean_the_folder_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of a simulation work in another folder, and resolve the same keys there."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    path = written(here)
    monkeypatch.chdir(here)
    flat, _ = parse_arguments(["digits-small", "data-dir=images"])
    assert resolve({"experiment": "mine.yaml"}) == resolve({"experiment": path})
    monkeypatch.chdir(there)
    assert resolve(flat).dataset.data_dir == str((here / "images").resolve())


@pytest.mark.parametrize(("typed", "on"), [([], True), (["profile=false"], False), (["profile=true"], True)])
def test_profile_can_be_switched_off(typed: list[str], on: bool, tmp_path: Path) -> None:
    flat, _ = parse_arguments([written(tmp_path, profile=True), *typed])
    assert resolve(flat).profile is on
    assert resolve({"experiment": written(tmp_path, profile=True), "profile": False}).profile  # Flower's own default


# --- dotted overrides -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", {}),
        ("train.lr=.5 rounds=3", {"train.lr": 0.5, "rounds": 3}),
        ("a.b=true a.c=false a.d=yes", {"a.b": True, "a.c": False, "a.d": True}),
        ("'a={scan: 2, sketch: 1}'", {"a": {"scan": 2, "sketch": 1}}),
        ("a='two words'", {"a": "two words"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": None}),
        ("dataset.data-dir=/x-y", {"dataset.data_dir": "/x-y"}),
        (
            "dataset.domains=[010,1_1,2024-01-01,12:30,0x10,1e3,on,no,.5]",
            {"dataset.domains": ["010", "1_1", "2024-01-01", "12:30", "0x10", "1e3", "on", "no", ".5"]},
        ),
        ("dataset.public=0.1 allocation.share=1", {"dataset.public": 0.1, "allocation.share": 1}),
        ("'allocation.counts={010: 2, no: 1}'", {"allocation.counts": {"010": 2, "no": 1}}),
        ("allocation.counts.north-east=2", {"allocation.counts.north-east": 2}),
        ("train.class-weights.a.b-c.d.e.f=2", {"train.class_weights.a.b-c.d.e.f": 2}),
        ("a=1 a=2", {"a": 2}),
    ],
)
def test_parse_set(text: str, parsed: dict[str, Any]) -> None:
    assert parse_set(text) == parsed
    # 1 == True and 1 == 1.0 in Python.
    assert [type(value) for value in parse_set(text).values()] == [type(value) for value in parsed.values()]


# --- a configuration that travels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flat",
    [
        {"experiment": "digits-small", "data-dir": "/data", "set": "dataset.download=true model.bn=local"},
        {
            "set": "'allocation.counts={scan: 2, sketch: 1}' 'allocation.share={scan: 0.5, sketch: 1}' "
            "allocation.held_out=[street]"
        },
        {"method": "fedicon", "set": "images.grayscale=0 method.tta_lr=0.5"},
        {"method": "f2dc-code", "set": "modules.name=f2dc modules.tau=0.5 method.sigma=5"},
        {"method": "fedavg-ft", "set": "method.ft_epochs=2"},
        {"method": "fedbn", "set": "method.weighting=samples"},
    ],
)
def test_the_config_of_a_run_folder_repeats_the_run(flat: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(flat)
    folder = RunFolder(tmp_path, config, engine="inline", personal=False)
    again = resolve({"experiment": str(folder.path / CONFIG_FILE)})
    assert again == config
    assert again.model_dump_json() == config.model_dump_json()


def test_the_config_of_a_run_folder_takes_overrides(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, resolve({"method": "i2pfl", "set": "method.tau=0.5"}), engine="inline", personal=False)
    path = str(folder.path / CONFIG_FILE)
    config = resolve({"experiment": path, "method": "i2pfl", "rounds": 3, "set": "method.alpha=0.1"})
    assert (config.rounds, config.method["alpha"], config.method["tau"]) == (3, 0.1, 0.5)


overrides = st.fixed_dictionaries(
    {},
    optional={
        "train.lr": st.floats(0, exclude_min=True, allow_infinity=False),
        "train.epochs": st.integers(1, 10**6),
        "seed": st.integers(0, 2**63 - 1),
        "model.bn": st.sampled_from(["average", "local", "freeze"]),
        "images.flip": st.booleans(),
        "federation.participation": st.floats(0, 1, exclude_min=True),
        "dataset.domains": st.lists(st.sampled_from(["scan", "texture", "street", "sketch"]), min_size=1, unique=True),
        "allocation.share": st.one_of(st.just("equal"), st.floats(0, 1, exclude_min=True)),
        "dataset.data_dir": st.sampled_from(["", "/a folder/ü"]),
        "method.tau": st.floats(0, exclude_min=True, allow_infinity=False),
        "method.intra_proto": st.sampled_from(["feature_mixup", "input_mixup", "none_mixup"]),
    },
)


@settings(max_examples=60)
@given(values=overrides)
def test_set_puts_every_value_where_it_belongs_and_json_carries_it(values: dict[str, Any]) -> None:
    typed = " ".join(f"'{key}={json.dumps(value)}'" for key, value in values.items())  # JSON is YAML
    config = resolve({"method": "i2pfl", "set": f"model.name=cnn_bn {typed}"})
    dumped = config.model_dump(mode="json")
    for key, value in values.items():
        assert functools.reduce(lambda inner, part: inner[part], key.split("."), dumped) == value
    assert from_json(config.model_dump_json()) == config


def test_from_json_checks_what_it_reads() -> None:
    content = resolve({}).model_dump(mode="json")
    for wrong, key in (({"train": content["train"] | {"lr": -1}}, "train.lr"), ({"strange": 1}, "strange")):
        with refused(ConfigError, key):
            from_json(json.dumps(content | wrong))
