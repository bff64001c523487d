"""``fedshift run --dry-run``: nothing is trained, scored or written but images in their cache."""

from collections.abc import Mapping
from typing import Any

from fedshift_app.launch import runner, side_by_side
from fedshift_app.launch.checking import check_data
from fedshift_app.run import console, resuming


def told(flat: Mapping[str, Any], launch: Mapping[str, Any]) -> str:
    """Return what a run would be and take.

    Args:
        flat: Its run-config keys.
        launch: How it would be launched.

    Raises:
        FedShiftError: If it could not start.
    """
    side_by_side.check(launch)
    asked = side_by_side.asked(launch)
    config, past = resuming.resolve(flat, hold=False)
    nodes = runner.num_nodes(config, launch.get("nodes", past and past.num_nodes))
    check_data(config, nodes)
    from fedshift_app.costs import estimate  # torch: only once the rest is right

    console.set_up()
    if launch.get("engine", "simulation") == "inline":
        places = side_by_side.workers(config, nodes, asked)
    else:
        limits = (launch.get(key) for key in ("cpus-per-client", "gpus-per-client", "actors"))
        each = runner.resources(config, nodes, *limits)
        places = each.actors or side_by_side.places(each.cpus)
    return estimate.told(estimate.estimate(config, nodes, places))
