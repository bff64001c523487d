"""Lets each API's requests skip the middlewares of the other APIs in Flower's SuperLink.

Flower serves three APIs as one application, and each request passes the middlewares of all three: six or seven that
only forward it. This takes a third of a request's time, and a federation's rounds consist of requests. Here a request
skips a middleware of another API; requests of its own API, or of no API, pass it as in plain Flower.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedshift_app.flower.versions import unread

log = logging.getLogger("fedshift")

APIS = ("/v1/control/", "/v1/fleet/", "/v1/runtime/")
#: By middleware the API whose requests it handles, and the line of its source that shows this.
OWN = {
    "ControlSensitiveResponseMiddleware": ("/v1/control/", "if _is_control_sensitive_route(request):"),
    "ControlAuthenticationMiddleware": ("/v1/control/", "if not _is_control_path(request.url.path)"),
    "ControlLicenseMiddleware": ("/v1/control/", "or not _is_control_path(request.url.path):"),
    "ControlEventLogMiddleware": ("/v1/control/", "if not _is_control_path(request.url.path)"),
    "NodeAuthMiddleware": ("/v1/fleet/", 'if request.url.path.startswith("/v1/fleet/") and'),
    "FleetEventLogMiddleware": ("/v1/fleet/", 'if not request.url.path.startswith("/v1/fleet/"):'),
    "RuntimeTracingMiddleware": ("/v1/runtime/", "isinstance(result, PullTaskInputResponse)"),
}
GONE = ("RuntimeTracingMiddleware",)  # removed in Flower 1.42 without a replacement


def narrow() -> None:
    """Let each request of this process's SuperLink skip the middlewares of the other APIs."""
    from flwr.superlink import main

    middlewares = middlewares_of(main)
    if problem := unknown(middlewares):
        log.info("the SuperLink's requests pass all of Flower's middlewares: %s", problem, extra={"event": "plain"})
        return
    for name, middleware in middlewares.items():
        middleware.__call__ = _passing_by(middleware.__call__, OWN[name][0])


def middlewares_of(main: Any) -> dict[str, Any]:
    """Return the middlewares of ``OWN`` in Flower's module by name; None for a missing one."""
    names = [name for name in OWN if name not in GONE or hasattr(main, name)]
    return {name: getattr(main, name, None) for name in names}


def unknown(middlewares: dict[str, Any]) -> str:
    """Return the reason to leave the middlewares unchanged; empty if they are as expected."""
    from flwr.supercore.version import package_version
    from flwr.superlink.routers.control import middlewares as control

    if problem := unread(package_version):
        return problem
    sensitive = getattr(control, "CONTROL_SENSITIVE_ROUTE_KEYS", ())
    if not sensitive or not all(path.startswith(APIS[0]) for _, path in sensitive):
        return "some sensitive routes are outside the Control API"
    if 'return path.startswith("/v1/control/")' not in inspect.getsource(control._is_control_path):
        return "the Control API has other paths"
    for name, middleware in middlewares.items():
        if middleware is None or OWN[name][1] not in inspect.getsource(middleware.dispatch):
            return f"{name} does not contain {OWN[name][1]}"
    return ""


def _passing_by(middleware: Callable[..., Awaitable[None]], own: str) -> Callable[..., Awaitable[None]]:
    others = tuple(api for api in APIS if api != own)

    async def call(self: Any, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope.get("root_path") and scope["path"].startswith(others):
            await self.app(scope, receive, send)
        else:
            await middleware(self, scope, receive, send)

    return call
