"""The configuration of a run: what YAML files and the command line say, checked as a whole.

Layers, each over the one before: conf/datasets/NAME.yaml, the sections (``images:``, ``train:``, ...) of
conf/methods/NAME.yaml, conf/experiments/NAME.yaml, its ``methods: NAME:`` with sections of its own, the flat
run-config keys, then the dotted overrides of ``set``. A method's own parameters come from conf/methods/NAME.yaml,
then ``methods: NAME:``, then the experiment's ``method:``.
"""

import json
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clients.adapt.catalog import ADAPTATIONS
from datasets import catalog
from datasets.base import Dataset
from fedshift_app.config import (
    dotted_keys,
    error_location,
    folder_classes,
    networks,
    plugins,
    recipes,
    registry,
    special_methods,
)  # fmt: skip
from fedshift_app.config.cross_checks import check_together
from fedshift_app.config.dataset_checks import check_dataset
from fedshift_app.config.error_messages import explained
from fedshift_app.config.files import CONF, names
from fedshift_app.config.layers import (
    MODEL_PER_NODE,
    NAMED,
    laid_over,
    listed,
    modules_by_name,
    parse_set,
    section_of,
    set_dotted,
)
from fedshift_app.config.privacy import check_features, check_method
from fedshift_app.config.sections import DatasetConfig, RunConfig
from fedshift_app.config.trackers import check_trackers
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found, shortened
from fedshift_core.paths import user_path
from fedshift_core.registry import Method, imported
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import MOST_DEPTH, read_yaml

#: The flat keys of ``[tool.flwr.app.config]``, each with the value that means "as the experiment says".
FLAT_KEYS: dict[str, str | int | float | bool] = {
    "experiment": "",
    "method": "",
    "dataset": "",
    "rounds": 0,
    "seed": -1,
    "evaluate-every": 0,
    "evaluate-fraction": 0.0,
    "data-dir": "",
    "output-dir": "runs",
    "resume": "",
    "round": 0,
    "profile": False,
    "tracking": "",
    "set": "",
}

#: The flat keys that say a key of the configuration, which has a dot there.
_DOTTED = {
    "method": "method.name", "dataset": "dataset.name", "rounds": "rounds", "seed": "seed", "profile": "profile",
    "tracking": "tracking", "evaluate-every": "evaluate.every", "evaluate-fraction": "evaluate.fraction",
    "data-dir": "dataset.data_dir",
}  # fmt: skip

DEFAULT_EXPERIMENT = "handwritten"
SUGGESTED = (DEFAULT_EXPERIMENT, "digits-small")  # to who asks for one that is like none

#: What a file may say of a method besides its parameters.
ASKED_BY_METHODS = (
    "dataset", "images", "train", "model", "modules", "adapt", "aggregation", "server", "evaluate", "rounds"
)  # fmt: skip
OF_DATASET = "public"  # the one key of the section ``dataset`` among them
#: The sections that make a recipe: what another method's recipe left in them is not this method's.
OF_RECIPES = ("modules", "adapt", "aggregation")


def experiment_file(experiment: str) -> Path:
    """Return the file of an experiment, given by name or as a path to a YAML file.

    Raises:
        ConfigError: If there is none.
    """
    if experiment.endswith((".yaml", ".yml")):
        path = user_path(experiment, "experiment")
        if not path.is_file():
            raise ConfigError(f"experiment: there is no file {path}")
        return path
    if experiment not in names("experiments"):
        known = names("experiments")
        raise ConfigError(
            f"unknown experiment {as_found(experiment)}; `fedshift experiments` lists them all, "
            f"{' and '.join(SUGGESTED)} among them; or give a path to a .yaml file{meant(experiment, known)}"
        )
    return CONF / "experiments" / f"{experiment}.yaml"


def resolve(flat: Mapping[str, Any]) -> RunConfig:
    """Build and check the configuration of a run.

    Args:
        flat: The run-config keys (``FLAT_KEYS``); missing ones mean "as the experiment says".

    Raises:
        ConfigError: For anything unknown, of the wrong type, out of range, or that makes no sense together.
    """
    given = FLAT_KEYS | dict(flat)
    for key in given:
        if key not in FLAT_KEYS:
            raise ConfigError(
                f"unknown key {as_found(key)}; there are {', '.join(FLAT_KEYS)}{dotted_keys.meant(key, FLAT_KEYS)}"
            )
    if given["resume"]:  # fedshift_app.run.resuming takes the key out
        raise ConfigError("resume: only `fedshift run` and `flwr run` continue a run")
    if given["round"]:
        raise ConfigError("round: it belongs to resume=FOLDER; the number of a run's rounds is rounds=N")
    overrides = parse_set(str(given["set"]))
    path = experiment_file(str(given["experiment"]) or DEFAULT_EXPERIMENT)
    typed = {*overrides, *(dotted for key, dotted in _DOTTED.items() if given[key] != FLAT_KEYS[key])}
    named = str(overrides.get("method.name", "") or given["method"])
    try:
        return _of_file(path, given, overrides)
    except ConfigError as error:
        raise _placed(error, path, named, typed) from None


def _placed(error: ConfigError, path: Path, method: str, typed: Collection[str]) -> ConfigError:
    """Return a mistake with the place in the experiment's file, where what is wrong stands there."""
    if not error.keys:
        return error
    said = read_yaml(path)
    own = section_of(section_of(said, "resolved") or said, "method")
    method = method or str(own.get("name", "fedavg"))
    stands_for = recipes.said_by(registry.get(method)) if method in registry.METHODS else {}
    return error_location.placed(error, path, method, typed, stands_for)


def _of_file(path: Path, given: Mapping[str, Any], overrides: dict[str, Any]) -> RunConfig:
    """Build and check the configuration of an experiment's file with the keys of the command."""
    experiment = read_yaml(path)
    plugins.take_files(experiment, path)
    specials = section_of(experiment, "methods")
    again = "resolved" in experiment  # the config.yaml of a run folder
    if again:
        layers = as_it_ran(experiment)
    else:
        layers = {"experiment": path.stem} | {
            k: v for k, v in experiment.items() if k not in ("title", "paper", "methods")
        }
    runs = str(
        overrides.get("method.name", "") or given["method"] or section_of(layers, "method").get("name", "fedavg")
    )
    for name in specials:
        with error_location.at("methods", name):
            known = registry.get(str(name))
        own_params, own_sections = _without_sections(section_of(specials, name))
        if name != runs:  # what the run's own method says is checked with the rest
            special_methods.check(known, own_params, own_sections)
    layers = _with_alias(layers)
    for key in NAMED.keys() & layers.keys():
        layers[key] = modules_by_name(layers[key], key)
    layers, below, own, above = _with_method(layers, str(given["method"]), specials, overrides, again)
    layers = _with_dataset(layers, str(given["dataset"]), overrides, below.pop("images", {}))
    merged = dict(below)
    for upper in (layers, own, above):
        for key, value in upper.items():
            merged[key] = laid_over(key, merged[key], value) if key in merged else value
    layers = merged
    _set_flat(layers, given)
    for dotted, value in overrides.items():
        set_dotted(layers, dotted, value)
    if again and "train.precision" in overrides and "train.arithmetic" not in overrides:
        set_dotted(layers, "train.arithmetic", "")  # the run's was that of another precision
    layers["dataset"] = folder_classes.filled(layers["dataset"], typed="dataset.classes" in overrides)
    if layers["dataset"].get("classes") and isinstance(layers.get("allocation"), Mapping):  # of a user's own images
        layers["allocation"] = folder_classes.spelled(layers["allocation"], tuple(layers["dataset"].get("domains", ())))
    networks.find_file(layers, path)
    config = networks.with_digest(validate(layers))
    check_trackers(config.tracking)  # not in validate: nodes track nothing, and need not have what it takes
    return config


def resolve_dataset(name: str, data_dir: str, dotted: list[str]) -> DatasetConfig:
    """Build and check only the section ``dataset``, for commands that need no experiment.

    Raises:
        ConfigError: For anything unknown, of the wrong type, or out of range.
    """
    overrides = parse_set(shlex.join(dotted))
    layers = _with_dataset({}, name, overrides, {})
    _set_flat(layers, FLAT_KEYS | {"data-dir": data_dir})
    for key, value in overrides.items():
        set_dotted(layers, key, value)
    layers["dataset"] = folder_classes.filled(layers["dataset"], typed="dataset.classes" in overrides)
    try:
        config = DatasetConfig.model_validate(layers["dataset"])
    except ValidationError as error:
        raise explained(error, "dataset") from None
    check_dataset(config)
    return config


def validate(layers: dict[str, Any]) -> RunConfig:
    """Check a complete configuration.

    Raises:
        ConfigError: With the key, what was found and what is allowed.
    """
    _check_shape(layers)
    plugins.allow(layers.get("plugins") or ())
    layers = upgraded(layers)
    for key in NAMED:
        layers[key] = listed(layers.get(key, ()), key)
    try:
        config = RunConfig.model_validate(layers)
        check_dataset(config.dataset)
        config.allocation.check(config.dataset.domains)
        check_together(config)
    except ValidationError as error:
        raise explained(error) from None
    # Write every parameter out, so that the run folder shows defaults too.
    named = {key: _complete_named(config, key) for key in NAMED}
    complete = config.model_copy(update={**named, "adapt": _complete_adapt(config)})
    return complete.model_copy(update={"method": _complete_method(complete)})


def _check_shape(layers: Any) -> None:
    """Refuse what is no mapping of words to values, or too deep to be looked at: layers may come from anywhere.

    Raises:
        ConfigError: With what is allowed.
    """
    if not isinstance(layers, Mapping):
        raise ConfigError(f"a configuration is a mapping of keys to values, found {as_found(layers)}")
    within: list[Any] = [layers]
    for _ in range(MOST_DEPTH):
        if bad := [key for one in within if isinstance(one, Mapping) for key in one if not isinstance(key, str)]:
            raise ConfigError(f"{as_found(bad[0])} is no key of a configuration; a key is a word")
        within = [
            inner for one in within if isinstance(one, Mapping | list | tuple)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]  # fmt: skip
    if within:
        raise ConfigError(f"a configuration has lists and mappings at most {MOST_DEPTH} deep in one another")


def _complete_method(config: RunConfig) -> FrozenDict[str, Any]:
    """Return the method's section with all its parameters, checked."""
    method = registry.get(config.method["name"])
    try:
        server, node = config.params()
    except ValidationError as error:
        raise explained(error, "method") from None
    client_class = method.client_class()
    if config.model.per_node and not client_class.heterogeneous:
        able = [m.name for m in registry.listed() if m.client_class().heterogeneous]
        raise ConfigError(
            f"model.per_node: the method {method.name!r} averages weights, so all nodes need the same network; "
            f"nodes may differ with {', '.join(able)}"
        )
    if config.aggregation.robust != "none" and not method.strategy_class().averages():
        able = [m.name for m in registry.listed() if m.strategy_class().averages()]
        raise ConfigError(
            f"aggregation.robust={config.aggregation.robust}: {method.name!r} merges weights in a way of its own; "
            f"robust averages go with {', '.join(able)}"
        )
    if config.server.optimizer != "none" and not method.strategy_class().averages():
        able = [m.name for m in registry.listed() if m.strategy_class().averages()]
        raise ConfigError(
            f"server.optimizer={config.server.optimizer}: {method.name!r} merges weights in a way of its own, and may "
            f"rely on their being sent; server optimisers go with {', '.join(able)}"
        )
    check_method(config.privacy, method, config.evaluate)
    check_features(config.privacy, config.features)
    recipes.check_needs(config, method)
    if client_class.uses_public and config.dataset.public is None:
        raise ConfigError(
            f"dataset.public: the method {method.name!r} needs a public set: a domain of the data set that is not "
            "among dataset.domains, or a share of all, such as dataset.public=0.1"
        )
    method.strategy_class().check_run(server, config.rounds)
    client_class.check_run(node, config.model, config.train, config.images)
    return FrozenDict({"name": method.name} | server.model_dump() | node.model_dump())


def _complete_named(config: RunConfig, section: str) -> tuple[FrozenDict[str, Any], ...]:
    """Return the entries of a section of ``NAMED`` with all their parameters, checked."""
    check = {"modules": registry.modules_params, "features": registry.feature_params}[section]
    found = []
    for entry in getattr(config, section):
        name, given = str(entry["name"]), {key: value for key, value in entry.items() if key != "name"}
        try:
            with error_location.at(section, name):
                params = check(name, given)
        except ValidationError as error:
            raise explained(error, section, name) from None
        found.append(FrozenDict({"name": name} | params.model_dump()))
    return tuple(found)


def _complete_adapt(config: RunConfig) -> FrozenDict[str, Any]:
    """Return the section ``adapt`` with all its parameters, checked."""
    name = str(config.adapt.get("name", registry.NONE))
    try:
        with error_location.at("adapt", "name"):
            params = registry.adapt_params(config.adapt)
    except ValidationError as error:
        raise explained(error, "adapt") from None
    if name != registry.NONE:
        adaptation = imported(ADAPTATIONS[name].adaptation)(params)
        adaptation.check(config.images)
        if adaptation.tunes_encoder and config.model.freeze == "encoder":
            raise ConfigError(f"adapt.name={name} trains the encoder before a test, but model.freeze=encoder")
    return FrozenDict({"name": name} | params.model_dump())


def upgraded(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run as this version has them: parameters of recipes were the method's own once."""
    method = layers.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    if not isinstance(method, Mapping) or not isinstance(name, str) or name not in registry.METHODS:
        return dict(layers)
    known = registry.get(name)
    if not any(recipes.moved(known, key) for key in method):
        return dict(layers)
    params, asked = recipes.spread(known, method)
    _, sections = _without_sections(known.defaults)
    kept = {key: layers.get(key) or {} for key in asked if key not in OF_RECIPES}  # of which a parameter is a part
    merged = recipes.patched(kept | {key: sections[key] for key in OF_RECIPES if key in sections}, asked)
    if merged.get("adapt", {}).get("name") == registry.NONE:
        merged["adapt"] = {"name": registry.NONE}
    return dict(layers) | {"method": params} | merged


def as_it_ran(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run out of its ``config.yaml``, with what ``train.precision=auto`` stood for in it.

    In runs of earlier versions, which have no such key, each node went by its own hardware.
    """
    layers = upgraded(section_of(told, "resolved"))
    train = section_of(layers, "train")
    if train.get("precision", "auto") != "auto" or train.get("arithmetic"):
        return layers
    before = "" if "arithmetic" in train else "hardware"
    return layers | {"train": train | {"arithmetic": told.get("arithmetic") or before}}


def from_json(text: str) -> RunConfig:
    """Read the configuration that the server sent.

    Raises:
        ConfigError: If it is not one.
    """
    try:
        layers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration that was sent is not JSON: {error}") from None
    return validate(layers)


def _chosen(own: dict[str, Any], section: str, wanted: str, default: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the method or data set, and what the experiment says of it.

    What it says of another one is dropped.
    """
    if own and "name" not in own:
        raise ConfigError(f"{section}: lacks the key name, found only {shortened(', '.join(own))}")
    named = str(own.get("name", default))
    return (wanted, {}) if wanted and wanted != named else (named, own)


def _with_alias(layers: dict[str, Any]) -> dict[str, Any]:
    """Put ``model-per-node`` of an experiment where it belongs."""
    named = {key: value for key, value in layers.items() if key.replace("-", "_") == MODEL_PER_NODE}
    rest = {key: value for key, value in layers.items() if key not in named}
    if not named:
        return rest
    return rest | {"model": section_of(rest, "model") | {"per_node": next(iter(named.values()))}}


def _with_method(
    layers: dict[str, Any], flat: str, specials: dict[str, Any], overrides: dict[str, Any], again: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Put the method's defaults below what the experiment says of it.

    Args:
        layers: The experiment's sections, or those of a run that is repeated (``again``).
        flat: The method that the command asks for; empty: as the experiment says.
        specials: What the experiment asks of others for each method.
        overrides: Those of the command; what ``method.KEY`` of a recipe stands for is put in its place.
        again: The sections are complete: what the method's file says is in them.

    Returns:
        The layers, and what the method asks of other sections: as its default, as a recipe, for this experiment.
    """
    wanted = str(overrides.pop("method.name", "") or flat)
    before = section_of(layers, "method")
    name, own = _chosen(before, "method", wanted, "fedavg")
    with error_location.at("method", "name"):
        method = registry.get(name)
    if again and name == before.get("name"):
        return layers | {"method": own}, {}, {}, _asked(method, overrides)
    if again:
        layers = {key: value for key, value in layers.items() if key not in OF_RECIPES}
    defaults, sections = _without_sections(method.defaults)
    special, above = _without_sections(section_of(specials, name))
    params, asked = recipes.spread(method, special | own)
    below, recipe = ({}, sections) if method.of else (sections, {})
    above = recipes.patched(recipes.patched(above, asked), _asked(method, overrides))
    return layers | {"method": defaults | params | {"name": name}}, below, recipe, above


def _asked(method: Method, overrides: dict[str, Any]) -> dict[str, Any]:
    """Take from the command's overrides those ``method.KEY`` that stand for keys of other sections; return these."""
    given = {
        key: overrides.pop(dotted)
        for dotted in list(overrides)
        if (key := dotted.removeprefix("method.")) in method.parameters and dotted != key
    }
    params, asked = recipes.spread(method, given)
    overrides |= {f"method.{key}": value for key, value in params.items()}
    return asked


def _without_sections(of_method: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide what a file says of a method into the method's own parameters and the rest."""
    params = {key: value for key, value in of_method.items() if key not in ASKED_BY_METHODS}
    rest = {key: value for key, value in of_method.items() if key in ASKED_BY_METHODS}
    sections = {
        key: value if key == "rounds" else modules_by_name(value) if key == "modules" else section_of(rest, key)
        for key, value in rest.items()
    }
    if strange := sections.get("dataset", {}).keys() - {OF_DATASET}:
        raise ConfigError(f"dataset.{as_found(sorted(strange)[0])} of a method: allowed is dataset.{OF_DATASET} alone")
    return params, sections


def _with_dataset(
    layers: dict[str, Any], flat: str, overrides: dict[str, Any], of_method: Mapping[str, Any]
) -> dict[str, Any]:
    """Put the data set's defaults, and over them the method's, below what the experiment says of its images."""
    wanted = str(overrides.pop("dataset.name", "") or flat)
    name, own = _chosen(section_of(layers, "dataset"), "dataset", wanted, "")
    if not name:
        raise ConfigError("dataset: the experiment lacks the key dataset.name")
    known = folder_classes.dataset(name, overrides.get("dataset.of", own.get("of", "")))
    images = section_of(layers, "images") if own else {}
    defaults = dataset_defaults(known)
    domains = {"domains": defaults["domains"]} if "domains" in defaults else {}
    found = {"dataset": domains | own | {"name": name}}
    found["images"] = defaults.get("images", {}) | dict(of_method) | images
    if "allocation" in defaults:
        found["allocation"] = dict(defaults["allocation"]) | section_of(layers, "allocation")
    return layers | found


def dataset_defaults(dataset: Dataset) -> dict[str, Any]:
    """Return what is said of a data set: conf/datasets of ours, its own ``defaults`` of any other."""
    if catalog.DATASETS.origin(dataset.name) == OURS:
        return read_yaml(CONF / "datasets" / f"{dataset.name}.yaml")
    return ({"domains": dataset.domains} if dataset.domains else {}) | dict(dataset.defaults)


def _set_flat(layers: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key in ("rounds", "seed"):
        if given[key] != FLAT_KEYS[key]:
            layers[key] = given[key]
    if given["profile"]:
        layers["profile"] = True
    if given["tracking"]:
        layers["tracking"] = given["tracking"]
    for key in ("every", "fraction"):
        if given[f"evaluate-{key}"] != FLAT_KEYS[f"evaluate-{key}"]:
            layers["evaluate"] = section_of(layers, "evaluate") | {key: given[f"evaluate-{key}"]}
    if given["data-dir"]:
        layers["dataset"]["data_dir"] = str(user_path(str(given["data-dir"]), "data-dir"))
