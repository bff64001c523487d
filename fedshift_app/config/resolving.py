"""Builds the configuration of a run from YAML files and the command line.

Layers, each over the one before: conf/datasets/NAME.yaml, the sections (``images:``, ``train:``, ...) of
conf/methods/NAME.yaml, conf/experiments/NAME.yaml, its ``methods: NAME:`` with sections of its own, the flat
run-config keys, then the dotted overrides of ``set``. A method's own parameters come from conf/methods/NAME.yaml,
then ``methods: NAME:``, then the experiment's ``method:``.
"""

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
from fedshift_app.config.files import CONF, folder_remedy, names
from fedshift_app.config.layers import MODEL_PER_NODE, NAMED, laid_over, modules_by_name, parse_set, section_of, set_all
from fedshift_app.config.options_of_a_kind import UnusedKeyError
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.trackers import check_trackers
from fedshift_app.config.validating import (
    check_special,
    check_values,
    sections_of_run,
    split_sections,
    validate,
)
from fedshift_app.run.files import CONFIG_FILE
from fedshift_clients.models.catalog import NETWORKS, family_of
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
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

    return _resolved(flat, checked, finished)


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
    family = family_of(str(name))
    return () if family is None else (family.prefix,)


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
    typed = {*overrides, *(dotted for key, dotted in _DOTTED.items() if keys[key] != FLAT_KEYS[key])}
    path = experiment_file(str(keys["experiment"]) or DEFAULT_EXPERIMENT)
    content = read_yaml(path)
    repeats = "resolved" in content  # the config.yaml of a run folder, which is taken as it is
    own = section_of(section_of(content, "resolved") if repeats else content, "method").get("name", "fedavg")
    method = str(overrides.get("method.name", "") or keys["method"] or own)
    try:
        layers = _of_file(path, content, keys, dict(overrides), method)
        config = check(layers)
        if not finished:
            recipes.check_typed(config, overrides)
            model = section_of(content, "model")
            set_here = {
                f"{section}.{key}" for section, keys in layers.items() if isinstance(keys, dict) for key in keys
            }
            if "bn" not in model or model.get("name") != config.model.name:  # another network than the file's
                set_here -= {"model.bn"}
            _check_used(config, layers, typed if repeats else {*typed, *set_here})
    except ConfigError as error:
        raise error_location.placed(error, path, method, typed) from None
    return config


def _check_used(config: RunConfig, layers: Mapping[str, Any], keys: Collection[str]) -> None:
    """Refuse keys that do nothing in the run.

    Args:
        config: The run's configuration.
        layers: What its file, its method and its command set.
        keys: The dotted keys to look at.

    Raises:
        UnusedKeyError: With the key, and what it needs.
    """
    for section, content in layers.items():
        if isinstance(content, Mapping):
            looked = {key: value for key, value in content.items() if f"{section}.{key}" in keys}
            options_of_a_kind.check(section, looked, config)
    if "model.bn" in keys and config.model.bn != "average" and not networks.may_have_batchnorm(config):
        names = ", ".join(dict.fromkeys((config.model.name, *config.model.per_node)))
        able = ", ".join(name for name in NETWORKS if NETWORKS[name].batchnorm)
        needed = f"a network with BatchNorm, such as {able}"
        raise UnusedKeyError("model.bn", config.model.bn, f"model.name={names}", needed)


def _of_file(
    path: Path, experiment: dict[str, Any], keys: Mapping[str, Any], overrides: dict[str, Any], run_method: str
) -> dict[str, Any]:
    """Return all sections of an experiment's file and the keys of the command."""
    plugins.take_files(experiment, path)
    plugins.take_set(experiment, overrides)
    by_method = section_of(experiment, "methods")
    repeats = "resolved" in experiment
    if repeats:
        layers = sections_of_run(experiment)
    else:
        layers = {"experiment": path.stem} | experiment
        for key in ("title", "paper", "methods"):
            layers.pop(key, None)
    for name in by_method:
        with error_location.at("methods", name):
            if name != run_method:  # the run's own method is checked with the rest
                check_special(registry.get(str(name)), section_of(by_method, name), "methods", str(name))
            registry.get(str(name))
    layers = _in_one_form(layers)
    layers, below, own, above = _with_method(layers, str(keys["method"]), by_method, overrides, repeats)
    layers = _with_dataset(layers, str(keys["dataset"]), overrides, below.pop("images", {}))
    merged = dict(below)
    for upper in (layers, own, above):
        for key, value in upper.items():
            merged[key] = laid_over(key, merged[key], value) if key in merged else value
    _set_flat(merged, keys)
    set_all(merged, overrides)
    if repeats and "train.precision" in overrides and "train.arithmetic" not in overrides:
        merged["train"]["arithmetic"] = ""  # the run's value belongs to another precision
    merged["dataset"] = folder_classes.filled(merged["dataset"], typed="dataset.classes" in overrides)
    if merged["dataset"].get("classes") and isinstance(merged.get("allocation"), Mapping):  # a user's own images
        domains = tuple(merged["dataset"].get("domains", ()))
        merged["allocation"] = folder_classes.spelled(merged["allocation"], domains)
    networks.find_file(merged, path)
    return merged


def _in_one_form(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's sections with lists by name, options next to their kind, and ``model.per_node`` in its place."""
    sections: dict[str, Any] = {}
    for key, value in layers.items():
        if key.replace("-", "_") == MODEL_PER_NODE:
            continue
        if key in NAMED:
            sections[key] = modules_by_name(value, key)
        else:
            sections[key] = options_of_a_kind.flat(key, value) if isinstance(value, Mapping) else value
    for key in layers.keys() & {MODEL_PER_NODE, MODEL_PER_NODE.replace("_", "-")}:
        sections["model"] = section_of(sections, "model") | {"per_node": layers[key]}
    return sections


def resolve_dataset(name: str, data_dir: str, arguments: list[str]) -> DatasetConfig:
    """Return the checked section ``dataset``, for commands that need no experiment.

    Raises:
        ConfigError: For anything unknown, of the wrong type, or out of range.
    """
    overrides = parse_set(shlex.join(arguments))
    layers = _with_dataset({}, name, overrides, {})
    _set_flat(layers, FLAT_KEYS | {"data-dir": data_dir})
    set_all(layers, overrides)
    with explaining("dataset"):
        config = DatasetConfig.model_validate(
            folder_classes.filled(layers["dataset"], typed="dataset.classes" in overrides)
        )
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
    """Set what the command's keys without a dot stand for, but for the names of method and data set."""
    values = {dotted: keys[key] for key, dotted in _DOTTED.items() if keys[key] != FLAT_KEYS[key]}
    if keys["data-dir"]:
        values["dataset.data_dir"] = str(user_path(str(keys["data-dir"]), "data-dir"))
    set_all(layers, {dotted: value for dotted, value in values.items() if not dotted.endswith(".name")})
