"""``fedshift costs METHOD... [EXPERIMENT] [KEY=VALUE ...]``."""

import logging
from collections.abc import Sequence

from fedshift.lab.grid.costs import paper_costs
from fedshift.lab.grid.costs.table import Table
from fedshift.lab.grid.sweep import grid
from fedshift_app.config import files, registry
from fedshift_app.config.arguments import LAUNCH_KEYS
from fedshift_app.config.resolving import FLAT_KEYS
from fedshift_app.run import console
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import as_found
from fedshift_core.spelling import meant

log = logging.getLogger("fedshift")
TAKEN = {"nodes", "dataset", "rounds", "seed", "data-dir", "set"}
#: Keys of ``fedshift run`` and of a sweep that say nothing about what a round costs.
REFUSED = {*LAUNCH_KEYS, *FLAT_KEYS, *grid.Options.model_fields} - TAKEN


def run(arguments: Sequence[str], paper: str = "") -> Table:
    """Measure methods in an experiment, one after another.

    Keys may hold several values, with commas, as those of a sweep; ``method.KEY`` is left out for a method without it.
    A method that cannot train is left out of the table, which names it.

    Args:
        arguments: Methods, an experiment, keys.
        paper: Id of a printed table of costs to compare with; empty for none.

    Raises:
        ConfigError: If an argument is wrong, or the table prints no costs.
        FedShiftError: If a configuration or the images are wrong, or no method can train; it names the last one.
    """
    printed = paper_costs.table_of(paper) if paper else None
    points, notes = grid.points(grid.read(as_sweep(arguments)))
    grid.check(points)
    if any(point.config.rounds == 0 for point in points):
        raise ConfigError("rounds=0 trains nothing, so there is nothing to measure; costs needs rounds=1 or more")
    from fedshift.lab.grid.costs import measuring  # torch: only where there is something to measure
    from fedshift_clients.training import machine

    console.set_up(aside=True)
    costs: list[measuring.Costs] = []
    failed: dict[str, FedShiftError] = {}
    for number, point in enumerate(points, 1):
        log.info("[%d/%d] %s", number, len(points), point.label)
        try:
            costs += measuring.measure(point.label, point.config, point.nodes)
        except FedShiftError as error:
            failed[point.label] = error
            log.warning("%s: left out: %s", point.label, error)
    if not costs:
        label, last = failed.popitem()
        raise type(last)(f"{label}: {last}")
    notes += [f"{label}: left out: {why}" for label, why in failed.items()]
    return Table(points[0].config, points[0].nodes, costs, machine.describe(), notes, printed, tuple(failed))


def as_sweep(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as those of a sweep over the methods."""
    keys = [argument for argument in arguments if "=" in argument]
    for key in (argument.partition("=")[0] for argument in keys):
        if key in REFUSED:
            raise ConfigError(
                f"{as_found(key)}: costs runs a few rounds in this process without scores and files; it accepts "
                "METHOD... [EXPERIMENT], nodes=N and the keys of a run's configuration"
            )
    known = files.names("experiments")
    methods = [word for word in arguments if word in registry.METHODS]
    experiments = [word for word in arguments if word not in (*keys, *methods)]
    for word in experiments:
        if not word.endswith((".yaml", ".yml")) and word not in known:
            raise ConfigError(
                f"{as_found(word)} is neither a method nor an experiment; `fedshift methods` and `fedshift "
                f"experiments` list them{meant(word, (*registry.METHODS, *known))}"
            )
    if not methods:
        raise ConfigError("costs: name one or more methods; `fedshift methods` lists them")
    if len(experiments) > 1:
        raise ConfigError(f"costs: one experiment at a time, found {' and '.join(map(as_found, experiments))}")
    return [*experiments, f"method={','.join(methods)}", *keys]
