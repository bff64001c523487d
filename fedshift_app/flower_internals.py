"""The few parts of Flower 1.41 that FedShift uses and Flower does not export; all in this one place."""

from typing import Any

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import InMemoryGrid


def is_simulation_grid(grid: Any) -> bool:
    """Tell whether this is the grid of Flower's simulation engine, whose nodes live in this process."""
    return isinstance(grid, InMemoryGrid)


def identify_process() -> None:
    """Give this process the identity without which no Message can be made outside Flower's runtimes."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def make_context(node_id: int, node_config: dict[str, Any], run_config: dict[str, Any]) -> Context:
    """Return the Context of one node (or of the server, ``node_id`` 0)."""
    return Context(run_id=1, node_id=node_id, node_config=node_config, state=RecordDict(), run_config=run_config)
