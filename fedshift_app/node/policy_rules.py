"""Which runs a policy refuses, whatever their messages hold: one rule for each of its keys about a configuration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.node.data import Place, own_images
from fedshift_app.node.policy import Policy
from fedshift_core import disclosure
from fedshift_core.disclosure import Word
from fedshift_core.limits import plain
from fedshift_core.plural import plural
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import behind, refuse_sums


def _names(allowed: Policy, config: RunConfig, where: Place) -> str:
    asked = [("methods", "method", str(config.method["name"]))]
    asked += [("networks", "model.name", setup.own_network(config, where).name)]
    asked += [("features", "features", str(entry["name"])) for entry in config.features]
    for key, said, name in asked:
        if not allowed.allows(key, name):
            return f"{said}={name}, allowed are {key}={_words(getattr(allowed, key))}"
    return ""


def _contributions(allowed: Policy, config: RunConfig, where: Place) -> str:
    strategy = config.declared.strategy_class()
    why = refuse_method(allowed, strategy, config.method)
    if not why and config.federation.secure_sums:
        why = refuse_sums(strategy, strategy.sums(config.params()), config.method)
    return why and f"method={config.method['name']}: {why}"


def refuse_method(allowed: Policy, strategy: type[DomainStrategy], settings: Mapping[str, Any]) -> str:
    """Return why a method may not run that sends what may not leave with its usual settings; empty where it may.

    Its replies are looked at, too.
    """
    usual = (name for name in strategy.contributes if name not in strategy.optional)
    whys = (refuse_array(allowed, name, behind(strategy, name, settings)) for name in usual)
    return next(filter(None, whys), "")


def refuse_array(allowed: Policy, name: str, word: Word) -> str:
    """Return why an array may not leave; empty where it may."""
    if not allowed.allows("contributions", name):
        return f"it sends {plain(name)}, allowed are contributions={_words(allowed.contributions)}"
    return disclosure.refuse_array(word, name, allowed.least_images)


def _weights(allowed: Policy, config: RunConfig, where: Place) -> str:
    if allowed.weights == "any" or config.federation.secure_sums:
        return ""
    return "federation.secure_sums=off, allowed is on: weights=masked"


def _noise(allowed: Policy, config: RunConfig, where: Place) -> str:
    privacy, wanted = config.privacy, allowed.privacy
    if wanted is None:
        return ""
    if privacy.name != wanted.name:
        return f"privacy.name={privacy.name}, required is privacy.name={wanted.name}"
    if privacy.delta > wanted.delta:
        return f"privacy.delta={privacy.delta:g}, allowed is privacy.delta={wanted.delta:g}"
    if privacy.of_images:
        images = len(own_images(config, where).train)
        spent = setup.spending_of(config, images).epsilon(config.rounds)
    else:
        spent = privacy.spent(config.rounds)
    if spent > wanted.epsilon:
        return f"rounds={config.rounds} spend more than the allowed privacy.epsilon={wanted.epsilon:g}"
    return ""


def _budget(allowed: Policy, config: RunConfig, where: Place) -> str:
    if allowed.budget is None or config.privacy.name != "none":
        return ""
    return "privacy.name=none, but the node has a budget of epsilon, which a run without noise would exceed"


def _secure_sums(allowed: Policy, config: RunConfig, where: Place) -> str:
    if allowed.secure_sums is None:
        return ""
    wanted, federation = allowed.secure_sums, config.federation
    if not federation.secure_sums or federation.secure_sums_nodes < wanted.nodes:
        found = f"on, federation.secure_sums_nodes={federation.secure_sums_nodes}" if federation.secure_sums else "off"
        return f"federation.secure_sums={found}, required are secure sums over at least {plural(wanted.nodes, 'node')}"
    if federation.secure_sums_least < wanted.least:
        found = f"federation.secure_sums_least={federation.secure_sums_least:g}"
        return f"{found}, required is at least secure_sums.least={wanted.least:g}"
    return ""


def _words(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


#: Each returns why the policy refuses a run; empty where it does not.
RULES: tuple[Callable[[Policy, RunConfig, Place], str], ...] = (
    _names,
    _contributions,
    _weights,
    _noise,
    _budget,
    _secure_sums,
)
