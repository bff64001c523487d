"""A run from its keys to its folder: what `fedshift run` and `fedshift.run` do alike."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedshift_core import said_once
from fedshift_core.env import COMMIT

if TYPE_CHECKING:
    from fedshift.run.launch.local_superlink import Begun
    from fedshift.run.launch.progress_table import Screen
    from fedshift.run.launch.runner import Resources
    from fedshift_app.config.sections import RunConfig


def run(
    flat: dict[str, Any],
    launch: dict[str, Any],
    screen: "Callable[[], AbstractContextManager[Screen]] | None" = None,
    note: Callable[[Path], None] | None = None,
) -> Path:
    """Run an experiment, or go on with a run, and return the run folder.

    Args:
        flat: The run-config keys (``config.arguments.parse_arguments``).
        launch: The keys that decide the launch.
        screen: Yields what shows the run; None for the table in a terminal and lines elsewhere.
        note: Is handed the run folder at the end, also where the run fails.

    Raises:
        FedShiftError: If anything is wrong, before anything starts; if the run fails.
    """
    from fedshift.run.launch import worker_count
    from fedshift_app.config import resolving
    from fedshift_app.run import naming
    from fedshift_app.run.versions import own_commit
    from fedshift_datasets.io import looks

    simulated, new = launch.get("engine", "simulation") != "inline", "resume" not in flat
    worker_count.check(launch)
    workers = worker_count.requested(launch)
    with ExitStack() as stack:
        stack.enter_context(said_once.shared())  # before the first process starts
        if not simulated and (workers or worker_count.cores()) > 1:
            from fedshift.run.launch import forks

            forks.begin([forks.CLIENT, *resolving.libraries(flat)])  # it imports torch while this process checks keys
        if new:  # a run that goes on is checked with its folder
            resolving.check_keys(flat)  # before this process imports torch, and before a SuperLink starts
        os.environ[COMMIT] = own_commit()
        stack.enter_context(looks.handed_on())  # nodes in this process take what the check has seen of the files
        if new:
            naming.check_free(Path(flat["output-dir"]), flat.get("name", ""))
        begun = stack.enter_context(_begun(flat, launch)) if new and simulated else None
        config, nodes = _checked(flat, launch)
        from fedshift.run.checking import check_data
        from fedshift.run.launch import progress_line, runner

        with (screen or progress_line.usual)() as shown:
            shown.note = note
            if not simulated:
                check_data(config, nodes)
                return runner.run_inline(flat, nodes, worker_count.workers(config, nodes, workers), shown)
            begun = begun or stack.enter_context(_begun(flat, launch))
            return runner.run_simulation(begun, flat, nodes, partial(_settled, config, nodes, launch, new), shown)


def _begun(flat: dict[str, Any], launch: dict[str, Any]) -> "AbstractContextManager[Begun]":
    """Start the SuperLink of a simulation, which imports Flower while this process imports torch and checks the run."""
    from fedshift.run.launch import local_superlink
    from fedshift_app.config import resolving

    return local_superlink.for_simulation(launch.get("cpus-per-client", 1), resolving.libraries(flat))


def _checked(flat: dict[str, Any], launch: dict[str, Any]) -> "tuple[RunConfig, int]":
    """Return the configuration of a run and its number of nodes, which fit the run that it goes on with."""
    from fedshift.run.launch import advice, runner
    from fedshift_app.run import naming, resuming

    config, past = resuming.resolve(flat, hold=False)
    if past is not None:
        naming.check_free(Path(flat["output-dir"]), flat.get("name", ""), past.path)
        resuming.check_engine(past, launch.get("engine", "simulation"))
    nodes = runner.num_nodes(config, launch.get("nodes", past and past.num_nodes))
    if past is not None:
        resuming.check_number(past, nodes)
        resuming.check_images(past, config)
    elif hint := advice.network_by_domain(config, nodes):
        typer.echo(hint, err=True)
    return config, nodes


def _settled(config: "RunConfig", nodes: int, launch: dict[str, Any], new: bool) -> "Resources":
    """Check the data of a simulation, and return the resources of its clients."""
    from fedshift.run.checking import check_data
    from fedshift.run.launch import advice, runner

    images = check_data(config, nodes)
    if new and (hint := advice.faster_inline(config, nodes, images)):
        typer.echo(hint, err=True)
    return runner.resources(config, nodes, launch)
