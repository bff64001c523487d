"""Settings as tables see them: what makes rows and groups, and what a method or a paper sets in an experiment."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from pydantic import ValidationError

from fedshift_app.config import registry
from fedshift_app.config import resolving as configuration
from fedshift_app.config.files import names
from fedshift_app.config.keys import FREE, as_requested, flat
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog

#: Settings that make separate rows of a table: modules, adaptation, averaging, and where personal models are scored.
ROW_SECTIONS = ("method.", "modules", "adapt.", "aggregation.", "server.", "evaluate.personal_on", "evaluate.untrained")
#: Settings that make neither rows nor groups. Seeds are averaged over. The name of an experiment changes no number, and
#: the precision that nodes choose with precision=auto should change none (``surroundings``).
ASIDE = (
    *FREE,
    "seed",
    "experiment",
    "model.bn_keep",
    "keep",
    "train.arithmetic",
    "plugins",  # a method's own; its version is that of the file's content (surroundings)
    "federation.max_update",
    "federation.max_images",  # they do not change results of honest nodes
)
#: Sections by domain that are compared and shown as one value, and that a command sets as a whole.
BY_DOMAIN = ("allocation.counts", "allocation.share")
#: The name of the adaptation before a test.
ADAPTATION = "adapt.name"
#: Prefix of the values that a search replaced.
TUNED = "tuned."
#: The number of nodes, named like a setting; ``allocation.counts=any`` leaves it open.
NODES = "nodes"
#: The round that the compared numbers are of, named like a setting: its values are those of ``keep``.
ROUND, LAST = "round", "last"
#: Kinds of BatchNorm statistics. A run's settings have the first, which its numbers use; a score may name another.
BN_STATISTICS = "evaluate.bn"
BN_ORDER = "evaluate.bn_order"  # decides numbers only where statistics of training images are behind them
#: The method with which the others are compared; it changes no settings of other sections.
BASELINE = "fedavg"


@cache
def own_settings(experiment: str, dataset: str, method: str) -> Mapping[str, tuple[Any, Any]]:
    """Return the settings of other sections that a method sets in an experiment.

    They come from conf/methods and the experiment's ``methods:``. The reference is the experiment with its own method:
    FedAvg, or FedSeProto where nodes have different networks; neither sets anything. For experiments outside
    conf/experiments and a user's own images, only the run knows them (``results.loading.Run``).

    Returns:
        The method's value and the experiment's value, by dotted key.
    """
    if not _known(experiment, dataset, method):
        return {}
    usual = usual_settings(experiment, dataset, method)
    if not usual:
        return {}
    plain = _settings({"experiment": experiment, "dataset": dataset})
    return {
        key: (usual.get(key), plain.get(key))
        for key in usual.keys() | plain.keys()
        if not key.startswith("method.") and usual.get(key) != plain.get(key)
    }


@cache
def usual_settings(experiment: str, dataset: str, method: str) -> Mapping[str, Any]:
    """Return the default settings of a method in an experiment by dotted key.

    Whether a run could have them is not asked. The result is empty for experiments outside conf/experiments, for a
    user's own images, and for a data set that the experiment's sections do not fit.
    """
    if not _known(experiment, dataset, method):
        return {}
    try:
        return _settings({"experiment": experiment, "dataset": dataset, "method": method})
    except ConfigError:
        return {}


@cache
def paper_settings(experiment: str, given: str) -> Mapping[str, Any]:
    """Return the settings of an experiment by dotted key, and its number of nodes if fixed.

    Args:
        experiment: One of conf/experiments.
        given: Further settings of a printed row, in the form of the run-config key ``set``.
    """
    config = configuration.settings({"experiment": experiment, "set": given})
    nodes = config.allocation.num_nodes()
    return as_requested(flat(config.model_dump(mode="json"))) | ({} if nodes is None else {NODES: nodes})


def defaults_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default parameters of the adaptation and the modules of a run, by dotted key."""
    defaults: dict[str, Any] = {}
    with suppress(ConfigError, ValidationError):  # of a package that is not here, or without defaults
        if (adaptation := config.get(ADAPTATION, registry.NONE)) != registry.NONE:
            defaults |= flat(registry.adapt_params({"name": adaptation}).model_dump(mode="json"), "adapt.")
        for name in dict.fromkeys(key.split(".")[1] for key in config if key.startswith("modules.")):
            defaults |= flat(registry.modules_params(name, {}).model_dump(mode="json"), f"modules.{name}.")
    return defaults


def folded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key in which each section of ``BY_DOMAIN`` is one value."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        *section, inner = key.split(".", 2)
        if (by_domain := ".".join(section)) in BY_DOMAIN:
            result.setdefault(by_domain, {})[inner] = value
        else:
            result[key] = value
    return result


def _known(experiment: str, dataset: str, method: str) -> bool:
    """Return whether experiment, data set and method are known by their names alone."""
    if registry.known(method) is None:
        return False
    named = experiment in names("experiments") and dataset in catalog.DATASETS
    return named and catalog.get(dataset).own is None


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return what a command resolves to by dotted key; it names an experiment of conf/experiments."""
    return as_requested(flat(configuration.settings(given).model_dump(mode="json")))
