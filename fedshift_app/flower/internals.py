"""The few parts of Flower 1.41 that FedShift uses and Flower does not export; all in this one place."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import InMemoryGrid

from fedshift_wire.errors import FedShiftError


def is_simulation_grid(grid: Any) -> bool:
    """Tell whether this is the grid of Flower's simulation engine, whose nodes live in this process."""
    return isinstance(grid, InMemoryGrid)


def superlinks_above() -> list[int]:
    """Return the ids of the SuperLink that started this process, and of what that started on the way here."""
    return [process.pid for process in psutil.Process().parents() if is_superlink(process)]


def is_superlink(process: psutil.Process) -> bool:
    """Tell whether a process is a SuperLink, or the executor of its apps, which stays with it."""
    try:
        names = {Path(word).name for word in process.cmdline()[:3]}
    except psutil.Error:  # another user's, or gone already
        return False
    return bool(names & {"flower-superlink", "flower-superexec"})


def watch_replies(grid: Grid, heard: Callable[[list[int]], None]) -> None:
    """Tell ``heard`` the node ids of all replies as they come in, not only when the last one is there.

    ``send_and_receive`` of Flower's grids asks for replies with ``pull_messages`` again and again.
    """
    pull = grid.pull_messages

    def watched(message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(pull(message_ids))
        heard([reply.metadata.src_node_id for reply in replies])
        return replies

    grid.pull_messages = watched  # type: ignore[method-assign]


def identify_process() -> None:
    """Give this process the identity without which no Message can be made outside Flower's runtimes."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def make_context(node_id: int, node_config: dict[str, Any], run_config: dict[str, Any]) -> Context:
    """Return the Context of one node (or of the server, ``node_id`` 0)."""
    return Context(run_id=1, node_id=node_id, node_config=node_config, state=RecordDict(), run_config=run_config)


def guard_superlink(guard: Callable[..., Any]) -> None:
    """Put an ASGI middleware around all APIs of the SuperLink that this process is going to run.

    Raises:
        FedShiftError: If Flower would leave the middleware out.
    """
    from flwr.superlink import extensions, main
    from starlette.middleware import Middleware

    extend = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(guard), *extend())
    outermost = next(iter(main._get_middleware()), None)
    if outermost is None or outermost.cls is not guard:
        raise FedShiftError("this version of Flower takes no middleware: its Control API would be open to the network")


def path_with_flower() -> str:
    """Return PATH with the commands of this environment first; Flower looks for its own ones there."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def run_superlink(options: list[str], guard: Callable[..., Any]) -> None:
    """Run ``flower-superlink`` in this process, behind :func:`guard_superlink`."""
    from flwr.superlink.cli.flower_superlink import flower_superlink

    guard_superlink(guard)
    os.environ["PATH"] = path_with_flower()
    sys.argv = ["flower-superlink", *options]
    flower_superlink()
