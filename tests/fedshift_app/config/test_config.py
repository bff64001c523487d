"""The configuration: layers one over the other; errors name the key, the value and what is allowed."""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refusal_of

from fedshift_app.config import dotted_keys, registry, resolving
from fedshift_app.config.arguments import WITHOUT_DOT, parse_arguments
from fedshift_app.config.files import CONF, names
from fedshift_app.config.layers import parse_set
from fedshift_app.config.resolving import FLAT_KEYS, resolve
from fedshift_app.config.sections import RunConfig
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
    """Write the small experiment with changes (None takes a key away); return its path."""
    content = {key: value for key, value in (EXPERIMENT | changes).items() if value is not None}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def with_text(folder: Path, key: str, text: str) -> str:
    """Write the small experiment with ``text`` in place of one key; return its path."""
    rest = yaml.safe_dump({name: value for name, value in EXPERIMENT.items() if name != key})
    path = folder / "mine.yaml"
    path.write_text(f"{rest}{text}\n")
    return str(path)


def refusal(flat: dict[str, Any]) -> str:
    """Return the message with which a configuration is refused: two lines at most."""
    return refusal_of(ConfigError, resolve, flat)


# --- what is in conf/ -------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", names("experiments"))
def test_every_experiment_resolves_with_every_method(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = functools.cache(read_yaml)  # 38 times the same file
    monkeypatch.setattr(resolving, "read_yaml", lambda path: copy.deepcopy(once(path)))
    monkeypatch.setattr(weights, "digest", functools.cache(weights.digest))  # of 18 MB
    for method in registry.METHODS:
        own = registry.get(method)
        if experiment.endswith("-heterogeneous") and not own.client_class().heterogeneous:
            assert "so all nodes need the same network" in refusal({"experiment": experiment, "method": method})
            continue
        frozen = "-pretrained" in experiment and experiment != "pacs-pretrained-stages"
        if frozen and own.needs.get("network") == "batchnorm":  # none trains
            assert "model." in refusal({"experiment": experiment, "method": method})
            continue
        if "model.freeze=encoder" in own.short and "-pretrained" not in experiment:
            assert "model.freeze=encoder" in refusal({"experiment": experiment, "method": method})
            continue
        config = resolve({"experiment": experiment, "method": method})
        assert config.experiment == experiment
        assert config.method["name"] == method
        config.params()


def test_methods_and_their_files_are_the_same_list() -> None:
    assert names("methods") == sorted(registry.METHODS)


def test_every_dataset_has_a_file() -> None:
    assert names("datasets") == sorted(catalog.DATASETS)


def test_a_method_file_holds_only_parameters_of_its_method() -> None:
    for method in map(registry.get, registry.METHODS):
        content = {key: value for key, value in method.defaults.items() if key not in METHOD_SECTIONS}
        assert method.checked_params(content).model_fields_set == set(content), method.name


def test_a_method_file_repeats_no_default() -> None:
    """The model of the parameters is the one place of defaults; the file says in a comment where they are from."""
    for method in map(registry.get, registry.METHODS):
        defaults = {key: field.default for key, field in method.params_class().model_fields.items()}
        repeated = [key for key, value in method.defaults.items() if key in defaults and defaults[key] == value]
        assert repeated == [], method.name


def test_every_experiment_has_a_title() -> None:
    assert [
        name for name in names("experiments") if not read_yaml(CONF / "experiments" / f"{name}.yaml")["title"]
    ] == []


# --- defaults and layers ----------------------------------------------------------------------------------


def test_defaults() -> None:
    config = resolve({})
    assert config.experiment == "handwritten"
    assert config.dataset.name == "handwritten"
    assert config.dataset.domains == ("scan", "texture", "street", "sketch")
    assert (config.dataset.data_dir, config.dataset.download) == ("", False)
    assert config.method == {"name": "fedavg"}
    assert (config.model.name, config.model.bn) == ("cnn", "average")
    assert (config.allocation.counts, config.allocation.share) == ("any", "equal")
    assert config.federation.participation == 1.0
    assert (config.rounds, config.seed) == (20, 0)


def test_keys_as_flower_passes_them_mean_as_the_experiment_says() -> None:
    assert resolve(FLAT_KEYS) == resolve({})


def test_flat_keys_are_those_of_the_app() -> None:
    import tomllib

    app = tomllib.loads((CONF.parent / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == FLAT_KEYS


def test_every_key_without_a_dot_is_a_key_of_the_command() -> None:
    keys = {key for key in dotted_keys.known() if "." not in key} - {"plugins"}  # those are in an experiment's file
    assert "checkpoint_seconds" in keys
    assert keys <= {*FLAT_KEYS, *WITHOUT_DOT}
    flat, _ = parse_arguments(["handwritten", "checkpoint_seconds=7"])
    assert resolve(flat).checkpoint_seconds == 7
    assert "'checkpoint_secs'; there are" in (
        message := refusal_of(ConfigError, parse_arguments, ["checkpoint_secs=7"])
    )
    assert "checkpoint_seconds" in message


def test_i2pfl_brings_the_values_of_its_paper() -> None:
    method = resolve({"method": "i2pfl"}).method
    printed = {"tau": 0.07, "alpha": 0.4, "lambda1": 10.0, "lambda2": 1.0, "ema": 0.99}
    assert printed.items() <= method.items()
    assert method["name"] == "i2pfl"
    assert all(method[switch] for switch in ("use_gpcl", "use_apa", "use_ema"))
    # Defaults that no file names are written out too.
    assert method["gamma_per"] == "sample"


def test_experiment_overrides_the_method_file(tmp_path: Path) -> None:
    # conf/methods/i2pfl.yaml: tau 0.07, alpha 0.4, lambda1 10
    own = written(tmp_path, method={"name": "i2pfl", "tau": 0.5})
    method = resolve({"experiment": own}).method
    assert method["tau"] == 0.5  # method: of the experiment
    assert method["alpha"] == 0.2  # methods: i2pfl: of the experiment
    assert method["lambda1"] == 10.0  # the method's file


def test_a_method_asks_for_settings_below_the_experiments_own(tmp_path: Path) -> None:
    # conf/methods/fedicon.yaml: images.views 2, grayscale 0.2
    requested = resolve({"experiment": written(tmp_path, rounds=20), "method": "fedicon"}).images
    assert (requested.views, requested.grayscale) == (2, 0.2)
    assert requested.crop_padding == resolve({"experiment": written(tmp_path, rounds=20)}).images.crop_padding
    own = written(tmp_path, rounds=20, images={"grayscale": 0.5})
    assert resolve({"experiment": own, "method": "fedicon"}).images.grayscale == 0.5
    assert resolve({"experiment": own}).images.views == 1  # of another method it is not asked
    assert resolve({"experiment": own, "method": "fedicon", "set": "images.grayscale=0"}).images.grayscale == 0


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("rounds: 3\nmodel: {name: cnn}\nrounds: 4\n")
    message = refusal({"experiment": str(path)})
    assert "twice.yaml" in message
    assert "'rounds' comes twice, again in line 3" in message


def test_an_experiment_may_set_anything_for_one_method(tmp_path: Path) -> None:
    special = {"rounds": 33, "train": {"momentum": 0.0}, "images": {"flip": True}, "lambda2": 0.5}
    path = written(tmp_path, methods={"i2pfl": special}, images={"flip": False})
    plain, changed = resolve({"experiment": path, "method": "fedavg"}), resolve({"experiment": path, "method": "i2pfl"})
    assert (changed.rounds, changed.train.momentum, changed.images.flip) == (33, 0.0, True)
    assert changed.method["lambda2"] == 0.5
    assert changed.train.lr == plain.train.lr
    assert (plain.rounds, plain.train.momentum, plain.images.flip) != (33, 0.0, True)
    assert resolve({"experiment": path, "method": "i2pfl", "rounds": 7}).rounds == 7


def test_a_resolved_configuration_means_itself(tmp_path: Path) -> None:
    for method, more in (("fedicon", "images.grayscale=0"), ("fedavg", "modules.name=f2dc modules.tau=0.5")):
        config = resolve({"method": method, "set": more})
        path = tmp_path / f"{method}.yaml"
        path.write_text(yaml.safe_dump({"resolved": config.model_dump(mode="json")}))
        assert resolve({"experiment": str(path)}) == config


# --- modules and networks per node --------------------------------------------------------------------------


def test_modules_bring_their_defaults_and_are_written_out() -> None:
    assert resolve({}).modules == ()
    (modules,) = resolve({"set": "modules.name=f2dc modules.tau=0.1"}).modules
    assert (modules["name"], modules["tau"], modules["lambda1"], modules["noise"]) == (
        "f2dc", 0.1, 0.8, "logistic_pair",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("modules.name=x", ["modules: ", "'x'", "f2dc"]),
        ("modules.tau=1", ["modules.tau", "none"]),
        ("modules.name=f2dc modules.x=1", ["modules.f2dc.x", "tau"]),
        ("modules.name=f2dc modules.tau=0", ["modules.f2dc.tau", "greater than 0", "0"]),
    ],
)
def test_modules_that_make_no_sense(text: str, reason: list[str]) -> None:
    message = refusal({"set": text})
    assert all(part in message for part in reason), message


def test_model_per_node_has_two_spellings(tmp_path: Path) -> None:
    path = written(tmp_path, **{"model-per-node": ["cnn3", "cnn2"]}, model={"name": "cnn3"})
    assert resolve({"experiment": path, "method": "fedseproto"}).model.per_node == ("cnn3", "cnn2")
    for key in ("model-per-node", "model.per_node"):
        text = f"model.name=cnn3 '{key}=[cnn2,cnn3]'"
        assert resolve({"method": "fedseproto", "set": text}).model.per_node == ("cnn2", "cnn3")


@pytest.mark.parametrize(
    ("flat", "reason"),
    [
        ({"set": "model.per_node=[cnn]"}, ["model.per_node", "'fedavg': it averages weights", "fedseproto"]),
        ({"method": "fedseproto", "set": "model.per_node=[big]"}, ["model.per_node", "cnn2", "'big'"]),
        (
            {"method": "fedseproto", "set": "dataset.size=64 model.name=resnet10 model.per_node=[cnn3]"},
            ["cnn3", "dataset.size=32", "64"],
        ),
    ],
)
def test_networks_that_cannot_be(flat: dict[str, Any], reason: list[str]) -> None:
    message = refusal(flat)
    assert all(part in message for part in reason), message


@pytest.mark.parametrize(
    "key",
    [
        "rounds", "train.lr", "federation.min_nodes", "privacy.clipping_norm", "method.mu", "evaluate.every",
        "images.views", "server.lr",
    ],
)  # fmt: skip
def test_true_and_yes_are_no_numbers(key: str) -> None:
    assert f"{key}: expected a" in refusal({"method": "fedprox", "set": f"{key}=yes"})


@pytest.mark.parametrize(
    ("flat", "reason"),
    [
        ({"method": "fedicon", "rounds": 5}, ["rounds=5", "classifier_rounds=5"]),
        ({"method": "fedicon", "set": "images.views=1"}, ["images.views=1", "lie=true"]),
        ({"method": "fedseproto", "set": "train.epochs=1"}, ["phase1_epochs=1", "train.epochs=1", "joint"]),
    ],
)
def test_what_a_method_cannot_run_with(flat: dict[str, Any], reason: list[str]) -> None:
    message = refusal(flat)
    assert all(part in message for part in reason), message


def test_methods_section_counts_for_a_chosen_method_alone(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert resolve({"experiment": path}).method == {"name": "fedavg"}
    assert resolve({"experiment": path, "method": "i2pfl"}).method["tau"] == 0.3


def test_choosing_a_method_drops_the_parameters_of_the_other(tmp_path: Path) -> None:
    path = written(tmp_path, method={"name": "i2pfl", "tau": 0.5})
    assert resolve({"experiment": path, "method": "fedavg"}).method == {"name": "fedavg"}


def test_flat_keys_override_the_experiment(tmp_path: Path) -> None:
    config = resolve({
        "experiment": written(tmp_path, seed=5), "rounds": 3, "seed": 0, "method": "i2pfl", "data-dir": str(tmp_path)
    })  # fmt: skip
    assert (config.rounds, config.seed, config.method["name"]) == (3, 0, "i2pfl")
    assert config.dataset.data_dir == str(tmp_path.resolve())
    assert config.experiment == "mine"


def test_set_overrides_everything(tmp_path: Path) -> None:
    config = resolve({
        "experiment": written(tmp_path), "rounds": 3, "seed": 1, "method": "i2pfl",
        "set": "rounds=4 seed=2 method.tau=0.9 train.lr=1 images.crop_padding=0 model.name=cnn_bn model.bn=freeze",
    })  # fmt: skip
    assert (config.rounds, config.seed, config.method["tau"], config.train.lr) == (4, 2, 0.9, 1.0)
    assert (config.images.crop_padding, config.model.bn) == (0, "freeze")


@pytest.mark.parametrize("flat", [{"dataset": "digits"}, {"set": "dataset.name=digits"}])
def test_switching_the_data_set_brings_its_own_defaults(flat: dict[str, Any]) -> None:
    config = resolve(flat)
    assert config.dataset.name == "digits"
    assert config.dataset.domains == tuple(yaml.safe_load((CONF / "datasets/digits.yaml").read_text())["domains"])
    assert config.images.mean == (0.485, 0.456, 0.406)  # not the 0.5 of handwritten


def test_switching_the_data_set_drops_what_the_experiment_said_of_the_other(tmp_path: Path) -> None:
    path = written(tmp_path, dataset={"name": "handwritten", "domains": ["scan"]}, images={"crop_padding": 9})
    config = resolve({"experiment": path, "dataset": "digits"})
    assert "scan" not in config.dataset.domains
    assert config.images.crop_padding != 9


def test_a_relative_data_dir_means_the_folder_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of a simulation work in another folder, and resolve the same keys there."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    flat, _ = parse_arguments(["digits-small", "data-dir=images"])
    monkeypatch.chdir(there)
    assert resolve(flat).dataset.data_dir == str((here / "images").resolve())


def test_a_relative_data_dir_elsewhere_is_refused() -> None:
    message = refusal({"experiment": "digits-small", "set": "dataset.data_dir=images"})
    assert "dataset.data_dir: 'images' is not an absolute path" in message


# --- dotted overrides -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", {}),
        ("train.lr=1e-3", {"train.lr": 0.001}),
        ("train.lr=.5 rounds=3", {"train.lr": 0.5, "rounds": 3}),
        ("a.b=true a.c=false a.d=yes", {"a.b": True, "a.c": False, "a.d": True}),
        ("a=[scan,sketch]", {"a": ["scan", "sketch"]}),
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


@pytest.mark.parametrize("text", ["train.lr", "=5", "a=1 b", "'a=1", 'a="[1'])
def test_set_malformed(text: str) -> None:
    message = refusal({"set": text})
    assert message.startswith("set: ")
    assert text.split()[-1] in message


@pytest.mark.parametrize("text", ["train.lr={", "train.lr=[1"])
def test_set_value_is_no_yaml(text: str) -> None:
    message = refusal({"set": text})
    key, value = text.split("=")
    assert key in message
    assert repr(value) in message


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flat", "reason"),
    [
        ({"experiment": "nope"}, ["experiment", "'nope'", "handwritten", "digits-small"]),
        ({"method": "nope"}, ["method", "'nope'", "fedavg", "i2pfl"]),
        ({"dataset": "nope"}, ["dataset", "'nope'", "handwritten", "digits"]),
        ({"set": "dataset.domains=[scan,moon]"}, ["dataset.domains", "'moon'", "scan, texture, street, sketch"]),
        ({"set": "dataset.domains=[scan,scan]"}, ["dataset.domains", "different", "scan, scan"]),
        ({"set": "dataset.domains=[]"}, ["dataset.domains", "none"]),
        ({"set": "allocation.held_out=[moon]"}, ["allocation.held_out", "'moon'", "scan"]),
        ({"set": "'allocation.counts={moon: 2}'"}, ["allocation.counts", "'moon'", "scan"]),
        ({"lr": 1}, ["'lr'", "experiment", "data-dir", "set"]),
        ({"resume": "runs/1"}, ["resume", "fedshift run", "flwr run"]),
        ({"set": "trian.lr=1"}, ["'trian.lr'", "dataset", "train", "federation"]),
        ({"set": "lr=1"}, ["'lr'", "train"]),
        ({"set": "train=5"}, ["'train' is a section", "train.epochs="]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_unknown_names_and_keys(flat: dict[str, Any], reason: list[str]) -> None:
    message = refusal(flat)
    for part in reason:
        assert part in message


@pytest.mark.parametrize(
    ("method", "key", "known"),
    [
        ("fedavg", "train.nope", "batch_size"), ("fedavg", "dataset.nope", "domains"), ("i2pfl", "method.nope", "tau"),
        ("fedavg", "method.nope", "none"),
    ],
)  # fmt: skip
def test_an_unknown_key_in_a_section(method: str, key: str, known: str) -> None:
    message = refusal({"method": method, "set": f"{key}=1"})
    assert f"unknown key {key}" in message and known in message


@pytest.mark.parametrize(
    ("key", "value", "found", "allowed"),
    [
        ("train.lr", "fast", "'fast'", "number"),
        ("train.epochs", "2.5", "2.5", "integer"),
        ("train.lr", "-1e-3", "-0.001", "greater than 0"),
        ("train.lr", "nan", "nan", "should be"),
        ("train.weight_decay", "inf", "inf", "finite"),
        ("train.momentum", "1", "1", "less than 1"),
        ("train.batch_size", "1", "1", "greater than or equal to 2"),
        ("train.schedule_steps", "3", "3", "expected a list such as [3],"),
        ("train.precision", "fp8", "'fp8'", "'bf16'"),
        ("rounds", "-1", "-1", "greater than or equal to 0"),
        ("images.flip", "maybe", "'maybe'", "boolean"),
        ("images.mean", "0.5", "0.5", "expected a list such as [0.5, 0.5, 0.5],"),
        ("images.mean", "[1,2,3,4]", "[1, 2, 3, 4]", "list should have at most 3 items"),
        ("dataset.domains", "true", "True", "expected a list such as [A],"),
        ("dataset.data_dir", "5", "5", "string"),
        ("dataset.window", "[240,-160]", "[240, -160]", "[low, high] with low below high"),
        ("model.name", "vgg", "'vgg'", "resnet10"),
        ("model.bn", "off", "False", "'freeze'"),
        ("federation.participation", "1.5", "1.5", "less than or equal to 1"),
        ("allocation.counts", "some", "'some'", "any"),
        ("allocation.counts", "'{scan: -1}'", "-1", "nodes per domain"),
        ("allocation.share", "2", "2", "at most 1"),
        ("method.tau", "0", "0", "greater than 0"),
        ("method.use_gpcl", "5", "5", "boolean"),
        ("method.inter_proto", "mean", "'mean'", "'reweight'"),
    ],
)
def test_a_wrong_value(key: str, value: str, found: str, allowed: str) -> None:
    message = refusal({"method": "i2pfl", "set": f"{key}={value}"})
    assert all(part in message for part in (key, found, allowed)), message


@pytest.mark.parametrize("key", ["rounds", "seed"])
def test_flat_number_out_of_range_or_no_number(key: str) -> None:
    for value in (-7, "x"):
        message = refusal({key: value})
        assert message.startswith(f"{key}: ")
        assert repr(value) in message


def test_clusters_and_ema_do_not_go_together() -> None:
    message = refusal({"method": "i2pfl", "set": "method.inter_proto=finch"})
    assert "method" in message
    assert "inter_proto=finch" in message
    assert "use_ema=false" in message
    assert resolve({"method": "i2pfl", "set": "method.inter_proto=finch method.use_ema=false"})


def test_more_of_a_domain_than_there_is() -> None:
    message = refusal({"set": "'allocation.counts={scan: 3}' allocation.share=0.5"})
    for part in ("allocation", "'scan'", "150 %", "100 %"):
        assert part in message


@pytest.mark.parametrize("std", ["[0,0,0]", "[0.2,0,0.2]", "[-1,1,1]"])
def test_pixels_are_divided_by_something_above_zero(std: str) -> None:
    assert "std" in refusal({"set": f"images.std={std}"})


# --- files of one's own -----------------------------------------------------------------------------------


def test_experiment_by_path_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert resolve({"experiment": "mine.yaml"}) == resolve({"experiment": path})
    assert resolve({"experiment": path}).experiment == "mine"
    assert resolve({"experiment": path}).rounds == 7


@pytest.mark.parametrize("name", ["nope.yaml", "folder.yaml", "nowhere/x.yml"])
def test_experiment_path_missing(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    message = refusal({"experiment": str(tmp_path / name)})
    assert "experiment" in message
    assert str(tmp_path / name) in message


@pytest.mark.parametrize("content", [b"a: [1", b"\ta: 1", b"- 1\n- 2", b"", b"\xff\xfe\x00", b"a: b: c"])
def test_broken_yaml(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    message = refusal({"experiment": str(path)})
    assert str(path) in message or not content
    assert not content or "YAML" in message or "mapping" in message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": None}, ["model is missing"]),
        ({"rounds": None}, ["rounds is missing"]),
        ({"train": {"epochs": 1, "batch_size": 8}}, ["train.lr is missing"]),
        ({"adapt": 3}, ["adapt: expected a mapping of keys to values, found 3"]),
        ({"statistics": [1]}, ["statistics: expected a mapping of keys to values, found [1]"]),
        ({"bogus": 1}, ["bogus", "rounds", "federation"]),
        ({"train": EXPERIMENT["train"] | {"bogus": 1}}, ["train.bogus", "batch_size"]),
        ({"method": {"name": "nope"}}, ["'nope'", "fedavg"]),
        ({"method": {"name": "fedavg", "tau": 1}}, ["method.tau", "'fedavg'"]),
        ({"method": {"nope": 1}}, ["method: lacks the key name, found only nope"]),
        ({"methods": {"i2plf": {"tau": 0.1}}}, ["'i2plf'", "did you mean i2pfl"]),
        ({"train": {}}, ["train"]),
    ],
)
def test_mistakes_in_an_experiment_file(changes: dict[str, Any], reason: list[str], tmp_path: Path) -> None:
    message = refusal({"experiment": written(tmp_path, **changes)})
    for part in reason:
        assert part in message


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("method", "method: i2pfl"), ("dataset", "dataset: [scan]"), ("images", "images: 5"), ("methods", "methods: 5"),
        ("methods", "methods: {fedavg: 5}"), ("resolved", "resolved: 5"), ("resolved", "resolved: {method: i2pfl}"),
    ],
)  # fmt: skip
def test_a_section_that_is_no_mapping(key: str, text: str, tmp_path: Path) -> None:
    message = refusal({"experiment": with_text(tmp_path, key, text)})
    assert any(part in message for part in (key, "method", "dataset", "fedavg: expected a mapping"))


# --- a configuration that travels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flat",
    [
        {},
        {"method": "i2pfl", "seed": 3, "rounds": 2, "set": "method.tau=0.5 train.lr=1e-3"},
        {"experiment": "digits-small", "data-dir": "/data", "set": "dataset.download=true model.bn=local"},
        {
            "set": "'allocation.counts={scan: 2, sketch: 1}' 'allocation.share={scan: 0.5, sketch: 1}' "
            "allocation.held_out=[street]"
        },
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
    config = resolve({"experiment": path, "rounds": 3, "set": "method.alpha=0.1"})
    assert (config.rounds, config.method["alpha"], config.method["tau"]) == (3, 0.1, 0.5)
    assert resolve({"experiment": path, "method": "i2pfl"}).method["tau"] == 0.5


@pytest.mark.parametrize("given", [{"method": "fedavg"}, {"set": "method.name=fedavg"}])
def test_the_config_of_a_run_folder_is_refused_for_another_method(given: dict[str, Any], tmp_path: Path) -> None:
    """It holds what the run's method sets in other sections, such as FedBN's BatchNorm and network."""
    folder = RunFolder(tmp_path, resolve({"method": "fedbn"}), engine="inline", personal=False)
    message = refusal({"experiment": str(folder.path / CONFIG_FILE)} | given)
    assert message.startswith("method=fedavg: the config.yaml of a run of 'fedbn' holds") and "handwritten" in message


overrides = st.fixed_dictionaries(
    {},
    optional={
        "train.lr": st.floats(0, exclude_min=True, allow_infinity=False),
        "train.weight_decay": st.floats(0, allow_infinity=False),
        "train.epochs": st.integers(1, 10**6),
        "seed": st.integers(0, 2**63 - 1),
        "rounds": st.integers(1, 10**6),
        "model.name": st.sampled_from(["cnn_bn", "resnet10", "resnet18"]),
        "model.bn": st.sampled_from(["average", "local", "freeze"]),
        "images.flip": st.booleans(),
        "federation.participation": st.floats(0, 1, exclude_min=True),
        "dataset.domains": st.lists(st.sampled_from(["scan", "texture", "street", "sketch"]), min_size=1, unique=True),
        "allocation.share": st.one_of(st.just("equal"), st.floats(0, 1, exclude_min=True)),
        "dataset.data_dir": st.sampled_from(["", "/a folder/ü"]),
        "method.tau": st.floats(0, exclude_min=True, allow_infinity=False),
        "method.use_apa": st.booleans(),
        "method.intra_proto": st.sampled_from(["feature_mixup", "input_mixup", "none_mixup"]),
    },
)


def as_set(values: dict[str, Any]) -> str:
    """Write overrides as a person would, JSON being YAML."""
    return " ".join(f"'{key}={json.dumps(value)}'" for key, value in values.items())


@settings(max_examples=60)
@given(values=overrides)
def test_json_carries_the_configuration_unchanged(values: dict[str, Any]) -> None:
    config = resolve({"method": "i2pfl", "set": f"model.name=cnn_bn {as_set(values)}"})
    assert from_json(config.model_dump_json()) == config


@settings(max_examples=60)
@given(values=overrides)
def test_set_puts_every_value_where_it_belongs(values: dict[str, Any]) -> None:
    dumped = resolve({"method": "i2pfl", "set": f"model.name=cnn_bn {as_set(values)}"}).model_dump(mode="json")
    for key, value in values.items():
        result = dumped
        for part in key.split("."):
            result = result[part]
        assert result == value


def test_from_json_checks_what_it_reads() -> None:
    content = json.loads(resolve({}).model_dump_json())
    with pytest.raises(ConfigError, match=r"train\.lr"):
        from_json(json.dumps(content | {"train": content["train"] | {"lr": -1}}))
    with pytest.raises(ConfigError, match="strange"):
        from_json(json.dumps(content | {"strange": 1}))


def test_a_resolved_configuration_does_not_change() -> None:
    config = resolve({})
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 3  # type: ignore[misc]
    assert isinstance(config, RunConfig)


@pytest.mark.parametrize(("typed", "on"), [([], True), (["profile=false"], False), (["profile=true"], True)])
def test_profile_can_be_switched_off(typed: list[str], on: bool, tmp_path: Path) -> None:
    flat, _ = parse_arguments([written(tmp_path, profile=True), *typed])
    assert resolve(flat).profile is on
    assert resolve({"experiment": written(tmp_path, profile=True), "profile": False}).profile  # Flower's own default


def test_titles_state_the_shares_of_their_nodes() -> None:
    stated = {}
    for name in names("experiments"):
        content = read_yaml(CONF / "experiments" / f"{name}.yaml")
        if match := re.search(r"(\d+)-(\d+) % of a domain each", content["title"]):
            shares = content["allocation"]["share"].values()
            stated[name] = (match.groups(), (f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"))
    assert "digits-small-shift" in stated
    assert {name for name, (title, shares) in stated.items() if title != shares} == set()
