"""Builds the configuration of a run from YAML files and the command line.

Layers, each over the one before: conf/datasets/NAME.yaml, the sections (``images:``, ``train:``, ...) of
conf/methods/NAME.yaml, conf/experiments/NAME.yaml, its ``methods: NAME:`` with sections of its own, the flat
run-config keys, then the dotted overrides of ``set``. A method's own parameters come from conf/methods/NAME.yaml,
then ``methods: NAME:``, then the experiment's ``method:``.
"""

import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedshift_app.config import (
    dotted_keys,
    error_location,
    folder_classes,
    networks,
    plugins,
    recipes,
    registry,
    run_name,
    special_methods,
    unused_keys,
)
from fedshift_app.config.dataset_checks import check_dataset
from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.error_messages import explained
from fedshift_app.config.files import CONF, folder_remedy, names
from fedshift_app.config.layers import (
    MODEL_PER_NODE,
    NAMED,
    laid_over,
    modules_by_name,
    parse_set,
    section_of,
    set_all,
    set_dotted,
)
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.trackers import check_trackers
from fedshift_app.config.validating import check_values, sections_of_run, split_sections, validate
from fedshift_app.run.files import CONFIG_FILE
from fedshift_clients.models.catalog import family_of
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.limits import as_found, shortened
from fedshift_core.paths import user_path
from fedshift_core.registry import Method
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets import catalog
from fedshift_datasets.base import Dataset

T = TypeVar("T")

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
            f"{' and '.join(SUGGESTED)}; or give a path to a .yaml file{meant(experiment, known)}",
            folder_remedy(experiment),
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

    config = _resolved(flat, checked)
    if not finished:
        _check_used(flat, config)
    return config


def _check_used(flat: Mapping[str, Any], config: RunConfig) -> None:
    """Refuse keys that do nothing in the run: those of the command, and of the experiment's privacy and BatchNorm.

    The ``config.yaml`` of a run is taken as it is, so that every run can be repeated and continued.
    """
    keys = FLAT_KEYS | dict(flat)
    overrides = parse_set(str(keys["set"]))
    unused_keys.check(config, _typed(keys, overrides))
    unused_keys.check_stood_for(config, overrides)
    path = experiment_file(str(keys["experiment"]) or DEFAULT_EXPERIMENT)
    content = read_yaml(path)
    if "resolved" in content:
        return
    written = unused_keys.of_privacy(config)
    model = section_of(content, "model")
    if "bn" in model and model.get("name") == config.model.name:  # else the command or the method chose the network
        written.append("model.bn")
    try:
        unused_keys.check(config, written)
    except ConfigError as error:
        raise _placed(error, path, "", ()) from None


def _typed(keys: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
    """Return the dotted keys that a command sets."""
    return {*overrides, *(dotted for key, dotted in _DOTTED.items() if keys[key] != FLAT_KEYS[key])}


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
    family = family_of(str(name))
    return () if family is None else (family.prefix,)


def check_keys(flat: Mapping[str, Any]) -> RunConfig:
    """Refuse unknown keys and values out of range before torch is imported, which takes seconds.

    Args:
        flat: As :func:`resolve`, which finds what is left, such as a method that does not fit another option.

    Returns:
        The sections, without what :func:`resolve` fills in for method, modules and ``adapt``.

    Raises:
        ConfigError: With the key, the value found and what is allowed.
    """
    return _resolved(flat, check_values)


def _resolved(flat: Mapping[str, Any], check: Callable[[dict[str, Any]], T]) -> T:
    """Return what ``check`` makes of all sections of a run; its errors are placed in the experiment's file."""
    keys = FLAT_KEYS | dict(flat)
    for key in keys:
        if key not in FLAT_KEYS:
            raise ConfigError(
                f"unknown key {as_found(key)}; there are {', '.join(FLAT_KEYS)}{dotted_keys.meant(key, FLAT_KEYS)}"
            )
    if keys["resume"]:  # fedshift_app.run.resuming removes the key
        raise ConfigError("resume: only `fedshift run` and `flwr run` continue a run")
    if keys["allow-changed"]:
        raise ConfigError("allow-changed: this key needs resume=FOLDER; a new run has the settings that it is given")
    if keys["round"]:
        raise ConfigError("round: this key needs resume=FOLDER; the number of a run's rounds is rounds=N")
    run_name.check(keys["name"])
    overrides = parse_set(str(keys["set"]))
    path = experiment_file(str(keys["experiment"]) or DEFAULT_EXPERIMENT)
    typed = _typed(keys, overrides)
    method = str(overrides.get("method.name", "") or keys["method"])
    try:
        return check(_of_file(path, keys, overrides))
    except ConfigError as error:
        raise _placed(error, path, method, typed) from None


def _placed(error: ConfigError, path: Path, method: str, typed: Collection[str]) -> ConfigError:
    """Return an error with the line in the experiment's file that it is about, if there is one."""
    if not error.keys:
        return error
    content = read_yaml(path)
    method_section = section_of(section_of(content, "resolved") or content, "method")
    method = method or str(method_section.get("name", "fedavg"))
    stands_for = recipes.parameter_of_key(registry.get(method)) if method in registry.METHODS else {}
    return error_location.placed(error, path, method, typed, stands_for)


def _of_file(path: Path, keys: Mapping[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return all sections of an experiment's file and the keys of the command."""
    experiment = read_yaml(path)
    plugins.take_files(experiment, path)
    plugins.take_set(experiment, overrides)
    by_method = section_of(experiment, "methods")
    repeats = "resolved" in experiment  # the config.yaml of a run folder
    if repeats:
        layers = sections_of_run(experiment)
    else:
        layers = {"experiment": path.stem} | {
            k: v for k, v in experiment.items() if k not in ("title", "paper", "methods")
        }
    run_method = str(
        overrides.get("method.name", "") or keys["method"] or section_of(layers, "method").get("name", "fedavg")
    )
    for name in by_method:
        with error_location.at("methods", name):
            other = registry.get(str(name))
        own_params, own_sections = split_sections(section_of(by_method, name))
        if name != run_method:  # the run's own method is checked with the rest
            special_methods.check(other, own_params, own_sections)
    layers = _with_alias(layers)
    for key in NAMED.keys() & layers.keys():
        layers[key] = modules_by_name(layers[key], key)
    layers, below, own, above = _with_method(layers, str(keys["method"]), by_method, overrides, repeats)
    layers = _with_dataset(layers, str(keys["dataset"]), overrides, below.pop("images", {}))
    merged = dict(below)
    for upper in (layers, own, above):
        for key, value in upper.items():
            merged[key] = laid_over(key, merged[key], value) if key in merged else value
    layers = merged
    _set_flat(layers, keys)
    set_all(layers, overrides)
    if repeats and "train.precision" in overrides and "train.arithmetic" not in overrides:
        set_dotted(layers, "train.arithmetic", "")  # the run's value belongs to another precision
    layers["dataset"] = folder_classes.filled(layers["dataset"], typed="dataset.classes" in overrides)
    if layers["dataset"].get("classes") and isinstance(layers.get("allocation"), Mapping):  # a user's own images
        layers["allocation"] = folder_classes.spelled(layers["allocation"], tuple(layers["dataset"].get("domains", ())))
    networks.of_features(layers, overrides)
    networks.find_file(layers, path)
    return layers


def resolve_dataset(name: str, data_dir: str, arguments: list[str]) -> DatasetConfig:
    """Return the checked section ``dataset``, for commands that need no experiment.

    Raises:
        ConfigError: For anything unknown, of the wrong type, or out of range.
    """
    overrides = parse_set(shlex.join(arguments))
    layers = _with_dataset({}, name, overrides, {})
    _set_flat(layers, FLAT_KEYS | {"data-dir": data_dir})
    set_all(layers, overrides)
    layers["dataset"] = folder_classes.filled(layers["dataset"], typed="dataset.classes" in overrides)
    try:
        config = DatasetConfig.model_validate(layers["dataset"])
    except ValidationError as error:
        raise explained(error, "dataset") from None
    check_dataset(config)
    return config


def _chosen(section_content: dict[str, Any], section: str, requested: str, default: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the method or data set, and the experiment's section on it.

    The section is dropped if it is about another one.
    """
    if section_content and "name" not in section_content:
        raise ConfigError(f"{section}: lacks the key name, found only {shortened(', '.join(section_content))}")
    name = str(section_content.get("name", default))
    return (requested, {}) if requested and requested != name else (name, section_content)


def _with_alias(layers: dict[str, Any]) -> dict[str, Any]:
    """Return the layers with ``model-per-node`` moved to ``model.per_node``."""
    aliases = {key: value for key, value in layers.items() if key.replace("-", "_") == MODEL_PER_NODE}
    others = {key: value for key, value in layers.items() if key not in aliases}
    if not aliases:
        return others
    return others | {"model": section_of(others, "model") | {"per_node": next(iter(aliases.values()))}}


def _with_method(
    layers: dict[str, Any], flat: str, by_method: dict[str, Any], overrides: dict[str, Any], repeats: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the layers with the method's defaults below the experiment's settings.

    Args:
        layers: The experiment's sections, or those of a repeated run (``repeats``).
        flat: The method that the command names; empty for the experiment's own.
        by_method: The experiment's settings for each method (``methods:``).
        overrides: The command's overrides; ``method.KEY`` of a recipe is replaced by the keys that it stands for.
        repeats: The sections are complete: they contain those of the method's file.

    Returns:
        The layers, and the method's settings of other sections: defaults, a recipe's, and this experiment's.

    Raises:
        ConfigError: If there is no such method, or a repeated run is one of another method.
    """
    requested = str(overrides.pop("method.name", "") or flat)
    section = section_of(layers, "method")
    name, own = _chosen(section, "method", requested, "fedavg")
    with error_location.at("method", "name"):
        method = registry.get(name)
    if repeats:
        if name != section.get("name"):
            raise ConfigError(
                f"method={name}: the config.yaml of a run of {as_found(section.get('name'))} holds what that method "
                "sets in all sections; another method needs the run's experiment, "
                f"{shortened(str(layers.get('experiment', '')))}, in its place"
            )
        return layers | {"method": own}, {}, {}, _pop_recipe_keys(method, overrides)
    defaults, sections = split_sections(method.defaults)
    special_params, above = split_sections(section_of(by_method, name))
    params, stood_for = recipes.spread(method, special_params | own)
    below, recipe = ({}, sections) if method.of else (sections, {})
    above = recipes.patched(recipes.patched(above, stood_for), _pop_recipe_keys(method, overrides))
    return layers | {"method": defaults | params | {"name": name}}, below, recipe, above


def _pop_recipe_keys(method: Method, overrides: dict[str, Any]) -> dict[str, Any]:
    """Remove overrides ``method.KEY`` that stand for keys of other sections; return those sections."""
    given = {
        key: overrides.pop(dotted)
        for dotted in list(overrides)
        if (key := dotted.removeprefix("method.")) in method.parameters and dotted != key
    }
    params, sections = recipes.spread(method, given)
    overrides |= {f"method.{key}": value for key, value in params.items()}
    return sections


def _with_dataset(
    layers: dict[str, Any], flat: str, overrides: dict[str, Any], method_images: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the layers with the defaults of data set and method below the experiment's settings of images."""
    requested = str(overrides.pop("dataset.name", "") or flat)
    name, section = _chosen(section_of(layers, "dataset"), "dataset", requested, "")
    if not name:
        raise ConfigError("dataset: the experiment lacks the key dataset.name")
    dataset = folder_classes.dataset(name, overrides.get("dataset.of", section.get("of", "")))
    images = section_of(layers, "images") if section else {}
    defaults = dataset_defaults(dataset)
    domains = {"domains": defaults["domains"]} if "domains" in defaults else {}
    sections = {"dataset": domains | section | {"name": name}}
    sections["images"] = defaults.get("images", {}) | dict(method_images) | images
    if "allocation" in defaults:
        sections["allocation"] = dict(defaults["allocation"]) | section_of(layers, "allocation")
    return layers | sections


def dataset_defaults(dataset: Dataset) -> dict[str, Any]:
    """Return the defaults of a data set: from conf/datasets for ours, from ``defaults`` for any other."""
    if catalog.DATASETS.origin(dataset.name) == OURS:
        return read_yaml(CONF / "datasets" / f"{dataset.name}.yaml")
    return ({"domains": dataset.domains} if dataset.domains else {}) | dict(dataset.defaults)


def _set_flat(layers: dict[str, Any], keys: Mapping[str, Any]) -> None:
    for key in ("rounds", "seed"):
        if keys[key] != FLAT_KEYS[key]:
            layers[key] = keys[key]
    if keys["profile"]:
        layers["profile"] = True
    if keys["tracking"]:
        layers["tracking"] = keys["tracking"]
    for key in ("every", "fraction"):
        if keys[f"evaluate-{key}"] != FLAT_KEYS[f"evaluate-{key}"]:
            layers["evaluate"] = section_of(layers, "evaluate") | {key: keys[f"evaluate-{key}"]}
    if keys["data-dir"]:
        layers["dataset"]["data_dir"] = str(user_path(str(keys["data-dir"]), "data-dir"))
