"""The parts of Flower that FedShift uses and Flower does not export."""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from fedshift_app.flower import sources
from fedshift_core.errors import FedShiftError
from fedshift_core.wire.names import RAISED
from fedshift_core.wire.packing import has_packed, packed, unpacked
from fedshift_core.wire.records import RecordError

log = logging.getLogger("fedshift")

MAKE = "flwr.app.message:make_message"
NODE_UNAVAILABLE = 3  # Flower's error code
NOTHING = Metadata(0, "", 0, 0, "", "", 0.0, 0.0, "system")


def is_simulation_grid(grid: Any) -> bool:
    """Return whether this is the grid of Flower's simulation engine, whose nodes live in this process."""
    return type(grid).__name__ == "InMemoryGrid"


def local_superlink_above() -> list[int]:
    """Return the ids of the local SuperLink above this process, and of its executor, where this run alone uses them.

    ``flwr run`` starts one for its ``FLWR_HOME`` and leaves it running. Any other SuperLink is its starter's to end.
    """
    above = psutil.Process().parents()
    log_file = str(Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "local-superlink" / "superlink.log")
    try:
        commands = [each.cmdline() for each in above]
        first = next((place for place, words in enumerate(commands) if log_file in words), -1)
        names = [{Path(word).name for word in words[:3]} for words in commands[: first + 1]]
        parts = [above[place] for place, found in enumerate(names) if found & {"flower-superlink", "flower-superexec"}]
        children = {child for part in parts for child in part.children() if child.status() != psutil.STATUS_ZOMBIE}
    except psutil.Error:  # it belongs to another user, or has ended
        return []
    return [part.pid for part in parts] if children <= {*above, psutil.Process()} else []


def engine_name(grid: Any) -> str:
    """Return the ``engine_name`` of a grid of FedShift's own engines; empty for Flower's grids."""
    return str(getattr(grid, "engine_name", ""))


def makes_messages() -> bool:
    """Tell whether an error can be put in the place of a message, as all corrections of a grid's replies do."""
    if problem := sources.other_source(MAKE):
        log.warning("the server reads replies as plain Flower does: %s", problem)
    return not problem


def notice_restarts(grid: Any, every: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
    """Let a message count as lost when its node was started anew after it was sent, instead of waiting for an answer.

    Flower reports a lost node only while it is not connected; a new process of it knows nothing of the message.

    Args:
        grid: Of a real deployment.
        every: Seconds between two looks.
        clock: Seconds of a clock that does not jump.
    """
    push, pull = grid.push_messages, grid.pull_messages
    pending: dict[str, tuple[Metadata, str]] = {}  # with the time at which the node became active
    looked = -math.inf

    def activated() -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in grid.get_nodes()}

    def pushed(messages: Iterable[Message]) -> Iterable[str]:
        messages, since = list(messages), activated()
        sent = [message.metadata for message in messages]
        ids = list(push(messages))
        pending.update((key, (each, since.get(each.dst_node_id, ""))) for key, each in zip(ids, sent, strict=False))
        return ids

    def pulled(message_ids: Iterable[str]) -> list[Message]:
        nonlocal looked
        replies = list(pull(asked := list(message_ids)))
        for reply in replies:
            pending.pop(reply.metadata.reply_to_message_id, None)
        if pending.keys() & asked and clock() - looked >= every:
            looked, now = clock(), activated()
            for key in pending.keys() & asked:
                sent, since = pending[key]
                if now.get(sent.dst_node_id, since) != since:
                    del pending[key]
                    replies.append(_started_anew(key, sent))
        return replies

    grid.push_messages, grid.pull_messages = pushed, pulled


def _started_anew(question: str, like: Metadata) -> Message:
    """Return the SuperLink's word for an answer to a message with this id, as Flower makes it."""
    metadata = Metadata(
        run_id=like.run_id,
        message_id="",
        src_node_id=like.src_node_id,
        dst_node_id=like.src_node_id,
        reply_to_message_id=question,
        group_id=like.group_id,
        message_type=like.message_type,
        created_at=like.created_at,
        ttl=like.ttl,
    )
    return _made(metadata, Error(NODE_UNAVAILABLE, "the node was started anew"))


def _made(metadata: Metadata, error: Error) -> Message:
    message: Message = sources.found(MAKE)(metadata=metadata, error=error)
    return message


def watch_replies(grid: Any, on_replies: Callable[[list[int]], None]) -> None:
    """Call ``on_replies`` with the node ids of replies as they come in, not only after the last one.

    ``send_and_receive`` of Flower's grids polls with ``pull_messages``. A grid that does not has an attribute
    ``on_replies``, which it calls itself.
    """
    if hasattr(grid, "on_replies"):
        grid.on_replies = on_replies
        return
    pull = grid.pull_messages

    def watched(message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(pull(message_ids))
        on_replies([reply.metadata.src_node_id for reply in replies])
        return replies

    grid.pull_messages = watched


def pack_messages(grid: Grid) -> None:
    """Pack the arrays of messages that pass a real deployment's grid, and unpack those of replies.

    Unpacked, each array would be two objects and each object several requests (:mod:`fedshift_core.wire.packing`). A
    reply that cannot be unpacked is an error of its node.
    """
    push, pull = grid.push_messages, grid.pull_messages

    def pushed(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        contents = [message.content for message in messages]
        packed_records: dict[int, bytes] = {}  # by record: one that goes to several nodes is packed once
        for message, content in zip(messages, contents, strict=True):
            message.content = packed(content, packed_records)
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
        return _made(reply.metadata, Error(code=RAISED, reason=str(error)))
    return reply


def keep_out_malformed_replies() -> None:
    """Drop replies of SuperNodes that are not messages; Flower's grid would raise, which ends the run.

    The node then counts as one that did not answer.
    """
    grid: Any = sys.modules.get(sources.GRID)  # only in a real deployment
    inflate = getattr(grid, "inflate_object_from_contents", None)
    if grid is not None and inflate is None:
        log.warning("a reply that is no message ends the run: %s", sources.other_source(sources.GRID))
    elif inflate is not None and not hasattr(inflate, "guarded"):
        grid.inflate_object_from_contents = dropping_malformed(inflate)


def dropping_malformed(inflate: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's reader of messages, with an empty answer in place of a malformed message."""

    def read(message_id: str, contents: dict[str, bytes]) -> Message:
        try:
            message = inflate(message_id, contents)
            if isinstance(message, Message):
                return message
            problem = f"it is {type(message).__name__}"
        except Exception as error:  # any type: the node chooses the bytes
            problem = type(error).__name__
        log.warning("a reply that is not a Flower message was dropped (%s)", problem, extra={"event": "malformed"})
        return _made(NOTHING, Error(0, "malformed"))

    read.guarded = True  # type: ignore[attr-defined]
    return read


def without_colours() -> None:
    """Remove the colours from Flower's log of this process."""
    for handler in logging.getLogger("flwr").handlers:
        vars(handler)["colored"] = False


def identify_process() -> None:
    """Give this process an identity, which a Message of Flower 1.41 and 1.42 needs outside Flower's runtimes."""
    if (identity := sources.found("flwr.supercore.task_identity:TaskIdentity")) is not None:
        identity.run_id = identity.node_id = identity.task_id = 1


def make_context(node_id: int, node_config: dict[str, Any], run_config: dict[str, Any]) -> Context:
    """Return the Context of one node (or of the server, ``node_id`` 0)."""
    return Context(run_id=1, node_id=node_id, node_config=node_config, state=RecordDict(), run_config=run_config)


def guard_superlink(guard: Callable[..., Any]) -> None:
    """Put an ASGI middleware around all APIs of the SuperLink that this process will run.

    Raises:
        FedShiftError: If Flower would ignore the middleware.
    """
    if problem := sources.other_source("flwr.superlink.extensions", "flwr.superlink.main"):
        raise FedShiftError(f"the Control API would be open to the network: {problem}")
    from flwr.superlink import extensions, main
    from starlette.middleware import Middleware

    extend = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(guard), *extend())
    outermost = next(iter(main._get_middleware()), None)
    if outermost is None or outermost.cls is not guard:
        raise FedShiftError(
            "this version of Flower accepts no middleware: its Control API would be open to the network"
        )


def wait_for_database() -> None:
    """Let a request wait for a minute while others write to the SuperLink's database.

    Flower waits 5 s and answers 500, at which the process that starts ServerApps ends.
    """
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    # At each use of a connection: Flower sets its own seconds when it opens one.
    event.listen(Pool, "checkout", lambda connection, *_: connection.execute("PRAGMA busy_timeout = 60000"))


def run_superlink(options: list[str], guard: Callable[..., Any]) -> None:
    """Run ``flower-superlink`` in this process, behind :func:`guard_superlink`."""
    guard_superlink(guard)
    wait_for_database()
    sys.argv = ["flower-superlink", *options]
    sources.program("flower-superlink")()
