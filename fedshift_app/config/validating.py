"""Checks a complete configuration and fills in the defaults of methods, modules and adaptations."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedshift_app.config import (
    error_location,
    needs,
    plugins,
    recipes,
    registry,
)
from fedshift_app.config.cross_checks import check_terms, check_together
from fedshift_app.config.dataset_checks import check_dataset
from fedshift_app.config.error_messages import explained
from fedshift_app.config.layers import NAMED, listed, modules_by_name, section_of
from fedshift_app.config.sections import RunConfig
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_core.errors import ConfigError
from fedshift_core.features import Case, ours
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found
from fedshift_core.params import Params
from fedshift_core.registry import imported
from fedshift_core.wire.names import OWN, RETAKEN
from fedshift_core.yaml_files import MOST_DEPTH
from fedshift_datasets import catalog

#: Sections that a method's file may set besides the method's own parameters.
METHOD_SECTIONS = (
    "dataset",
    "images",
    "train",
    "model",
    "modules",
    "adapt",
    "aggregation",
    "server",
    "evaluate",
    "statistics",
    "rounds",
)
PLAIN = (str, int, float, type(None))  # values that hold no others, which most are
DATASET_KEY = "public"  # the only key of the section ``dataset`` that it may set
#: The sections that make a recipe; another method's recipe has its own.
RECIPE_SECTIONS = ("modules", "adapt", "aggregation")


def validate(layers: dict[str, Any], *, finished: bool = False) -> RunConfig:
    """Return a complete configuration, checked and with all defaults.

    Args:
        layers: The sections.
        finished: They are those of a finished run (``cross_checks.check_together``).

    Raises:
        ConfigError: With the key, the value found and what is allowed.
    """
    config = _sections(layers)
    try:
        check_together(config, finished=finished)
    except ValidationError as error:
        raise explained(error) from None
    # With every parameter, so that the run folder shows defaults too.
    named = {key: _complete_named(config, key) for key in NAMED}
    complete = config.model_copy(update={**named, "adapt": _complete_adapt(config)})
    for feature in ours():
        complete = feature.completed(complete) if feature.completed else complete
    return complete.model_copy(update={"method": _complete_method(complete, finished=finished)})


def check_values(layers: dict[str, Any]) -> RunConfig:
    """Refuse unknown keys and values out of range, the method's own included; FedShift's own need no torch for it.

    Returns:
        The sections, each as :func:`validate` checks it; those of method, modules and ``adapt`` as they are given.

    Raises:
        ConfigError: With the key, the value found and what is allowed.
    """
    config = _sections(layers)
    for key in NAMED:
        _complete_named(config, key)
    _adapt_params(config)
    _method_params(config)
    return config


def _sections(layers: dict[str, Any]) -> RunConfig:
    """Return the sections of a run, each checked for itself."""
    _check_shape(layers)
    plugins.allow(layers.get("plugins") or ())
    layers = upgraded(layers)
    for key in NAMED:
        layers[key] = listed(layers.get(key, ()), key)
    try:
        config = RunConfig.model_validate(layers)
        check_dataset(config.dataset)
        config.allocation.check(config.dataset.domains)
    except ValidationError as error:
        raise explained(error) from None
    return config


def _check_shape(layers: Any) -> None:
    """Refuse input that is no mapping of words to values, or nested too deeply; it may come from anywhere.

    Raises:
        ConfigError: With what is allowed.
    """
    if not isinstance(layers, Mapping):
        raise ConfigError(f"a configuration is a mapping of keys to values, found {as_found(layers)}")
    level: list[Any] = [layers]
    for _ in range(MOST_DEPTH):
        if not level:
            return
        if bad := [key for value in level if isinstance(value, Mapping) for key in value if not isinstance(key, str)]:
            raise ConfigError(f"{as_found(bad[0])} is not a key of a configuration; a key is a word")
        inside = [
            inner
            for value in level
            if isinstance(value, Mapping | list | tuple)
            for inner in (value.values() if isinstance(value, Mapping) else value)
        ]
        level = [value for value in inside if not isinstance(value, PLAIN)]
    if level:
        raise ConfigError(f"a configuration nests lists and mappings at most {MOST_DEPTH} deep")


def _complete_method(config: RunConfig, *, finished: bool) -> FrozenDict[str, Any]:
    """Return the method's section, checked and with all parameters."""
    method = config.declared
    params = _method_params(config)
    check_terms(config)
    settings = {key: value for key, value in config.method.items() if key != "name"}
    needs.check(Case(method, params, settings, config, finished))
    recipes.check_needs(config, method)
    client_class = method.client_class()
    if config.rounds:  # without a round nothing depends on their number
        method.strategy_class().check_run(params, config.rounds)
    client_class.check_run(params, config.model, config.train, config.images)
    if config.model.encoder_rests and client_class.trains_encoder_alone(params):
        raise ConfigError(
            f"model.freeze=encoder: the method {method.name!r}, as it is configured, trains the encoder alone at times;"
            " model.projection=256 leaves a layer of it to train"
        )
    return FrozenDict({"name": method.name} | params.model_dump())


def _method_params(config: RunConfig) -> Params:
    """Return the method's parameters, checked."""
    try:
        return config.params()
    except ValidationError as error:
        raise explained(error, "method") from None


def _complete_named(config: RunConfig, section: str) -> tuple[FrozenDict[str, Any], ...]:
    """Return the entries of a section of ``NAMED``, checked and with all parameters."""
    check = {"modules": registry.modules_params, "features": registry.feature_params}[section]
    complete = []
    for entry in getattr(config, section):
        name, given = str(entry["name"]), {key: value for key, value in entry.items() if key != "name"}
        try:
            with error_location.at(section, name):
                params = check(name, given)
        except ValidationError as error:
            raise explained(error, section, name) from None
        complete.append(FrozenDict({"name": name} | params.model_dump()))
    if section == "features":
        registry.check_features_together([entry["name"] for entry in complete])
    return tuple(complete)


def _complete_adapt(config: RunConfig) -> FrozenDict[str, Any]:
    """Return the section ``adapt``, checked and with all parameters."""
    name, params = str(config.adapt.get("name", registry.NONE)), _adapt_params(config)
    if name != registry.NONE:
        adaptation = imported(ADAPTATIONS[name].adaptation)(params)
        adaptation.check(config.images)
        if adaptation.tunes_encoder and config.model.encoder_rests:
            raise ConfigError(
                f"adapt.name={name} trains the encoder before a test, but with model.freeze=encoder, without "
                "model.projection, nothing of it trains"
            )
    return FrozenDict({"name": name} | params.model_dump())


def _adapt_params(config: RunConfig) -> Params:
    """Return the checked parameters of the section ``adapt``."""
    try:
        with error_location.at("adapt", "name"):
            return registry.adapt_params(config.adapt)
    except ValidationError as error:
        raise explained(error, "adapt") from None


def upgraded(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run in this version's form: a recipe's parameters used to be the method's own."""
    method = layers.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    if not isinstance(method, Mapping) or not isinstance(name, str) or name not in registry.METHODS:
        return dict(layers)
    recipe = registry.get(name)
    if not any(recipes.moved(recipe, key) for key in method):
        return dict(layers)
    params, stood_for = recipes.spread(recipe, method)
    _, sections = split_sections(recipe.defaults)
    others = {
        key: layers.get(key) or {} for key in stood_for if key not in RECIPE_SECTIONS
    }  # sections that hold a parameter
    merged = recipes.patched(others | {key: sections[key] for key in RECIPE_SECTIONS if key in sections}, stood_for)
    if merged.get("adapt", {}).get("name") == registry.NONE:
        merged["adapt"] = {"name": registry.NONE}
    return dict(layers) | {"method": params} | merged


def with_former_values(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a recorded run with the values that keys had before they existed, where these mattered.

    Statistics of BatchNorm used to be taken of images as they are listed. Patients used to be those that a user's table
    lists, and to count for train and test alone.
    """
    dataset = layers.get("dataset")
    if isinstance(dataset, Mapping) and "patients" not in dataset:
        kind = dataset.get("of") or dataset.get("name")
        if isinstance(kind, str) and catalog.may_have_patients(kind):
            layers = {**layers, "dataset": {**dataset, "patients": "listed"}}
    evaluate = layers.get("evaluate")
    ways = evaluate.get("bn") if isinstance(evaluate, Mapping) else None
    if not isinstance(evaluate, Mapping) or "bn_order" in evaluate or not isinstance(ways, list | tuple):
        return dict(layers)
    taken = OWN in ways or RETAKEN in ways
    return dict(layers) | ({"evaluate": {**evaluate, "bn_order": "listed"}} if taken else {})


def sections_of_run(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run from its ``config.yaml``, with the number format chosen for ``precision=auto``.

    In runs of earlier versions, which lack this key, each node's hardware decided.
    """
    layers = with_former_values(upgraded(section_of(recorded, "resolved")))
    train = section_of(layers, "train")
    if train.get("precision", "auto") != "auto" or train.get("arithmetic"):
        return layers
    default = "" if "arithmetic" in train else "hardware"
    return layers | {"train": train | {"arithmetic": recorded.get("arithmetic") or default}}


def from_json(text: str) -> RunConfig:
    """Return the configuration that the server sent as JSON.

    Raises:
        ConfigError: If it is not a valid configuration.
    """
    try:
        layers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the received configuration is not JSON: {error}") from None
    return validate(layers)


def split_sections(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a method's own parameters and the sections of the run that its file sets."""
    params = {key: value for key, value in content.items() if key not in METHOD_SECTIONS}
    rest = {key: value for key, value in content.items() if key in METHOD_SECTIONS}
    sections = {
        key: value if key == "rounds" else modules_by_name(value) if key == "modules" else section_of(rest, key)
        for key, value in rest.items()
    }
    if unknown := sections.get("dataset", {}).keys() - {DATASET_KEY}:
        raise ConfigError(f"dataset.{as_found(sorted(unknown)[0])} of a method: allowed is dataset.{DATASET_KEY} alone")
    return params, sections
