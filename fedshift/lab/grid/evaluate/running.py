"""Runs the scoring of a model: in this process, in Flower's simulation, or on the real nodes of a SuperLink."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.lab.grid.evaluate.composing import Composed
from fedshift.lab.tables.results.places import held
from fedshift.run.checking import check_data, check_model
from fedshift.run.launch import local_superlink, progress_line, progress_table, runner, site_status, worker_count
from fedshift_app.config import resolving
from fedshift_app.run import build as run_build
from fedshift_app.run import status
from fedshift_core.env import TELEMETRY
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.limits import shown
from fedshift_core.wire.names import DEPLOYMENT


def check_launch(launch: Mapping[str, Any], site: str) -> None:
    """Refuse keys of a simulation where real nodes are asked, and a SuperLink that does not answer.

    Raises:
        ConfigError: With the key.
        FederationError: If ``flwr`` does not reach the SuperLink.
    """
    worker_count.check(launch)
    if not site:
        return
    for key in launch:
        if key != "report":
            raise ConfigError(f"{key}: --site asks the real nodes of a SuperLink; the key is for simulations")
    site_status.read(site)


def check(composed: Composed, launch: Mapping[str, Any], site: str) -> int:
    """Check that a model can be scored so, and return the number of simulated nodes; 0 with ``site``.

    Raises:
        FedShiftError: If weights, images or nodes do not go together.
    """
    if site:
        run_build.prepare(composed.config, DEPLOYMENT)
        return 0
    nodes = runner.num_nodes(composed.config, launch.get("nodes") or composed.usual_nodes)
    check_data(composed.config, nodes)
    check_model(composed.config)
    return nodes


def run(composed: Composed, nodes: int, launch: Mapping[str, Any], output: Path, site: str) -> Path:
    """Score a model and return the run folder, which is in ``output``.

    Raises:
        FedShiftError: If the nodes cannot be asked.
    """
    flat = {"experiment": str(composed.file), "output-dir": str(output)}
    with progress_line.usual() as screen:
        if site:
            return _on_site(site, flat, output, screen)
        if launch.get("engine", "simulation") == "inline":
            workers = worker_count.workers(composed.config, nodes, worker_count.requested(launch))
            return runner.run_inline(flat, nodes, workers, screen)
        limits = (launch.get(key) for key in ("cpus-per-client", "gpus-per-client", "actors"))
        each = runner.resources(composed.config, nodes, *limits)
        with local_superlink.for_simulation(launch.get("cpus-per-client", 1), resolving.libraries(flat)) as begun:
            return runner.run_simulation(begun, flat, nodes, lambda: each, screen)


def _on_site(site: str, flat: Mapping[str, Any], output: Path, screen: progress_table.Screen) -> Path:
    """Submit a run to a SuperLink that ``flwr`` knows by name; its ServerApp writes into ``output`` on this machine.

    Raises:
        FederationError: If it did not start, or failed.
    """
    before = set(held(output))
    with local_superlink.temporary_folder() as home:
        command = local_superlink.run_command(home, site, flat)
        env = {TELEMETRY: "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **os.environ}
        screen.call(command, local_superlink.empty_folder(home), env)
    folders = [folder for folder in held(output) if folder not in before]
    if not folders:
        raise FederationError(
            f"--site {site}: the run left no folder in {shown(output)}: it did not start, or the SuperLink is on "
            "another machine, where this command belongs"
        )
    ended = status.read(folders[0])
    if ended.state not in (status.COMPLETED, status.DEGRADED):
        raise FederationError(f"--site {site}: {ended.error or ended.state}", remedy=f"see {folders[0]}")
    return folders[0]
