"""What goes with secure sums (``federation.secure_sums``), and why the rest does not."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.features import FEATURES
from fedshift_core.options.averaging import OF_IMAGES
from fedshift_core.registry import Method
from fedshift_strategies.contributions import refuse_sums

SEE = "see: fedshift methods --privacy"


def check(config: RunConfig, method: Method, params: Any) -> None:
    """Refuse what needs the replies of single nodes.

    Args:
        config: The configuration.
        method: Its method.
        params: The server's side of the method's parameters.

    Raises:
        ConfigError: With what needs them.
    """
    if config.federation.secure_sums and (why := _reason(config, method, params)):
        raise ConfigError(f"federation.secure_sums=on: {why}")


def _reason(config: RunConfig, method: Method, params: Any) -> str:
    strategy, aggregation = method.strategy_class(), config.aggregation
    if why := _needs_single(strategy, params, config.method):
        return f"{method.name!r} does not fit: {why}; {SEE}"
    if aggregation.weights in OF_IMAGES:
        return (
            f"aggregation.weights={aggregation.weights} weighs nodes by what each says of its own images; allowed are "
            "other rules"
        )
    if aggregation.weights == "domain-aware" and aggregation.balance == "exact":
        return (
            "aggregation.balance=exact weighs nodes by their images of each class, which they do not tell each other; "
            "allowed is approximate"
        )
    if method.numbers:
        return f"{method.name!r} does not fit: each node sends {method.numbers}; {SEE}"
    if aggregation.robust != "none":
        return f"aggregation.robust={aggregation.robust} compares the weights of single nodes; allowed is none"
    if aggregation.gma_tau > 0:
        return f"aggregation.gma_tau={aggregation.gma_tau:g} counts the signs of single nodes' changes; allowed is 0"
    if "merge" in strategy.of_sums and aggregation.weights not in ("method", "equal"):
        return (
            f"{method.name!r} sums up the nodes' changes alike, which aggregation.weights={aggregation.weights} hides; "
            "allowed are method and equal"
        )
    if config.evaluate.client_models != "off":
        return (
            f"evaluate.client_models={config.evaluate.client_models} scores the model of each single node; allowed is "
            "off"
        )
    for name in (str(entry["name"]) for entry in config.features):
        if tells := FEATURES[name].tells:
            return f"features has {name}, which sends {tells} of each single node"
    return ""


def _needs_single(strategy: Any, params: Any, settings: Mapping[str, Any]) -> str:
    """Return what a method needs of single nodes, or asks for as a sum that does not hide them; empty for nothing."""
    return str(strategy.needs_single(params) or refuse_sums(strategy, strategy.sums(params), settings))


def fits(method: Method) -> str:
    """Return in a word or a few whether a method fits: ``yes``, or why not; with its own defaults."""
    strategy = method.strategy_class()
    if method.numbers:
        return f"no: each node sends {method.numbers}"
    if method.defaults.get("aggregation", {}).get("gma_tau"):
        return "no: it counts the signs of single nodes' changes"
    try:
        params, _ = method.split_params({key: v for key, v in method.defaults.items() if key in method.params()})
    except ValidationError:  # of another package; a run of it says what is wrong
        return "no: its own defaults are not allowed"
    why = _needs_single(strategy, params, method.defaults)
    return f"no: {why}" if why else "yes"


def with_settings(method: Method) -> str:
    """Return the first setting with which a method fits that does not by default; empty where there is none.

    Looked at are switches and words of its server's side, one at a time.
    """
    strategy = method.strategy_class()
    given = {key: value for key, value in method.defaults.items() if key in method.params()}
    for name, field in strategy.params_model.model_fields.items():
        for value in getattr(field.annotation, "__args__", (True, False) if field.annotation is bool else ()):
            try:
                params, _ = method.split_params({**given, name: value})
            except ValidationError:
                continue
            if not _needs_single(strategy, params, {**given, name: value}):
                return f"method.{name}={str(value).lower()}"
    return ""


def fits_with(method: Method) -> str:
    """Return ``yes``, ``no``, or the setting with which a method fits."""
    if fits(method) == "yes":
        return "yes"
    setting = with_settings(method)
    return f"with {setting}" if setting else "no"
