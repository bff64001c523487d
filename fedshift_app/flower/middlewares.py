"""Flower's SuperLink with each API's middlewares on the way of that API's requests only.

Flower serves three APIs as one application, and each request goes through the middlewares of all three: six or seven
that hand it on when its path is not theirs. That handing on is a third of what a request costs, and a federation's
rounds are made of requests. Here a middleware is passed by where the path is another API's; where it is its own, or of
no API, all is as Flower has it.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedshift_app.flower.versions import unread

log = logging.getLogger("fedshift")

APIS = ("/v1/control/", "/v1/fleet/", "/v1/runtime/")
#: Whose requests a middleware is for, and how its source says so.
OWN = {
    "ControlSensitiveResponseMiddleware": ("/v1/control/", "if _is_control_sensitive_route(request):"),
    "ControlAuthenticationMiddleware": ("/v1/control/", "if not _is_control_path(request.url.path)"),
    "ControlLicenseMiddleware": ("/v1/control/", "or not _is_control_path(request.url.path):"),
    "ControlEventLogMiddleware": ("/v1/control/", "if not _is_control_path(request.url.path)"),
    "NodeAuthMiddleware": ("/v1/fleet/", 'if request.url.path.startswith("/v1/fleet/") and'),
    "FleetEventLogMiddleware": ("/v1/fleet/", 'if not request.url.path.startswith("/v1/fleet/"):'),
    "RuntimeTracingMiddleware": ("/v1/runtime/", "isinstance(result, PullTaskInputResponse)"),
}
GONE = ("RuntimeTracingMiddleware",)  # in Flower 1.42, with nothing in its place


def narrow() -> None:
    """Let each request of this process's SuperLink pass by the middlewares of the other APIs."""
    from flwr.superlink import main

    middlewares = found(main)
    if problem := unknown(middlewares):
        log.info("the SuperLink's requests take Flower's own way: %s", problem, extra={"event": "plain"})
        return
    for name, middleware in middlewares.items():
        middleware.__call__ = _passing_by(middleware.__call__, OWN[name][0])


def found(main: Any) -> dict[str, Any]:
    """Return the middlewares of ``OWN`` that Flower's module has, by name; None for one that it should have."""
    names = [name for name in OWN if name not in GONE or hasattr(main, name)]
    return {name: getattr(main, name, None) for name in names}


def unknown(middlewares: dict[str, Any]) -> str:
    """Return why the middlewares are left as they are; empty if they are the ones known here."""
    from flwr.supercore.version import package_version
    from flwr.superlink.routers.control import middlewares as control

    if problem := unread(package_version):
        return problem
    sensitive = getattr(control, "CONTROL_SENSITIVE_ROUTE_KEYS", ())
    if not sensitive or not all(path.startswith(APIS[0]) for _, path in sensitive):
        return "some sensitive routes are not the Control API's"
    if 'return path.startswith("/v1/control/")' not in inspect.getsource(control._is_control_path):
        return "the Control API's paths are others"
    for name, middleware in middlewares.items():
        if middleware is None or OWN[name][1] not in inspect.getsource(middleware.dispatch):
            return f"{name} does not hold {OWN[name][1]}"
    return ""


def _passing_by(whole: Callable[..., Awaitable[None]], own: str) -> Callable[..., Awaitable[None]]:
    others = tuple(api for api in APIS if api != own)

    async def call(self: Any, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope.get("root_path") and scope["path"].startswith(others):
            await self.app(scope, receive, send)
        else:
            await whole(self, scope, receive, send)

    return call
