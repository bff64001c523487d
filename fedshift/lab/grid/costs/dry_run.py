"""``fedshift run --dry-run``: trains, scores and writes nothing, except images into their cache."""

from collections.abc import Mapping
from typing import Any

from fedshift.run.checking import check_data
from fedshift.run.launch import runner, worker_count
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import console, resuming


def summary(flat: Mapping[str, Any], launch: Mapping[str, Any]) -> str:
    """Return the configuration of a run and an estimate of its time and memory.

    Args:
        flat: Its run-config keys.
        launch: Its launch keys.

    Raises:
        FedShiftError: If it could not start.
    """
    worker_count.check(launch)
    requested = worker_count.requested(launch)
    config, past = resuming.resolve(flat, hold=False)
    nodes = runner.num_nodes(config, launch.get("nodes", past and past.num_nodes))
    check_data(config, nodes)
    from fedshift.lab.grid.costs import estimate  # torch: only after all other checks

    console.set_up()
    return estimate.summary(estimate.estimate(config, nodes, places(config, nodes, launch, requested)))


def places(config: RunConfig, nodes: int, launch: Mapping[str, Any], requested: int | None) -> int:
    """Return how many clients of a run train at a time, with so many workers of the inline engine (None: all cores)."""
    if launch.get("engine", "simulation") == "inline":
        return worker_count.workers(config, nodes, requested)
    limits = (launch.get(key) for key in ("cpus-per-client", "gpus-per-client", "actors"))
    each = runner.resources(config, nodes, *limits)
    return each.actors or worker_count.places(each.cpus)
