"""Flower's SuperLink with its Control and Runtime APIs kept on this machine: ``fedshift superlink``.

Flower 1.41 serves three APIs on one port. SuperNodes call the Fleet API, where keys tell who is calling. The Control
API (submit a run, register a SuperNode's key) and the Runtime API (take over a ServerApp) ask for no account: whoever
reaches the port may run code on the SuperLink and on every SuperNode. So only what SuperNodes need is open to the
network; the rest answers callers on the SuperLink's own machine, which others reach through SSH. The SuperLink of a
single run (``fedshift run``) answers nobody but the user who started it.
"""

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedshift.run.launch import connections
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.env import COMMAND, FORK_SERVER, TELEMETRY
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.paths import path_with_flower, user_path

# ASGI's own types, as its specification names them.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "/v1/fleet/"
HEALTH = "/health"
ONLY_OWNER = "--only-owner"  # the first option of this module as a program
#: Seconds after which Flower's executor asks the SuperLink again for a ServerApp to start; by itself 1.
TASK_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"


class OnlyOwner:
    """ASGI middleware that answers 403 to all but the user of this process, on this machine.

    Linux knows the owner of a connection on this machine; on other systems every local user passes.
    """

    refusal = "this SuperLink serves the run of one user"
    any_user = False

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or self.passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps({"detail": self.refusal}).encode()})

    def passes(self, scope: Scope) -> bool:
        """Tell whether a request may pass."""
        client = scope.get("client")
        return is_local(client) and (self.any_user or is_own(client, scope.get("server")))


class OnlyFleet(OnlyOwner):
    """Opens the Fleet API and the health check to the network, and the rest to the SuperLink's own user."""

    refusal = (
        "only the Fleet API is open to the network; "
        "submit runs and register SuperNodes from the SuperLink's machine, as the user who runs it"
    )

    def passes(self, scope: Scope) -> bool:
        """Tell whether a request may pass."""
        return scope["path"] == HEALTH or scope["path"].startswith(FLEET) or super().passes(scope)


class AnyUser(OnlyFleet):
    """As :class:`OnlyFleet`, but the rest is open to every user of this machine."""

    any_user = True


def is_local(client: connections.Peer | None) -> bool:
    """Tell whether a caller is on this machine, by its address; an unknown address is not."""
    return client is not None and connections.is_loopback(client[0])


def is_own(client: connections.Peer | None, server: connections.Peer | None) -> bool:
    """Tell whether a local caller belongs to this process's user, as far as the system knows."""
    if not connections.TABLES[0].is_file():
        return True
    return client is not None and server is not None and connections.user_of(client, server) == os.getuid()


def serve(options: list[str], guard: type[OnlyOwner] = OnlyFleet) -> None:
    """Run ``flower-superlink`` with these options in this process until it is stopped.

    Raises:
        FedShiftError: If this Flower has no place for the guard, or another SuperLink uses the same database.
    """
    os.environ.setdefault(TELEMETRY, "0")  # before Flower is imported, which reads it then
    from fedshift_app.flower import internals

    os.environ.setdefault(TASK_POLL, "0.5")
    if FORK_SERVER not in os.environ:  # else the folder of its programs comes first
        os.environ["PATH"] = path_with_flower()
    lock = _lock(options)

    # The ServerApps that the SuperLink starts inherit its environment, and were not started by this command.
    if os.environ.get(COMMAND, "").startswith("fedshift superlink"):
        del os.environ[COMMAND]
    try:
        internals.run_superlink(options, guard)
    finally:
        if lock is not None:
            lock.release()


def _lock(options: list[str]) -> Lock | None:
    """Lock the SuperLink's database: two SuperLinks on one would give each other's nodes work."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--database", default="")
    file = parser.parse_known_args(options)[0].database
    if not file:  # a state in memory
        return None
    path = user_path(file, "--database")
    try:
        return Lock(path.with_name(f"{path.name}.lock"))
    except InUse as holder:
        raise ConfigError(f"--database {shown(file)} is in use by another SuperLink, {holder}") from None
    except OSError as error:
        raise ConfigError(f"--database {shown(file)}: cannot write next to it: {error.strerror}") from None


if __name__ == "__main__":
    given = sys.argv[1:]
    serve(given[1:], OnlyOwner) if given[:1] == [ONLY_OWNER] else serve(given)
