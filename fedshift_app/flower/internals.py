"""The few parts of Flower that FedShift uses and Flower does not export; all in this one place."""

import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedshift_core.errors import FedShiftError
from fedshift_core.wire.names import RAISED
from fedshift_core.wire.packing import has_packed, packed, unpacked
from fedshift_core.wire.records import RecordError

log = logging.getLogger("fedshift")

HTTP_GRID = "flwr.superlink.grid.http_grid"
IN_MEMORY_GRID = "flwr.superlink.grid.inmemory_grid"  # it brings a database with it, which takes a second to import


def is_simulation_grid(grid: Any) -> bool:
    """Tell whether this is the grid of Flower's simulation engine, whose nodes live in this process."""
    module = sys.modules.get(IN_MEMORY_GRID)
    return module is not None and isinstance(grid, module.InMemoryGrid)


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


def engine_name(grid: Any) -> str:
    """Return the name that a grid of FedShift's own engines gives itself (``engine_name``); empty for Flower's."""
    return str(getattr(grid, "engine_name", ""))


def watch_replies(grid: Any, heard: Callable[[list[int]], None]) -> None:
    """Tell ``heard`` the node ids of all replies as they come in, not only when the last one is there.

    ``send_and_receive`` of Flower's grids asks for replies with ``pull_messages`` again and again. A grid that has no
    use for it has an attribute ``heard``, which it calls itself.
    """
    if hasattr(grid, "heard"):
        grid.heard = heard
        return
    pull = grid.pull_messages

    def watched(message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(pull(message_ids))
        heard([reply.metadata.src_node_id for reply in replies])
        return replies

    grid.pull_messages = watched


def pack_messages(grid: Grid) -> None:
    """Pack the arrays of what goes through a real deployment's grid, and unpack those of replies.

    Each would be two objects, and each object some requests (:mod:`fedshift_core.wire.packing`). A reply whose packed
    arrays are none is an error of its node.
    """
    push, pull = grid.push_messages, grid.pull_messages

    def pushed(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        contents = [message.content for message in messages]
        once: dict[int, bytes] = {}  # a record that goes to several nodes is packed once
        for message, content in zip(messages, contents, strict=True):
            message.content = packed(content, once)
        try:
            return push(messages)
        finally:
            for message, content in zip(messages, contents, strict=True):
                message.content = content

    def pulled(message_ids: Iterable[str]) -> Iterable[Message]:
        return [_unpacked(reply) for reply in pull(message_ids)]

    grid.push_messages = pushed  # type: ignore[method-assign]
    grid.pull_messages = pulled  # type: ignore[method-assign]


def _unpacked(reply: Message) -> Message:
    if not (reply.has_content() and has_packed(reply.content)):
        return reply
    try:
        reply.content = unpacked(reply.content)
    except RecordError as error:
        return make_message(metadata=reply.metadata, error=Error(code=RAISED, reason=str(error)))
    return reply


def keep_out_malformed_replies() -> None:
    """Let a reply of a SuperNode that is no message come to nothing; Flower's grid would raise, which ends the run.

    The node is then one that did not answer.
    """
    grid = sys.modules.get(HTTP_GRID)  # of a real deployment only
    if grid is not None and not getattr(grid.inflate_object_from_contents, "guarded", False):
        grid.inflate_object_from_contents = whole_or_nothing(grid.inflate_object_from_contents)  # type: ignore[attr-defined]


def whole_or_nothing(inflate: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's reading of a message, with an answer to nothing in the place of what is malformed."""

    def read(message_id: str, contents: dict[str, bytes]) -> Message:
        try:
            found = inflate(message_id, contents)
            if isinstance(found, Message):
                return found
            problem = f"it is {type(found).__name__}"
        except Exception as error:  # any: its bytes are the node's own
            problem = type(error).__name__
        log.warning("a reply that is no message of Flower's was dropped (%s)", problem, extra={"event": "malformed"})
        nothing = Metadata(
            run_id=0, message_id="", src_node_id=0, dst_node_id=0, reply_to_message_id="", group_id="", created_at=0.0,
            ttl=0.0, message_type="system",
        )  # fmt: skip
        return make_message(metadata=nothing, error=Error(code=0, reason="malformed"))

    read.guarded = True  # type: ignore[attr-defined]
    return read


def without_colours() -> None:
    """Let Flower's log of this process have no colours, which it has wherever it goes."""
    from flwr.common.logger import update_console_handler

    update_console_handler(colored=False)


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

    from fedshift_app.flower import middlewares

    guard_superlink(guard)
    middlewares.narrow()
    os.environ["PATH"] = path_with_flower()
    sys.argv = ["flower-superlink", *options]
    flower_superlink()
