"""The number of worker processes and parallel runs of the inline engine."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_CORES, as_found

#: Environment variable: how many worker processes an inline run has unless ``workers=N`` says it.
WORKERS = "FEDSHIFT_WORKERS"


def requested(launch: Mapping[str, Any]) -> int | None:
    """Return the requested number of workers, by key or environment; None for as many as fit.

    Raises:
        ConfigError: If the environment names no such number.
    """
    given, named = launch.get("workers"), os.environ.get(WORKERS, "")
    if given is not None or not named:
        return given
    if not named.isdecimal() or not 1 <= int(named) <= MOST_CORES:
        raise ConfigError(f"{WORKERS}: expected a whole number from 1 to {MOST_CORES}, found {as_found(named)}")
    return int(named)


def check(launch: Mapping[str, Any]) -> None:
    """Refuse ``workers`` for an engine that has none.

    Raises:
        ConfigError: With the key to use instead.
    """
    if "workers" in launch and launch.get("engine", "simulation") != "inline":
        raise ConfigError(f"workers={launch['workers']} needs engine=inline; for Flower's simulation use actors=N")


def workers(config: RunConfig, nodes: int, requested_workers: int | None) -> int:
    """Return the number of worker processes of an inline run, at most one per node.

    The default is one per core, or one per as many cores as a client has threads. With a GPU it is one: several
    would share its memory.
    """
    if requested_workers is None:
        requested_workers = places(config.train.threads or 1)
    return min(requested_workers, nodes)


def places(cores_each: int) -> int:
    """Return how many processes with so many cores each fit this machine; one if it has a GPU."""
    import torch

    return 1 if torch.cuda.is_available() else max(1, cores() // cores_each)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
