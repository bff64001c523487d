"""A run from its keys to its folder: what `fedshift run` and `fedshift.run` do alike."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedshift_core import said_once
from fedshift_core.env import COMMIT

if TYPE_CHECKING:
    from fedshift.run.launch.local_superlink import Begun
    from fedshift.run.launch.progress_table import Screen


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

    inline = launch.get("engine", "simulation") == "inline"
    worker_count.check(launch)
    workers = worker_count.requested(launch)
    with ExitStack() as stack:
        stack.enter_context(said_once.shared())  # before the first process starts
        if inline and (workers or worker_count.cores()) > 1:
            from fedshift.run.launch import forks

            forks.begin([forks.CLIENT, *resolving.libraries(flat)])  # it imports torch while this process checks keys
        if "resume" not in flat:  # a run that goes on is checked with its folder
            resolving.check_keys(flat)  # before this process imports torch, and before a SuperLink starts
        os.environ[COMMIT] = own_commit()
        stack.enter_context(looks.handed_on())  # nodes in this process take what the check has seen of the files
        new = "resume" not in flat  # a run that goes on is checked with its folder first
        if new:
            naming.check_free(Path(flat["output-dir"]), flat.get("name", ""))
        begun = _begin(flat, launch, stack) if new and not inline else None
        return _run(flat, launch, begun, stack, workers, screen, note)


def _begin(flat: dict[str, Any], launch: dict[str, Any], stack: ExitStack) -> "Begun":
    """Start the SuperLink of a simulation, which imports Flower while this process imports torch and checks the run."""
    from fedshift.run.launch import local_superlink
    from fedshift_app.config import resolving

    threads = launch.get("cpus-per-client", 1)
    return stack.enter_context(local_superlink.for_simulation(threads, resolving.libraries(flat)))


def _run(
    flat: dict[str, Any], launch: dict[str, Any], begun: "Begun | None", stack: ExitStack, workers: int | None,
    screen: "Callable[[], AbstractContextManager[Screen]] | None", note: Callable[[Path], None] | None,
) -> Path:  # fmt: skip
    """Check a run against its data and run it; without a SuperLink in this process."""
    from fedshift.run.checking import check_data
    from fedshift.run.launch import advice, progress_line, runner, worker_count
    from fedshift_app.run import naming, resuming

    config, past = resuming.resolve(flat, hold=False)
    if past is not None:
        naming.check_free(Path(flat["output-dir"]), flat.get("name", ""), past.path)
        resuming.check_engine(past, launch.get("engine", "simulation"))
    nodes = runner.num_nodes(config, launch.get("nodes", past and past.num_nodes))
    if past is not None:
        resuming.check_number(past, nodes)
        resuming.check_images(past, config)

    if past is None and (hint := advice.network_by_domain(config, nodes)):
        typer.echo(hint, err=True)

    def settled() -> runner.Resources:
        images = check_data(config, nodes)
        if past is None and (hint := advice.faster_inline(config, nodes, images)):
            typer.echo(hint, err=True)
        limits = (launch.get(key) for key in ("cpus-per-client", "gpus-per-client", "actors"))
        return runner.resources(config, nodes, *limits)

    with (screen or progress_line.usual)() as shown:
        if launch.get("engine", "simulation") == "inline":
            check_data(config, nodes)
            return runner.run_inline(flat, nodes, worker_count.workers(config, nodes, workers), shown, note)
        return runner.run_simulation(begun or _begin(flat, launch, stack), flat, nodes, settled, shown, note)
