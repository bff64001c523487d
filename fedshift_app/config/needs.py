"""Holds what features need of a method against what it is: one function for all of them, which names none.

What a method is follows from its classes, as :data:`FACTS` look at them. A feature states in its room which of these
facts it needs (``fedshift_core.features.Need``).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from fedshift_app.config import registry
from fedshift_app.config.error_location import beginning_with_key
from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_clients.modules.catalog import MODULES
from fedshift_core import features
from fedshift_core.disclosure import IMAGE
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.features import FEATURES, Case, Fact, Feature, is_set, ours
from fedshift_core.limits import some
from fedshift_core.registry import Method, imported
from fedshift_strategies.contributions import behind, refuse_sums

MOST_NAMED = 20  # methods in a refusal

# --- what a method is: each fact says why it is not, empty where it is ------------------------------------------------


def _averages(of: Case) -> str:
    return "" if of.method.strategy_class().averages() else "it merges weights by its own rule"


def _global(of: Case) -> str:
    if why := _averages(of) or _one_network(of):
        return why
    from fedshift_strategies.base import DomainStrategy  # with Flower

    own = of.method.strategy_class().scored_weights is not DomainStrategy.scored_weights
    return "it scores other weights than it sends" if own else ""


def _one_network(of: Case) -> str:
    return "its nodes send no weights" if of.method.client_class().heterogeneous else ""


def _weights_alone(of: Case) -> str:
    if of.method.strategy_class().contributes or of.method.numbers:
        return f"there is noise on weights only, and it also sends: {registry.travels(of.method)}"
    return _one_network(of)


def _single_images(of: Case) -> str:
    from fedshift_app.features.privacy.node import RELEASED

    method = of.method
    client, contributed = method.client_class(), method.strategy_class().contributes
    if not client.is_per_image():
        return "its loss, or what it also does with a node's images, is no mean of terms of one image each"
    if method.numbers:
        return f"its nodes also send numbers without noise: {method.numbers}"
    if contributed and not (client.sends_prototypes and set(contributed) == set(RELEASED)):
        return f"its nodes also send, without noise: {registry.contributed(method)}"
    if method.defaults.get("modules"):
        return "its modules have losses and features of their own"
    return looks_at_images(method.defaults.get("adapt", {}))


def _sums(of: Case) -> str:
    if of.method.numbers:
        return f"each node sends {of.method.numbers}"
    for feature in ours():
        section, _, key = feature.key.partition(".")
        if feature.compares and is_set(of.method.defaults.get(section, {}).get(key)):
            return f"it {feature.compares}"
    strategy = of.method.strategy_class()
    return str(strategy.needs_single(of.params) or refuse_sums(strategy, strategy.sums(of.params), of.settings))


def _dense_targets(of: Case) -> str:
    from fedshift_clients.base import DomainClient  # with torch
    from fedshift_clients.modules.base import Modules
    from fedshift_clients.training import own_code

    strategy, client = of.method.strategy_class(), of.method.client_class()
    shapes = strategy.contributes
    if rows := [name for name in shapes if shapes[name][:1] == ("C",) or behind(strategy, name, of.settings) == IMAGE]:
        return f"its nodes send {', '.join(rows)} by class of the images"
    if "features" in of.method.needs:
        return "it goes by features of whole images"
    parts: list[tuple[type, type]] = [(client, DomainClient)]
    for entry in of.method.defaults.get("modules", ()):
        modules = imported(MODULES[str(entry["name"])].modules)
        parts.append((modules, Modules))
    if any(own_code.reads_labels(kind, base) for kind, base in parts):
        return "it goes by the one class of an image"
    return goes_by_predictions(of.method.defaults.get("adapt", {}))


FACTS: Mapping[Fact, Callable[[Case], str]] = {
    "averages": _averages,
    "one global model": _global,
    "weights alone": _weights_alone,
    "single images": _single_images,
    "sums": _sums,
    "weighs classes": lambda of: (
        ""
        if of.method.client_class().can_weigh_classes()
        else "it has a loss of its own that does not weigh classes (self.cross_entropy does)"
    ),
    "other networks": lambda of: (
        "" if of.method.client_class().heterogeneous else "it averages weights, so all nodes need the same network"
    ),
    "dense targets": _dense_targets,
}


def looks_at_images(section: Mapping[str, Any]) -> str:
    """Return what an adaptation does with training images; empty for nothing."""
    adaptation = registry.adaptation(section)
    if adaptation is None or not adaptation.uses_training_images:
        return ""
    return f"adapt.name={section['name']} looks at training images without noise"


def goes_by_predictions(section: Mapping[str, Any]) -> str:
    """Return what an adaptation does with what the model predicts of an image; empty for nothing."""
    from fedshift_clients.adapt.base import Adaptation  # with torch
    from fedshift_clients.training import own_code

    adaptation, ways = registry.adaptation(section), ("predict", "predictor", "forward", "classifier")
    if adaptation is None or not own_code.looks_up(adaptation, Adaptation, ways):
        return ""
    return f"adapt.name={section['name']} goes by the one class that is predicted of an image"


def why_not(fact: Fact, method: Method, **changes: Any) -> str:
    """Return why a method with its own defaults, but for some changes, lacks a fact; empty if it has it."""
    fields = method.params_class().model_fields
    given = {key: value for key, value in method.defaults.items() if key in fields} | changes
    try:
        return FACTS[fact](Case(method, method.checked_params(given), {**method.defaults, **changes}, None))
    except ValidationError:  # of another package; a run of it says what is wrong
        return "its own defaults are not allowed"


# --- the check --------------------------------------------------------------------------------------------------------


def check(case: Case) -> None:
    """Refuse features that do not go with the method, or with the rest of a run.

    Raises:
        ConfigError: With the key, its value, why, and what is allowed.
    """
    if case.config.model.per_node:
        refuse("model.per_node", "other networks", case)
    declared = [*ours(), *(FEATURES[str(entry["name"])] for entry in case.config.features)]
    on = [feature for feature in declared if feature.is_on(case.config)]
    for guard in (feature for feature in on if feature.hides):
        for feature in on:
            _refuse_what_tells(guard, feature, case.config)
    for setting, fact in (pair for feature in declared for pair in _needed(feature, case.config)):
        refuse(setting, fact, case)
    for feature in declared:
        if feature.rules is not None and (why := feature.rules(case)):
            raise beginning_with_key(why)


def refuse(setting: str, fact: Fact, of: Case) -> None:
    """Refuse a setting that needs a fact which a method lacks.

    Raises:
        ConfigError: With the methods that have it.
    """
    if why := FACTS[fact](of):
        able = [method.name for method in registry.listed() if not why_not(fact, method)]
        fits = some(able, MOST_NAMED)
        raise ConfigError(f"{setting} does not fit {of.method.name!r}: {why}; it fits {fits}")


def _needed(feature: Feature, config: RunConfig) -> Iterator[tuple[str, Fact]]:
    """Yield the settings of a run by which a feature needs a fact, each with the fact."""
    for need in feature.needs:
        key = need.key or feature.key
        if features.value_of(config, key) in need.values if need.values else feature.is_on(config):
            yield feature.setting(config, key), need.fact


def _refuse_what_tells(guard: Feature, feature: Feature, config: RunConfig) -> None:
    """Refuse a feature that has each node tell what another one hides.

    Raises:
        ConfigError: With what it tells.
    """
    of_others = FEATURES.origin(feature.name) != OURS
    tells = feature.tells if of_others or feature.train_reply or feature.query_reply else ""
    sums = "sums" in (need.fact for need in guard.needs)
    what = f"sends {guard.hides} {tells}" if tells else feature.compares if sums else ""
    if what and feature is not guard:
        section, _, key = feature.key.partition(".")
        allowed = "" if of_others else f"; allowed is {features.typed(MODELS[section].model_fields[key].default)}"
        raise ConfigError(f"{guard.setting(config)} does not go with {feature.setting(config)}, which {what}{allowed}")
