"""A simulation that plain ``flwr run`` has started: how many nodes the experiment wants, and the command for them.

``fedshift run`` works the number out. Flower gives two nodes to a run that names no other number.
"""

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any

from flwr.serverapp import Grid

from fedshift_app.config import resolving as configuration
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError

NODES_PER_DOMAIN = 2  # where the experiment takes any number
ALL_HERE_SECONDS = 2.0  # Flower registers simulated nodes while the ServerApp is loaded
POLL_SECONDS = 0.05


def usual_nodes(config: RunConfig) -> int:
    """Return how many nodes the experiment has unless another number is asked for."""
    return config.allocation.num_nodes() or NODES_PER_DOMAIN * len(_domains(config))


def least_nodes(config: RunConfig) -> int:
    """Return with how many nodes each domain that is trained on has one."""
    return config.allocation.num_nodes() or max(2, len(_domains(config)))


def look(config: RunConfig, run_config: Mapping[str, Any], grid: Grid, before: int | None) -> str:
    """Return what is said of the number of nodes in the first line of a run.

    Args:
        config: The run's.
        run_config: The flat keys that were given.
        grid: Of the simulation.
        before: How many nodes the run had that is continued; None for a new one.

    Raises:
        ConfigError: If the experiment wants another number, or a domain would be held by nobody; with the command.
    """
    fixed = before or config.allocation.num_nodes()
    least, usual = (fixed, fixed) if fixed else (least_nodes(config), usual_nodes(config))
    here = _present(grid, least)
    wants = f"{config.experiment} wants {usual} nodes ({_dealt(config, usual, fixed, before)})"
    if here < least or (fixed and here != fixed):
        raise ConfigError(f"{wants}, this federation has {here}; run", remedy=command(run_config, usual))
    return f"{wants}; this federation has {here} (Flower's lines above, of 10 and 2, are about its default)"


def command(run_config: Mapping[str, Any], nodes: int) -> str:
    """Return the plain command of a run with so many nodes."""
    told = run_config_told(run_config)
    federation = f'--federation-config "num-supernodes={nodes} client-resources-num-cpus=1"'
    return f"flwr run . --stream {federation}" + (f" --run-config {shlex.quote(told)}" if told else "")


def run_config_told(run_config: Mapping[str, Any]) -> str:
    """Return the flat keys that are not as they are by themselves, as ``--run-config`` takes them."""
    changed = {key: value for key, value in run_config.items() if value != configuration.FLAT_KEYS.get(key)}
    return " ".join(f"{key}={json.dumps(value)}" for key, value in changed.items())


def _domains(config: RunConfig) -> tuple[str, ...]:
    return config.allocation.training_domains(config.dataset.domains)


def _dealt(config: RunConfig, usual: int, fixed: int | None, before: int | None) -> str:
    """Say why it is that number."""
    if before:
        return "as many as the run had before"
    if not fixed:
        return f"two for each of {', '.join(_domains(config))}; one for each will do"
    dealt = config.allocation.deal(config.dataset.domains, usual, config.seed)
    return ", ".join(f"{domain} {dealt.count(domain)}" for domain in _domains(config))


def _present(grid: Grid, least: int) -> int:
    """Return the number of nodes, once there are enough or no more are to be expected."""
    deadline = time.monotonic() + ALL_HERE_SECONDS
    while True:
        here = len(set(grid.get_node_ids()))
        if here >= least or time.monotonic() > deadline:
            return here
        time.sleep(POLL_SECONDS)
