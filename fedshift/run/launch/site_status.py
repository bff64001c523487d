"""The state of a SuperLink's SuperNodes and runs, from Flower's commands: ``fedshift status --site``."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from fedshift.run.launch import processes
from fedshift_core.errors import FederationError
from fedshift_core.limits import plain
from fedshift_core.plural import plural

TIMEOUT_SECONDS = 60


def read(site: str) -> dict[str, Any]:
    """Ask the SuperLink that ``flwr`` knows by this name.

    Raises:
        FederationError: If ``flwr`` has no such SuperLink or gets no answer.
    """
    nodes = _ask("supernode", "list", site)["nodes"]
    return {"site": site, "supernodes": nodes, "runs": _ask("list", site)["runs"]}


def goes_on(report: Mapping[str, Any]) -> bool:
    """Tell whether a run has not ended."""
    return any(not str(run["status"]).startswith("finished") for run in report["runs"])


def block(report: Mapping[str, Any]) -> str:
    """Return the report as text, with a line per SuperNode and per run."""
    nodes, runs = report["supernodes"], report["runs"]
    online = sum(node["status"] == "online" for node in nodes)
    return "\n".join(
        [
            f"{report['site']}: {online} of {plural(len(nodes), 'SuperNode')} online, {plural(len(runs), 'run')}",
            *(f"  supernode {node['node-id']}  {node['status']}" for node in nodes),
            *(f"  run {run['run-id']}  {run['status']}  {run['elapsed']}" for run in runs),
        ]
    )


def _ask(*arguments: str) -> dict[str, Any]:
    command = f"flwr {' '.join(arguments)}"
    try:
        ended = subprocess.run(
            [processes.command("flwr"), *arguments, "--format", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        answer: dict[str, Any] = dict(json.loads(ended.stdout))
    except subprocess.TimeoutExpired:
        raise FederationError(f"{command}: no answer within {TIMEOUT_SECONDS} s") from None
    except (ValueError, TypeError):
        answer = {"error-message": ended.stderr or ended.stdout}
    if not answer.get("success"):
        raise FederationError(f"{command}: {plain(str(answer.get('error-message', answer)).strip())}")
    return answer
