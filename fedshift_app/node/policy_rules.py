"""Refuses runs by a policy's keys about a configuration, whatever their messages hold."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.node.data import Place, own_images
from fedshift_app.node.policy import Policy, RequiredNoise
from fedshift_core import disclosure
from fedshift_core.disclosure import Word
from fedshift_core.limits import plain
from fedshift_core.plural import plural
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import behind, refuse_sums


def refusals(allowed: Policy, config: RunConfig, where: Place) -> Iterator[str]:
    """Yield each reason why a policy refuses a run."""
    federation, strategy, method = config.federation, config.declared.strategy_class(), str(config.method["name"])
    named = [("methods", "method", method), ("networks", "model.name", setup.own_network(config, where).name)]
    named += [("features", "features", str(entry["name"])) for entry in config.features]
    for key, key_of_run, name in named:
        if not allowed.allows(key, name):
            yield f"{key_of_run}={name}, allowed are {key}={_words(getattr(allowed, key))}"
    why = refuse_method(allowed, strategy, config.method)
    if not why and federation.secure_sums:
        why = refuse_sums(strategy, strategy.sums(config.params()), config.method)
    if why:
        yield f"method={method}: {why}"
    if allowed.weights == "masked" and not federation.secure_sums:
        yield "federation.secure_sums=off, allowed is on: weights=masked"
    if allowed.privacy is not None:
        yield from _noise(allowed.privacy, config, where)
    if allowed.budget is not None and config.privacy.name == "none":
        yield "privacy.name=none, but the node has a budget of epsilon, which a run without noise would exceed"
    if (sums := allowed.secure_sums) is None:
        return
    if not federation.secure_sums or federation.secure_sums_nodes < sums.nodes:
        found = f"on, federation.secure_sums_nodes={federation.secure_sums_nodes}" if federation.secure_sums else "off"
        yield f"federation.secure_sums={found}, required are secure sums over at least {plural(sums.nodes, 'node')}"
    if federation.secure_sums_least < sums.least:
        found = f"federation.secure_sums_least={federation.secure_sums_least:g}"
        yield f"{found}, required is at least secure_sums.least={sums.least:g}"


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


def _noise(wanted: RequiredNoise, config: RunConfig, where: Place) -> Iterator[str]:
    privacy = config.privacy
    if privacy.name != wanted.name:
        yield f"privacy.name={privacy.name}, required is privacy.name={wanted.name}"
    if privacy.delta > wanted.delta:
        yield f"privacy.delta={privacy.delta:g}, allowed is privacy.delta={wanted.delta:g}"
    if privacy.of_images:
        spent = setup.spending_of(config, len(own_images(config, where).train)).epsilon(config.rounds)
    else:
        spent = privacy.spent(config.rounds)
    if spent > wanted.epsilon:
        yield f"rounds={config.rounds} spend more than the allowed privacy.epsilon={wanted.epsilon:g}"


def _words(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"
