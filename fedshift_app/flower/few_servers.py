"""Starts Ray without those of its servers that a simulation on one machine does not use.

A dashboard's server, a monitor for clusters that grow, and two agents (metrics, and environments that are made for a
job) take half a second of a processor each, and Ray waits for three of them before its first worker. Of an agent
remains what Ray expects: a process that lives as long as its node, and a file for each port.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from fedshift_core.env import RAY_WORKER

RELEASES = ("2.55.",)  # of Ray, whose start was read; Flower 1.41 and 1.42 ask for this one
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
NO_PORT = -1  # Ray's own number for a service that is not offered
#: Variables by which a user's jobs get environments, for which Ray needs its agents.
ENVIRONMENTS = ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR")


def needs_all(options: Mapping[str, Any]) -> bool:
    """Tell whether Ray has to start all its servers with these arguments of ``ray.init``."""
    import ray

    return (
        sys.platform != "linux"
        or not ray.__version__.startswith(RELEASES)
        or bool(options.get("include_dashboard") or options.get("runtime_env"))
        or any(os.environ.get(name) for name in ENVIRONMENTS)
    )


@contextmanager
def few_servers(options: Mapping[str, Any]) -> Iterator[None]:
    """Let ``ray.init`` start only what is used; with ``RAY_WORKER`` its workers are that program."""
    if needs_all(options):
        yield
        return
    from ray._private import parameter, services

    program = os.environ.get(RAY_WORKER)
    chosen = {"no_monitor": True, **({"worker_path": program} if program else {})}
    make, start = parameter.RayParams, services.start_ray_process

    def without_agents(command: list[str], process_type: str, *given: Any, **options: Any) -> Any:
        command = with_placeholders(command) if process_type == "raylet" else command
        return start(command, process_type, *given, **options)

    with ExitStack() as stack:
        for module, name, ours in (
            (services, "start_api_server", lambda *_given, **_options: (None, None)),
            (services, "start_ray_process", without_agents),
            (parameter, "RayParams", lambda **options: make(**(options | chosen))),
        ):
            stack.enter_context(patch.object(module, name, ours))
        yield


def with_placeholders(command: list[str]) -> list[str]:
    """Return a raylet's command with placeholders as agents, and say that these have no ports."""
    import subprocess

    from ray._raylet import persist_port  # type: ignore[attr-defined]

    options = dict(part.removeprefix("--").split("=", 1) for part in command if part.startswith("--") and "=" in part)
    for name in PORTS:
        persist_port(options["session_dir"], options["node_id"], name, NO_PORT)
    waits = f"while kill -0 $PPID && kill -0 {os.getpid()}; do sleep 1; done 2>/dev/null"
    placeholder = subprocess.list2cmdline(["/bin/sh", "-c", waits])
    return [f"{name}={placeholder}" if (name := part.partition("=")[0]) in AGENTS else part for part in command]
