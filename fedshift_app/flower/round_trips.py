"""Spares round trips between a SuperNode and its SuperLink, which count where these are far apart.

- A connection stays open for a minute in which nothing passes it. By default both ends close it after five seconds, and
  a new one takes three round trips with TLS: after each training that is longer, and for each request at the same time.
- Four parts of a message travel at once, as many as it usually has. Flower takes two, and one on a machine of one core.
- A message's arrival is confirmed while the node works on it (:class:`Confirmations`).
- A part that the message before had is not asked for again (:class:`LastParts`): the weights that are scored after a
  round are those from which the next one starts.

A plain SuperNode or SuperLink at the other end changes nothing but the time.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedshift_app.flower.patches import Other, missing
from fedshift_app.flower.versions import unread

log = logging.getLogger("fedshift")

IDLE_NODE, IDLE_SUPERLINK = 60.0, 75  # seconds; a SuperLink closes last, so that no request meets a closing connection
AT_ONCE = 4  # parts of a message
CLIENT, PARTS = "flwr.supercore.protobuf.client", "flwr.supercore.inflatable.inflatable_utils"
SUPERLINK = "flwr.superlink.cli.flower_superlink"
#: Source text that each function or class must contain before it is changed.
SHAPES = {
    (CLIENT, "ProtobufClient"): ("self._client = httpx.Client(\n            verify=verify,",),
    (PARTS, "get_num_workers"): ("return min(max_concurrent, num_cores)",),
    (SUPERLINK, "_run_superlink_http_api"): ("    uvicorn.run(\n        app=fastapi_app,",),
}
MOST_BYTES = 256_000_000  # of parts that are kept
MOST_CONNECTIONS = 100  # as httpx has it by itself


def unknown(*modules: str) -> str:
    """Return the reason to leave these Flower modules unchanged; empty if they are as expected."""
    from flwr.supercore.version import package_version

    if problem := unread(package_version):
        return problem
    lacks = missing(SHAPES, *modules)
    return "" if lacks is None else f"{lacks[0]} is not what it was"


def spare_node() -> None:
    """Let this process's SuperNode keep its connections open, and move several parts at once."""
    if problem := unknown(CLIENT, PARTS):
        log.info("this SuperNode's connections are as in plain Flower: %s", problem, extra={"event": "plain"})
        return
    import httpx

    limits = httpx.Limits(max_connections=MOST_CONNECTIONS, keepalive_expiry=IDLE_NODE)
    client: Any = import_module(CLIENT)
    client.httpx = Other(httpx, Client=lambda **options: httpx.Client(**{"limits": limits} | options))
    parts: Any = import_module(PARTS)
    parts.get_num_workers = lambda _most: AT_ONCE


def spare_superlink() -> None:
    """Let the SuperLink of this process keep idle connections open, and have as many as the system allows.

    A node has up to six, and systems often start a process with 1,024 open files at most, which it may raise.
    """
    if problem := unknown(SUPERLINK):
        log.info("this SuperLink's connections are as in plain Flower: %s", problem, extra={"event": "plain"})
        return
    with contextlib.suppress(ImportError, ValueError, OSError):  # another system, or it does not allow more
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    module: Any = import_module(SUPERLINK)
    run = module.uvicorn.run
    module.uvicorn = Other(
        module.uvicorn, run=lambda **options: run(**{"timeout_keep_alive": IDLE_SUPERLINK} | options)
    )


class LastParts:
    """Keeps the parts of the last message of a node, so that the next one need not bring them again.

    A part's name is the SHA-256 of its content.

    Args:
        most: Bytes that are kept of a message; what is above is asked for again.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: dict[tuple[int, str], bytes] = {}
        self._arriving: dict[tuple[int, str], bytes] = {}

    def before_pull(self, pull: Callable[[int, str], bytes]) -> Callable[[int, str], bytes]:
        """Return a function that asks ``pull`` for those parts of the next message, if one comes, that are not kept.

        Args:
            pull: Returns a part, given a run and the part's name.
        """

        def pulled(run_id: int, name: str) -> bytes:
            content = self._kept.get((run_id, name))
            if content is None:
                content = pull(run_id, name)
            with self._lock:
                if sum(map(len, self._arriving.values())) + len(content) <= self._most:
                    self._arriving[run_id, name] = content
            return content

        return pulled

    def after_pull(self) -> None:
        """Keep the message that has arrived in place of the one before, if there was any."""
        if self._arriving:
            self._kept, self._arriving = self._arriving, {}


class Confirmations:
    """Confirms the arrival of messages in a thread, while the node works on them."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def later(self, confirm: Callable[..., None]) -> Callable[..., None]:
        """Return a function that begins to confirm, and returns at once.

        An error of ``confirm`` is logged. The SuperLink then keeps the message until the end of the run; it gives none
        away twice.
        """

        def confirmed(*given: Any) -> None:
            try:
                confirm(*given)
            except Exception as error:  # any: what Flower's client raises, at which a message would not be worked on
                log.warning("the arrival of a message could not be confirmed: %s", error)

        def begin(*given: Any) -> None:
            self.wait()
            self._thread = threading.Thread(target=confirmed, args=given, name="confirmation", daemon=True)
            self._thread.start()

        return begin

    def wait(self) -> None:
        """Wait until what was begun is confirmed; a reply is not sent before."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
