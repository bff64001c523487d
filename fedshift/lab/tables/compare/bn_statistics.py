"""The reason why a finished run cannot be scored with one kind of BatchNorm statistics (``evaluate.bn``)."""

from collections.abc import Sequence
from functools import cache

from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import BN_ORDER
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.limits import some
from fedshift_core.wire.names import AVERAGED, OWN, RETAKEN, SIMULATION

ALL = "bn"  # the score that shows all kinds
MOST_NAMED = 2  # runs of a note


def why_not(run: Run, kind: str) -> str:
    """Return why a run cannot be scored with a kind of BatchNorm statistics; empty if it can."""
    config = run.resolved
    if kind == AVERAGED:
        return ""
    if config.model.bn in ("freeze", "group"):
        return f"model.bn={config.model.bn} has no statistics to take"
    for name in (config.model.name, *config.model.per_node):
        if _without_batchnorm(name):
            return f"the network {name} has no BatchNorm"
    alike = config.model_copy(update={"seed": 0, "evaluate": type(config.evaluate)()})  # the same for all seeds
    if config.model.freeze in ("encoder", "norm") and _all_frozen(alike.model_dump_json()):
        return f"model.freeze={config.model.freeze} freezes all its BatchNorm"
    held = config.allocation.held_domains(config.dataset.domains)
    if kind == OWN and run.results.domains.keys().isdisjoint(held):
        return "nobody has training images of a domain that no node holds"
    if kind == RETAKEN and config.privacy.name != "none":
        return f"privacy.name={config.privacy.name} lets no statistics leave a node"
    if kind == RETAKEN and not _statistics_travel(alike.model_dump_json()):
        return f"with {run.results.method} and model.bn={config.model.bn} BatchNorm stays on the nodes"
    return ""


def other_orders(runs: Sequence[Run]) -> list[str]:
    """Return a note where runs took own or re-estimated statistics of images in different orders; else nothing."""
    by_order: dict[str, list[str]] = {}
    for run in (part for joined in runs for part in joined.singles):
        evaluate = run.resolved.evaluate
        if {OWN, RETAKEN} & {*evaluate.bn} and not why_not(run, OWN):
            by_order.setdefault(evaluate.bn_order, []).append(run.name)
    if len(by_order) < 2:
        return []
    texts = [f"{order} ({some(names, MOST_NAMED)})" for order, names in sorted(by_order.items())]
    return [f"own and re-estimated statistics do not compare: {BN_ORDER} is {' and '.join(texts)}"]


def _without_batchnorm(name: str) -> bool:
    """Return whether a network has no BatchNorm; false if its code is not installed."""
    try:
        return not NETWORKS.named(name, "model.name").batchnorm
    except ConfigError:
        return False


@cache
def _all_frozen(settings: str) -> bool:
    """Return whether no BatchNorm of a run's model is free; false if this version cannot determine it.

    Args:
        settings: The configuration of a run, as JSON.
    """
    from fedshift_app.run import initial_model
    from fedshift_clients.training import statistics  # these import torch

    try:
        return not statistics.free_layers(initial_model.plain(RunConfig.model_validate_json(settings)).model)
    except ConfigError:
        return False


@cache
def _statistics_travel(settings: str) -> bool:
    """Return whether nodes send BatchNorm statistics; true if this version cannot determine it.

    Args:
        settings: The configuration of a run, as JSON.
    """
    from fedshift_app.run import build as run_build  # imports Flower: only when a run lacks a kind of statistics
    from fedshift_app.run import initial_model

    config = RunConfig.model_validate_json(settings)
    try:
        _, federation = run_build.prepare(config, SIMULATION, initial_model.plain(config))
    except ConfigError:
        return True
    return bool(federation.model.batchnorms)
