"""Flower's SuperLink with its Control and Runtime APIs kept on this machine: ``fedshift superlink``.

Flower 1.41 serves three APIs on one port. SuperNodes call the Fleet API, where keys tell who is calling. The Control
API (submit a run, register a SuperNode's key) and the Runtime API (take over a ServerApp) ask for no account: whoever
reaches the port may run code on the SuperLink and on every SuperNode. So only what SuperNodes need is open to the
network; the rest answers callers on the SuperLink's own machine, which others reach through SSH.
"""

import ipaddress
import json
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedshift_app.run.folder import COMMAND

# ASGI's own types, as its specification names them.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "/v1/fleet/"
HEALTH = "/health"
REFUSAL = "only the Fleet API is open to the network; submit runs and register SuperNodes from the SuperLink's machine"


class OnlyFleet:
    """ASGI middleware that answers 403 to callers from other machines, except on the Fleet API and the health check."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or may_pass(scope["path"], scope.get("client")):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps({"detail": REFUSAL}).encode()})


def may_pass(path: str, client: tuple[str, int] | None) -> bool:
    """Tell whether a caller may use a path; ``client`` is the peer's address and port, None if it is unknown."""
    if path == HEALTH or path.startswith(FLEET):
        return True
    if client is None:
        return False
    address = ipaddress.ip_address(client[0])
    # A socket that listens on :: sees IPv4 callers as ::ffff:a.b.c.d.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def serve(options: list[str]) -> None:
    """Run ``flower-superlink`` with these options in this process until it is stopped.

    Raises:
        FedShiftError: If this Flower has no place for the guard.
    """
    from fedshift_app.flower import internals

    # The ServerApps that the SuperLink starts inherit its environment, and were not started by this command.
    if os.environ.get(COMMAND, "").startswith("fedshift superlink"):
        del os.environ[COMMAND]
    internals.run_superlink(options, OnlyFleet)


if __name__ == "__main__":
    serve(sys.argv[1:])
