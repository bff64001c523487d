"""Checks a complete configuration and fills in the defaults of methods, modules and adaptations."""

import json
from collections.abc import Mapping
from typing import Any

from fedshift_app.config import error_location, needs, plugins, recipes, registry
from fedshift_app.config.cross_checks import check_terms, check_together
from fedshift_app.config.dataset_checks import check_dataset
from fedshift_app.config.error_messages import explaining
from fedshift_app.config.layers import NAMED, Layer, layer_of, listed, nested, over, section_of
from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.features import Case, ours
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found
from fedshift_core.params import Former, Params
from fedshift_core.registry import name_and_params
from fedshift_core.yaml_files import MOST_DEPTH

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
DATASET_KEY = "public"  # the only key of the section ``dataset`` that it may set
#: The sections that make a recipe; another method's recipe has its own.
RECIPE_SECTIONS = ("modules", "adapt", "aggregation")


def validate(layers: Mapping[str, Any], *, finished: bool = False) -> RunConfig:
    """Return a complete configuration, checked and with all defaults.

    Args:
        layers: The sections.
        finished: They are only compared with those of finished runs (``cross_checks.check_together``).

    Raises:
        ConfigError: With the key, the value found and what is allowed.
    """
    config = _sections(layers)
    with explaining():
        check_together(config, finished=finished)
    complete = _completed(config)
    filled = _with_method(complete)
    _check_adaptation(complete)
    _check_method(complete, finished)
    return filled


def recorded(layers: Mapping[str, Any]) -> RunConfig:
    """Return a run's configuration with all defaults, each section checked for itself, which needs no torch.

    The run itself checked the sections together.

    Raises:
        ConfigError: As :func:`validate`.
    """
    return _with_method(_completed(_sections(layers)))


def _completed(config: RunConfig) -> RunConfig:
    """Return a configuration with every parameter but the method's own, so that the run folder shows defaults too."""
    adapt = {"name": config.adapt.get("name", registry.NONE)} | _adapt_params(config).model_dump()
    named = {key: _complete_named(config, key) for key in NAMED}
    complete = config.model_copy(update={**named, "adapt": FrozenDict(adapt)})
    for feature in ours():
        complete = feature.completed(complete) if feature.completed else complete
    return complete


def _with_method(config: RunConfig) -> RunConfig:
    """Return a configuration with the parameters of its method."""
    with explaining("method"):
        params = config.params()
    return config.model_copy(update={"method": FrozenDict({"name": config.declared.name} | params.model_dump())})


def check_values(layers: Mapping[str, Any]) -> RunConfig:
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
    with explaining("method"):
        config.params()
    return config


def _sections(layers: Any) -> RunConfig:
    """Return the sections of a run, each checked for itself."""
    if not isinstance(layers, Mapping):
        raise ConfigError(f"a configuration is a mapping of keys to values, found {as_found(layers)}")
    _check_shape(layers)
    plugins.allow(layers.get("plugins") or ())
    return checked_sections(layers)


def checked_sections(layers: Mapping[str, Any], *, known: bool = True) -> RunConfig:
    """Return the sections of a run, each checked for itself; ``known``: its data set is here."""
    sections = {**layers, **{key: listed(layers.get(key) or (), key) for key in NAMED}}
    with explaining():
        config = RunConfig.model_validate(sections)
        if known:
            check_dataset(config.dataset)
        config.allocation.check(config.dataset.domains)
    return config


def _check_shape(value: Any, level: int = 1) -> None:
    """Refuse what is nested too deeply, or a mapping of anything but words; it may come from anywhere.

    Raises:
        ConfigError: With what is allowed.
    """
    if not isinstance(value, Mapping | list | tuple):
        return
    if level > MOST_DEPTH:
        raise ConfigError(f"a configuration nests lists and mappings at most {MOST_DEPTH} deep")
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str)]:
            raise ConfigError(f"{as_found(bad[0])} is not a key of a configuration; a key is a word")
        value = value.values()
    for inner in value:
        _check_shape(inner, level + 1)


def _check_method(config: RunConfig, finished: bool) -> None:
    """Hold a configuration that lacks the method's defaults against its method's terms, needs and classes."""
    method, params = config.declared, config.params()
    check_terms(config)
    needs.check(Case(method, params, name_and_params(config.method)[1], config, finished))
    recipes.check_needs(config, method)
    client_class = method.client_class()
    if config.rounds:  # without a round nothing depends on their number
        method.strategy_class().check_run(params, config.rounds)
    client_class.check_run(params, config.model, config.train, config.images)


def _complete_named(config: RunConfig, section: str) -> tuple[FrozenDict[str, Any], ...]:
    """Return the entries of a section of ``NAMED``, checked and with all parameters."""
    check = {"modules": registry.modules_params, "features": registry.feature_params}[section]
    complete = []
    for name, given in map(name_and_params, getattr(config, section)):
        with explaining(section, name), error_location.at(section, name):
            complete.append(FrozenDict({"name": name} | check(name, given).model_dump()))
    if section == "features":
        registry.check_features_together([entry["name"] for entry in complete])
    return tuple(complete)


def _check_adaptation(config: RunConfig) -> None:
    """Refuse an adaptation that does not fit the images, or trains an encoder that is frozen."""
    if (kind := registry.adaptation(config.adapt)) is None:
        return
    adaptation = kind(_adapt_params(config))
    adaptation.check(config.images)
    if adaptation.tunes_encoder and config.model.encoder_rests:
        raise ConfigError(
            f"adapt.name={config.adapt['name']} trains the encoder before a test, but with model.freeze=encoder, "
            "without model.projection, nothing of it trains"
        )


def _adapt_params(config: RunConfig) -> Params:
    """Return the checked parameters of the section ``adapt``."""
    with explaining("adapt"), error_location.at("adapt", "name"):
        return registry.adapt_params(config.adapt)


def sections_of_run(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run from its ``config.yaml``, in this version's form.

    A recipe's parameters used to be the method's own. A key that did not exist has the value that was in force then
    (``Former``). For ``precision=auto`` the number format is the recorded one; once each node's hardware decided.
    """
    layers = _with_recipe(section_of(recorded, "resolved"))
    for section, model in MODELS.items():
        content = layers.get(section)
        if not isinstance(content, Mapping):
            continue
        for key, inner in model.model_fields.items():
            former = next((mark for mark in inner.metadata if isinstance(mark, Former)), None)
            if former is not None and key not in content and former.mattered(content):
                layers[section] = {**content, key: former.value}
    train = section_of(layers, "train")
    if train.get("precision", "auto") == "auto" and not train.get("arithmetic"):
        layers["train"] = train | {"arithmetic": recorded.get("arithmetic") or train.get("arithmetic", "hardware")}
    return layers


def _with_recipe(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run with the parameters of its recipe in the sections that they stand for."""
    method = sections.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    recipe = registry.get(name) if isinstance(name, str) and name in registry.METHODS else None
    if recipe is None or not isinstance(method, Mapping) or not any(recipes.moved(recipe, key) for key in method):
        return dict(sections)
    stood_for = recipes.stood_for(recipe, method)
    own = {key: value for key, value in split_sections(recipe.defaults)[1].items() if key[0] in RECIPE_SECTIONS}
    replaced = {"method", *(key[0] for key in (*own, *stood_for) if key[0] in RECIPE_SECTIONS)}
    kept = {key: value for key, value in layer_of(sections).items() if key[0] not in replaced}
    return nested(over(over(kept, own), stood_for))


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


def split_sections(content: Mapping[str, Any]) -> tuple[dict[str, Any], Layer]:
    """Return a method's own parameters and the sections of the run that its file sets."""
    params = {key: value for key, value in content.items() if key not in METHOD_SECTIONS}
    sections = layer_of({key: value for key, value in content.items() if key in METHOD_SECTIONS})
    if unknown := [key[1] for key in sections if key[0] == "dataset" and key[1] != DATASET_KEY]:
        raise ConfigError(f"dataset.{as_found(sorted(unknown)[0])} of a method: allowed is dataset.{DATASET_KEY} alone")
    return params, sections
