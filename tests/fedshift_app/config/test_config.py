"""The configuration: layers one over the other, dotted keys, and what travels to nodes and into run folders."""

import copy
import functools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from support import on_images, refusal_of
from words import config as config_of

from fedshift_app.config import dotted_keys, needs, registry, resolving
from fedshift_app.config.arguments import WITHOUT_DOT, parse_arguments
from fedshift_app.config.files import CONF, names
from fedshift_app.config.layers import parse_set
from fedshift_app.config.resolving import FLAT_KEYS, resolve
from fedshift_app.config.validating import METHOD_SECTIONS, from_json
from fedshift_app.run.files import CONFIG_FILE
from fedshift_app.run.folder import RunFolder
from fedshift_clients.models import packages
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets import catalog

#: A small experiment as a person would write one.
EXPERIMENT: dict[str, Any] = yaml.safe_load("""
title: a test
dataset: {name: handwritten}
model: {name: cnn}
train: {epochs: 2, batch_size: 16, lr: 0.02}
allocation: {counts: any}
method: {name: fedavg}
methods: {i2pfl: {tau: 0.3, alpha: 0.2}}
rounds: 7
""")


def written(folder: Path, **changes: Any) -> str:
    """Write the small experiment with changes; return its path."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT | changes))
    return str(path)


# --- what is in conf/ -------------------------------------------------------------------------------------


def own_settings(experiment: str) -> dict[str, Any]:
    """Return what an experiment's file sets for single methods."""
    return dict(read_yaml(CONF / "experiments" / f"{experiment}.yaml").get("methods", {}))


def only_by_sgd(method: str) -> bool:
    """Tell whether a method refuses another optimiser."""
    try:
        resolve({"experiment": "handwritten", "method": method, "set": "train.optimizer=adam"})
    except ConfigError as error:
        return "train.optimizer=adam" in str(error)
    return False


@pytest.mark.parametrize("experiment", names("experiments"))
def test_every_experiment_resolves_with_every_method(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = functools.cache(read_yaml)  # 38 times the same file
    monkeypatch.setattr(resolving, "read_yaml", lambda path: copy.deepcopy(once(path)))
    monkeypatch.setattr(packages, "digest", functools.cache(packages.digest))  # of 18 MB
    frozen = "-pretrained" in experiment and experiment != "pacs-pretrained-stages"
    for method in on_images(registry.METHODS):
        own, flat = registry.get(method), {"experiment": experiment, "method": method}
        by_sgd = experiment == "handwritten-masks" and method not in own_settings(experiment) and only_by_sgd(method)
        problems = {
            "train.optimizer=adam": by_sgd,
            "so all nodes need the same network": "-heterog" in experiment and not own.client_class().heterogeneous,
            "model.": frozen and own.needs.get("network") == "batchnorm",  # none trains
            "task=segmentation": experiment == "handwritten-masks" and bool(needs.why_not("dense targets", own)),
            "model.freeze=encoder": "model.freeze=encoder" in own.short and "-pretrained" not in experiment,
        }
        if any(problems.values()):
            text = refusal_of(ConfigError, resolve, flat)
            assert any(problem in text for problem, there in problems.items() if there)
        else:
            config = resolve(flat)
            assert (config.experiment, config.method["name"]) == (experiment, method) and config.params()


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
    # method: of the experiment; methods: i2pfl: of the experiment; the method's file
    assert [config.method[key] for key in ("tau", "alpha", "lambda1")] == [0.5, 0.2, 10.0]
    assert (config.experiment, config.rounds, config.seed) == ("mine", 7, 5)
    other = config_of("rounds=3 seed=0 method=fedavg", experiment=path)
    assert other.method == {"name": "fedavg"}  # without the parameters of the other
    assert (other.rounds, other.seed) == (3, 0)
    over = "rounds=4 seed=2 method.tau=0.9 train.lr=1 images.crop_padding=0 model.name=cnn_bn model.bn=freeze"
    last = resolve({"experiment": path, "rounds": 3, "seed": 1, "method": "i2pfl", "set": over})
    assert (last.rounds, last.seed, last.method["tau"], last.train.lr) == (4, 2, 0.9, 1.0)
    assert (last.images.crop_padding, last.model.bn) == (0, "freeze")


def test_a_method_asks_for_settings_below_the_experiments_own(tmp_path: Path) -> None:
    # conf/methods/fedicon.yaml: images.views 2, grayscale 0.2
    def images(words: str, **changes: Any) -> Any:
        return config_of(words, experiment=written(tmp_path, rounds=20, **changes)).images

    asked, own = images("method=fedicon"), {"images": {"grayscale": 0.5}}
    assert (asked.views, asked.grayscale, asked.crop_padding) == (2, 0.2, images("").crop_padding)
    assert images("method=fedicon", **own).grayscale == 0.5
    assert images("", **own).views == 1  # of another method it is not asked
    assert images("method=fedicon images.grayscale=0", **own).grayscale == 0


def test_an_experiment_may_set_anything_for_one_method(tmp_path: Path) -> None:
    special = yaml.safe_load("{i2pfl: {rounds: 33, train: {momentum: 0.0}, images: {flip: true}, lambda2: 0.5}}")
    path = written(tmp_path, methods=special, images={"flip": False})
    plain, changed = (config_of(f"method={method}", experiment=path) for method in ("fedavg", "i2pfl"))
    assert (changed.rounds, changed.train.momentum, changed.images.flip) == (33, 0.0, True)
    assert (changed.method["lambda2"], changed.train.lr) == (0.5, plain.train.lr)
    assert plain == resolve({"experiment": written(tmp_path, images={"flip": False})})


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
    assert config_of("mine.yaml") == resolve({"experiment": path})
    monkeypatch.chdir(there)
    assert resolve(flat).dataset.data_dir == str((here / "images").resolve())


# --- dotted overrides -------------------------------------------------------------------------------------


#: What is typed, and the keys in JSON.
PARSED = {
    "": "{}",
    "train.lr=.5 rounds=3": '{"train.lr": 0.5, "rounds": 3}',
    "a.b=true a.c=false a.d=yes": '{"a.b": true, "a.c": false, "a.d": true}',
    "'a={scan: 2, sketch: 1}'": '{"a": {"scan": 2, "sketch": 1}}',
    "a='two words'": '{"a": "two words"}',
    "a=b=c": '{"a": "b=c"}',
    "a=": '{"a": null}',
    "dataset.data-dir=/x-y": '{"dataset.data_dir": "/x-y"}',
    "dataset.domains=[010,1_1,2024-01-01,12:30,0x10,1e3,on,no,.5]": (
        '{"dataset.domains": ["010", "1_1", "2024-01-01", "12:30", "0x10", "1e3", "on", "no", ".5"]}'
    ),
    "dataset.public=0.1 allocation.share=1": '{"dataset.public": 0.1, "allocation.share": 1}',
    "'allocation.counts={010: 2, no: 1}'": '{"allocation.counts": {"010": 2, "no": 1}}',
    "allocation.counts.north-east=2": '{"allocation.counts.north-east": 2}',
    "train.class-weights.a.b-c.d.e.f=2": '{"train.class_weights.a.b-c.d.e.f": 2}',
    "a=1 a=2": '{"a": 2}',
}


@pytest.mark.parametrize("text", PARSED)
def test_parse_set(text: str) -> None:
    assert json.dumps(parse_set(text)) == PARSED[text]  # 1 == True and 1 == 1.0 in Python, not in JSON


# --- a configuration that travels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed",
    [
        "digits-small dataset.data_dir=/data dataset.download=true model.bn=local",
        "'allocation.counts={scan: 2, sketch: 1}' 'allocation.share={scan: 0.5, sketch: 1}' "
        "allocation.held_out=[street]",
        "method=fedicon images.grayscale=0 method.tta_lr=0.5",
        "method=f2dc-code modules.name=f2dc modules.tau=0.5 method.sigma=5",
        "method=fedavg-ft method.ft_epochs=2",
        "method=fedbn method.weighting=samples",
    ],
)
def test_the_config_of_a_run_folder_repeats_the_run(typed: str, tmp_path: Path) -> None:
    config = config_of(typed)
    folder = RunFolder(tmp_path, config, engine="inline", personal=False)
    again = resolve({"experiment": str(folder.path / CONFIG_FILE)})
    assert again == config and again.model_dump_json() == config.model_dump_json()


POSITIVE, SHARE = st.floats(0, exclude_min=True, allow_infinity=False), st.floats(0, 1, exclude_min=True)
CHOICES: dict[str, list[Any]] = {
    "model.bn": ["average", "local", "freeze"],
    "images.flip": [True, False],
    "dataset.domains": [["scan"], ["texture", "scan", "sketch"]],
    "dataset.data_dir": ["", "/a folder/ü"],
    "method.intra_proto": ["feature_mixup", "input_mixup", "none_mixup"],
}
NUMBERS = {"train.lr": POSITIVE, "method.tau": POSITIVE, "federation.participation": SHARE}
NUMBERS |= {"train.epochs": st.integers(1, 10**6), "seed": st.integers(0, 2**63 - 1)}
NUMBERS |= {"allocation.share": st.just("equal") | SHARE}
overrides = st.fixed_dictionaries(
    {}, optional=NUMBERS | {key: st.sampled_from(values) for key, values in CHOICES.items()}
)


@settings(max_examples=60)
@given(values=overrides)
def test_set_puts_every_value_where_it_belongs_and_json_carries_it(values: dict[str, Any]) -> None:
    typed = " ".join(f"'{key}={json.dumps(value)}'" for key, value in values.items())  # JSON is YAML
    config = config_of(f"method=i2pfl model.name=cnn_bn {typed}")
    dumped = config.model_dump(mode="json")
    for key, value in values.items():
        assert functools.reduce(lambda inner, part: inner[part], key.split("."), dumped) == value
    assert from_json(config.model_dump_json()) == config


def test_from_json_checks_what_it_reads() -> None:
    content = resolve({}).model_dump(mode="json")
    for wrong, key in (({"train": content["train"] | {"lr": -1}}, "train.lr"), ({"strange": 1}, "strange")):
        with refused(ConfigError, key):
            from_json(json.dumps(content | wrong))


# --- the package of the network -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flat", "found"),
    [
        ({}, ()),
        ({"experiment": "pacs-pretrained"}, ("timm",)),
        ({"experiment": "pacs-pretrained", "set": "model.name=small-cnn"}, ()),
        ({"set": "model.name=torchvision:resnet18"}, ("torchvision",)),
        ({"experiment": "no-such"}, ()),
        ({"set": "model.name='"}, ()),
        ({"resume": "no-such-folder"}, ()),
    ],
)
def test_it_is_that_of_the_command_or_of_its_experiment(flat: dict[str, str], found: tuple[str, ...]) -> None:
    assert resolving.libraries(flat) == found


def test_what_cannot_be_read_is_refused_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: [")
    assert resolving.libraries({"resume": str(tmp_path)}) == ()
    (tmp_path / "config.yaml").write_text("resolved: 3\nmodel: {name: 7}")
    assert resolving.libraries({"resume": str(tmp_path)}) == ()
