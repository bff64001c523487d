"""Builds the configuration of a run from YAML files and the command line.

Layers, each over the one before: conf/datasets/NAME.yaml, the sections (``images:``, ``train:``, ...) of
conf/methods/NAME.yaml, conf/experiments/NAME.yaml, its ``methods: NAME:`` with sections of its own, the flat
run-config keys, then the dotted overrides of ``set``. A method's own parameters come from conf/methods/NAME.yaml,
then ``methods: NAME:``, then the experiment's ``method:``.
"""

import functools
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedshift_app.config import (
    dotted_keys,
    error_location,
    folder_classes,
    networks,
    options_of_a_kind,
    plugins,
    recipes,
    registry,
    run_name,
)
from fedshift_app.config.dataset_checks import check_dataset
from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.error_messages import explaining
from fedshift_app.config.files import CONF, names
from fedshift_app.config.layers import Layer, layer_of, nested, over, parse_set, section_of, split_key, with_typed
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.trackers import check_trackers
from fedshift_app.config.validating import check_values, recorded, sections_of_run, split_sections, validate
from fedshift_app.run.files import CONFIG_FILE
from fedshift_clients.models.catalog import NETWORKS, library_of
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.features import task_of
from fedshift_core.limits import as_found, shortened
from fedshift_core.paths import user_path
from fedshift_core.registry import Method
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets import catalog
from fedshift_datasets.base import Dataset

#: The flat keys of ``[tool.flwr.app.config]``, each with the value that means "as the experiment says".
FLAT_KEYS: dict[str, str | int | float | bool] = {
    "experiment": "",
    "method": "",
    "dataset": "",
    "rounds": -1,
    "seed": -1,
    "evaluate-every": 0,
    "evaluate-fraction": 0.0,
    "data-dir": "",
    "output-dir": "runs",
    "name": "",
    "resume": "",
    "round": 0,
    "allow-changed": False,
    "profile": False,
    "tracking": "",
    "set": "",
}

#: The keys of the configuration that flat keys stand for.
_DOTTED = {
    "method": "method.name",
    "dataset": "dataset.name",
    "rounds": "rounds",
    "seed": "seed",
    "profile": "profile",
    "tracking": "tracking",
    "evaluate-every": "evaluate.every",
    "evaluate-fraction": "evaluate.fraction",
    "data-dir": "dataset.data_dir",
}

DEFAULT_EXPERIMENT = "handwritten"
SUGGESTED = (DEFAULT_EXPERIMENT, "digits-small")  # where an unknown name is like no other


def experiment_file(experiment: str) -> Path:
    """Return the file of an experiment, given by its name or as a path to a YAML file.

    Raises:
        ConfigError: If there is no such file.
    """
    if experiment.endswith((".yaml", ".yml")):
        path = user_path(experiment, "experiment")
        if not path.is_file():
            raise ConfigError(f"experiment: there is no file {path}")
        return path
    if experiment not in names("experiments"):
        known = names("experiments")
        raise ConfigError(
            f"unknown experiment {as_found(experiment)}; `fedshift experiments` lists all, such as "
            f"{' and '.join(SUGGESTED)}; or give a path to a .yaml file{meant(experiment, known)}"
        )
    return CONF / "experiments" / f"{experiment}.yaml"


def resolve(flat: Mapping[str, Any], *, finished: bool = False) -> RunConfig:
    """Return the checked configuration of a run.

    Args:
        flat: The run-config keys (``FLAT_KEYS``); missing ones mean "as the experiment says".
        finished: It is only compared with that of finished runs (``cross_checks.check_together``).

    Raises:
        ConfigError: For anything unknown, of the wrong type, out of range or contradictory.
    """

    def checked(layers: dict[str, Any]) -> RunConfig:
        config = networks.with_digest(validate(layers, finished=finished))
        check_trackers(config.tracking)  # not in validate: nodes track nothing and need no tracker
        return config

    return _resolved(flat, checked, finished)


def settings(flat: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a command stands for, without its checks against classes, which need torch.

    Tables compare it with those of finished runs.

    Raises:
        ConfigError: As ``validating.recorded``.
    """
    return _resolved(flat, lambda layers: networks.with_digest(recorded(layers)), finished=True)


def check_keys(flat: Mapping[str, Any]) -> RunConfig:
    """Refuse unknown keys and values out of range before torch is imported, which takes seconds.

    Args:
        flat: As :func:`resolve`, which finds what is left, such as a method that does not fit another option.

    Returns:
        The sections, without what :func:`resolve` fills in for method, modules and ``adapt``.

    Raises:
        ConfigError: With the key, the value found and what is allowed.
    """
    return _resolved(flat, check_values, finished=True)


def libraries(flat: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the packages of the network that a command or its experiment names, such as timm; none for one of ours.

    They are for processes that start while the keys are checked: whatever is wrong here is refused there.

    Args:
        flat: As :func:`resolve`; with ``resume`` the run's own network counts.
    """
    keys = FLAT_KEYS | dict(flat)
    try:
        past = str(Path(str(keys["resume"])) / CONFIG_FILE) if keys["resume"] else ""
        content = read_yaml(experiment_file(past or str(keys["experiment"]) or DEFAULT_EXPERIMENT))
        model = section_of(section_of(content, "resolved") or content, "model")
        name = parse_set(str(keys["set"])).get("model.name") or model.get("name")
    except ConfigError:
        return ()
    return tuple(filter(None, (library_of(str(name)),)))


def _resolved(flat: Mapping[str, Any], check: Callable[[dict[str, Any]], RunConfig], finished: bool) -> RunConfig:
    """Return what ``check`` makes of all sections of a run; its errors are placed in the experiment's file."""
    keys = FLAT_KEYS | dict(flat)
    if unknown := next((key for key in keys if key not in FLAT_KEYS), None):
        raise ConfigError(
            f"unknown key {as_found(unknown)}; there are {', '.join(FLAT_KEYS)}{dotted_keys.meant(unknown, FLAT_KEYS)}"
        )
    for key in ("resume", "allow-changed", "round"):  # fedshift_app.run.resuming removes them
        if keys[key]:
            raise ConfigError(
                f"{key}: `fedshift run` and `flwr run` alone continue a run; it needs resume=FOLDER; the number of a "
                "run's rounds is rounds=N"
            )
    run_name.check(keys["name"])
    overrides = parse_set(str(keys["set"]))
    typed = overrides.keys() | _given(keys).keys()
    path = experiment_file(str(keys["experiment"]) or DEFAULT_EXPERIMENT)
    content = read_yaml(path)
    repeats = "resolved" in content  # the config.yaml of a run folder, which is taken as it is
    own = section_of(section_of(content, "resolved") if repeats else content, "method").get("name", "fedavg")
    method = str(overrides.get("method.name", "") or keys["method"] or own)
    try:
        layer = _of_file(path, content, keys, dict(overrides))
        config = check(_complete(layer, path, typed))
        if not finished:
            recipes.check_typed(config, overrides)
            set_here, model = {split_key(dotted) for dotted in typed}, section_of(content, "model")
            if not repeats:
                # The bn of a file is not looked at with another network than the file's.
                same = "bn" in model and model.get("name") == config.model.name
                inert = {key for key, value in layer.items() if options_of_a_kind.is_default(key, value)}
                set_here |= layer.keys() - inert - (set() if same else {("model", "bn")})
            _check_used(config, set_here)
    except ConfigError as error:
        raise error_location.placed(error, path, method, typed) from None
    return config


def _check_used(config: RunConfig, keys: Collection[tuple[str, ...]]) -> None:
    """Refuse keys of a file, a method or a command that do nothing in the run.

    Raises:
        UnusedKeyError: With the key, and what it needs.
    """
    for section, key in (each for each in sorted(keys) if len(each) == 2):
        options_of_a_kind.check(section, key, config)
    if ("model", "bn") in keys and config.model.bn != "average" and not networks.may_have_batchnorm(config):
        names = ", ".join(dict.fromkeys(config.model.names))
        able = ", ".join(name for name in NETWORKS if NETWORKS[name].batchnorm)
        needed = f"a network with BatchNorm, such as {able}"
        raise options_of_a_kind.UnusedKeyError("model.bn", config.model.bn, f"model.name={names}", needed)


def _of_file(path: Path, experiment: dict[str, Any], keys: Mapping[str, Any], overrides: dict[str, Any]) -> Layer:
    """Return all that an experiment's file, the data set, the method and the command set."""
    plugins.take_files(experiment, path)
    plugins.take_set(experiment, overrides)
    by_method, repeats = section_of(experiment, "methods"), "resolved" in experiment
    for name in by_method:
        with error_location.at("methods", name):
            registry.get(str(name))
    own = {key: value for key, value in experiment.items() if key not in ("title", "paper", "methods")}
    layer = layer_of(sections_of_run(experiment) if repeats else {"experiment": path.stem} | own)
    recorded = layer.get(("method", "name"))
    name = _chosen(layer, "method", str(overrides.pop("method.name", "") or keys["method"]), "fedavg")
    with error_location.at("method", "name"):
        method = registry.get(name)
    if repeats and name != recorded:
        raise ConfigError(
            f"method={name}: the config.yaml of a run of {as_found(recorded)} holds what that method sets in all "
            f"sections; another method needs its experiment, {as_found(layer.get(('experiment',)))}, in its place"
        )
    typed = {key: overrides.pop(f"method.{key}") for key in method.parameters if f"method.{key}" in overrides}
    layers = [layer, recipes.stood_for(method, typed)]
    if not repeats:
        layers = _with_method(layer, method, section_of(by_method, name), typed)
    data = _dataset_layer(layer, str(overrides.pop("dataset.name", "") or keys["dataset"]), overrides.get("dataset.of"))
    if repeats and "train.precision" in overrides:
        overrides.setdefault("train.arithmetic", "")  # the run's value belongs to another precision
    layers = [data, *layers, {("method", "name"): name}, _flat_layer(keys)]
    return with_typed(functools.reduce(over, layers), overrides)


def _with_method(layer: Layer, method: Method, content: Mapping[str, Any], typed: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of an experiment and a method: a recipe's sections are above those of the experiment.

    Args:
        layer: The experiment's.
        method: The method.
        content: What the experiment says for this method (``methods: NAME:``).
        typed: Parameters of the command that stand for other keys.
    """
    defaults, sections = split_sections(method.defaults)
    special, above = split_sections(content)
    own = {key[1]: layer.pop(key) for key in list(layer) if key[0] == "method" and key[1] != "name"}
    below: Layer = {("method", key): value for key, value in defaults.items()}
    around = [layer, sections] if method.of else [sections, layer]
    return [below, *around, above, recipes.stood_for(method, {**special, **own, **typed})]


def _dataset_layer(layer: Layer, requested: str, of: Any) -> Layer:
    """Return the defaults of the run's data set, with its name; another one than the experiment's has its own images.

    Raises:
        ConfigError: If there is no such data set.
    """
    before = layer.get(("dataset", "name"), "")
    name = _chosen(layer, "dataset", requested, "")
    if not name:
        raise ConfigError("dataset: the experiment lacks the key dataset.name")
    if name != before:
        for key in [key for key in layer if key[0] == "images"]:
            del layer[key]
    layer["dataset", "name"] = name
    known = folder_classes.dataset(name, layer.get(("dataset", "of"), "") if of is None else of)
    defaults = dataset_defaults(known)
    domains = {"dataset": {"domains": defaults.pop("domains")}} if "domains" in defaults else {}
    return layer_of(defaults | domains)


def _chosen(layer: Layer, section: str, requested: str, default: str) -> str:
    """Return the name of the method or data set; what the experiment says of another one is dropped."""
    keys = [key for key in layer if key[0] == section]
    if keys and (section, "name") not in layer:
        found = shortened(", ".join(key[1] for key in keys))
        raise ConfigError(f"{section}: lacks the key name, found only {found}")
    name = str(layer.get((section, "name"), default))
    if requested in ("", name):
        return name
    for key in keys:
        del layer[key]
    return requested


def _flat_layer(keys: Mapping[str, Any]) -> Layer:
    """Return what the command's keys without a dot stand for, but for the names of method and data set."""
    given = _given(keys)
    if keys["data-dir"]:
        given["dataset.data_dir"] = str(user_path(str(keys["data-dir"]), "data-dir"))
    return {split_key(dotted): value for dotted, value in given.items() if not dotted.endswith(".name")}


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the command's keys without a dot set, by dotted key."""
    return {dotted: keys[key] for key, dotted in _DOTTED.items() if keys[key] != FLAT_KEYS[key]}


def _complete(layer: Layer, path: Path, typed: Collection[str]) -> dict[str, Any]:
    """Return the sections of a run, with what a user's own images and a file of weights say."""
    sections = nested(layer)
    sections["dataset"] = {**sections["dataset"], **task_of(str(sections.get("task"))).dataset}
    sections["dataset"] = folder_classes.filled(sections["dataset"], typed="dataset.classes" in typed)
    if sections["dataset"].get("classes") and isinstance(sections.get("allocation"), Mapping):  # a user's own images
        domains = tuple(sections["dataset"].get("domains", ()))
        sections["allocation"] = folder_classes.spelled(sections["allocation"], domains)
    networks.of_features(sections, typed)
    networks.find_file(sections, path)
    return sections


def resolve_dataset(name: str, data_dir: str, arguments: list[str]) -> DatasetConfig:
    """Return the checked section ``dataset``, for commands that need no experiment.

    Raises:
        ConfigError: For anything unknown, of the wrong type, or out of range.
    """
    overrides, layer = parse_set(shlex.join(arguments)), _flat_layer(FLAT_KEYS | {"data-dir": data_dir})
    named: Layer = {}
    data = _dataset_layer(named, str(overrides.pop("dataset.name", "") or name), overrides.get("dataset.of"))
    section = nested(with_typed(over(data, named | layer), overrides))["dataset"]
    with explaining("dataset"):
        config = DatasetConfig.model_validate(folder_classes.filled(section, typed="dataset.classes" in overrides))
    check_dataset(config)
    return config


def dataset_defaults(dataset: Dataset) -> dict[str, Any]:
    """Return the defaults of a data set: from conf/datasets for ours, from ``defaults`` for any other."""
    if catalog.DATASETS.origin(dataset.name) == OURS:
        return read_yaml(CONF / "datasets" / f"{dataset.name}.yaml")
    return ({"domains": dataset.domains} if dataset.domains else {}) | dict(dataset.defaults)
