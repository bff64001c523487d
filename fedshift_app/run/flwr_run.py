"""Checks the number of nodes that plain ``flwr run`` simulates, and gives the option that corrects it.

``fedshift run`` sets the number itself. Flower gives two nodes to a run that names no number.
"""

import time
from collections.abc import Mapping
from typing import Any

from flwr.serverapp import Grid

from fedshift_app.config import resolving as configuration
from fedshift_app.config.sections import RunConfig
from fedshift_core import json_text
from fedshift_core.errors import ConfigError
from fedshift_core.plural import plural

NODES_PER_DOMAIN = 2  # if the experiment accepts any number
ALL_HERE_SECONDS = 2.0  # Flower registers simulated nodes while it loads the ServerApp
POLL_SECONDS = 0.05


def usual_nodes(config: RunConfig) -> int:
    """Return the number of nodes that the experiment has by default."""
    domains = config.allocation.training_domains(config.dataset.domains)
    return config.allocation.num_nodes() or NODES_PER_DOMAIN * len(domains)


def look(config: RunConfig, grid: Grid, nodes_before: int | None) -> str:
    """Return the line about the number of nodes with which a run begins.

    Args:
        config: The run's configuration.
        grid: The grid of the simulation.
        nodes_before: The number of nodes of the run that is continued; None for a new run.

    Raises:
        ConfigError: With the option to give, if the experiment needs another number or no node would hold a domain.
    """
    fixed = nodes_before or config.allocation.num_nodes()
    usual = fixed or usual_nodes(config)
    least = fixed or max(2, usual // NODES_PER_DOMAIN)  # one of each domain
    reason = "as many as the run had before" if nodes_before else f"at least {least}"
    present = _present(grid, least)
    wants = f"{config.experiment} wants {plural(usual, 'node')} ({reason})"
    if present < least or (fixed and present != fixed):
        # Not the whole command: the app does not know from which folder it was started.
        option = f'--federation-config "num-supernodes={usual} client-resources-num-cpus=1"'
        raise ConfigError(
            f"{wants}, this federation has {present}; give the same `flwr run` once more, with", remedy=option
        )
    return f"{wants}; this federation has {present} (Flower's lines above about 10 and 2 nodes describe its default)"


def run_config_text(run_config: Mapping[str, Any]) -> str:
    """Return the flat keys that differ from their defaults, as ``--run-config`` takes them."""
    changed = {key: value for key, value in run_config.items() if value != configuration.FLAT_KEYS.get(key)}
    return " ".join(f"{key}={json_text.text_of(value)}" for key, value in changed.items())


def _present(grid: Grid, least: int) -> int:
    """Return the number of nodes, once there are enough or no more are expected."""
    deadline = time.monotonic() + ALL_HERE_SECONDS
    while True:
        present = len(set(grid.get_node_ids()))
        if present >= least or time.monotonic() > deadline:
            return present
        time.sleep(POLL_SECONDS)
