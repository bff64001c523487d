"""Shortens the way of a request through the middlewares of Flower's SuperLink and SuperNode.

A federation's rounds consist of requests, and most of a request's time goes into middlewares.

- The SuperLink serves three APIs as one application, and each request passes the middlewares of all three: six or seven
  that only forward it. Here a request skips a middleware of another API; requests of its own API, or of no API, pass it
  as in plain Flower (:func:`narrow`).
- Starlette lets what is behind a middleware run as a task of its own, with a queue for the parts of its answer, and
  another task for each part of the request. Here the answers of Flower's remote calls, which have one part, are
  returned as by a function (:func:`shorten`); all other requests, such as streams, go as before.
- FastAPI calls each function that a handler depends on in another thread. Those that only look something up are called
  at once (:func:`call_at_once`), and no path is compared with those of an API that it is not of.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

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

#: What the source of Starlette's middleware must contain before it is shortened.
FORM = "response = await self.dispatch_func(request, call_next)"
SHORT = ("/v1/fleet/", "/v1/runtime/")  # APIs whose calls are answered in one part
#: Functions and classes of Flower's on which handlers depend, and which take microseconds.
LOOKUPS = {
    ("flwr.superlink.dependencies.linkstate", "get_linkstate"),
    ("flwr.superlink.routers.fleet.router", "get_enable_supernode_auth"),
    ("flwr.supercore.protobuf.translation", "get_protobuf_request"),
    ("flwr.supercore.dependencies.runtime", "get_runtime_state"),
    ("flwr.supercore.dependencies.runtime", "get_runtime_handlers"),
    ("flwr.supercore.dependencies.version", "VersionDependency"),
}
Scope = MutableMapping[str, Any]
Call = Callable[[Any, Scope, Any, Any], Awaitable[None]]


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


def shorten() -> None:
    """Let the remote calls of this process's SuperLink or SuperNode pass middlewares without tasks of their own."""
    from flwr.supercore.protobuf import translation
    from flwr.supercore.version import package_version
    from starlette.middleware import base

    if getattr(base.BaseHTTPMiddleware.__call__, "short", False):
        return
    known = FORM in inspect.getsource(base.BaseHTTPMiddleware.__call__) and hasattr(base, "_CachedRequest")
    problem = unread(package_version) or ("" if known else "Starlette's middlewares have another form")
    if problem:
        log.info("requests pass Flower's middlewares as tasks: %s", problem, extra={"event": "plain"})
        return
    calls = frozenset(path for _, path in translation.PROTOBUF_REQUEST_TYPES if path.startswith(SHORT))
    changed: Any = base.BaseHTTPMiddleware
    changed.__call__ = _shortened(changed.__call__, calls)
    call_at_once()
    skip_other_apis()


def call_at_once() -> None:
    """Let FastAPI call ``LOOKUPS`` without a thread."""
    from fastapi.dependencies import utils

    changed: Any = utils
    in_thread = changed.run_in_threadpool

    async def called(function: Any, *given: Any, **named: Any) -> Any:
        of = function if hasattr(function, "__qualname__") else type(function)
        if (of.__module__, of.__qualname__) in LOOKUPS:
            return function(*given, **named)
        return await in_thread(function, *given, **named)

    changed.run_in_threadpool = called


def skip_other_apis() -> None:
    """Let FastAPI compare a path with those of an API only if it begins as they do."""
    from fastapi import routing
    from starlette.routing import Match

    changed: Any = getattr(routing, "_IncludedRouter", None)
    if changed is None:  # it keeps all paths in one list
        return
    matches = changed.matches

    def matched(self: Any, scope: Scope) -> Any:
        prefix = getattr(self.original_router, "prefix", "")
        moved = getattr(self.include_context, "prefix", "?") or scope.get("root_path")
        if prefix and not moved and not scope["path"].startswith(prefix):
            return Match.NONE, {}
        return matches(self, scope)

    changed.matches = matched


def _shortened(usual: Call, calls: frozenset[str]) -> Call:
    """Return Starlette's way through a middleware, shorter for the calls."""
    from starlette.middleware import base
    from starlette.requests import Request
    from starlette.responses import Response

    cached = cast(Callable[[Scope, Any], Any], base._CachedRequest)  # a body that is read can be read again behind

    async def call(self: Any, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in calls:
            await usual(self, scope, receive, send)
            return
        request = cached(scope, receive)

        async def behind(_request: Request) -> Response:
            answer: list[Scope] = []

            async def keep(part: Scope) -> None:
                answer.append(part)

            await self.app(scope, request.wrapped_receive, keep)
            start = next(part for part in answer if part["type"] == "http.response.start")
            body = b"".join(part.get("body", b"") for part in answer if part["type"] == "http.response.body")
            response = Response(body, status_code=start["status"])
            response.raw_headers = list(start.get("headers", ()))
            return response

        response = await self.dispatch_func(request, behind)
        await response(scope, request.wrapped_receive, send)

    call.short = True  # type: ignore[attr-defined]
    return call


def _passing_by(middleware: Call, own: str) -> Call:
    others = tuple(api for api in APIS if api != own)

    async def call(self: Any, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope.get("root_path") and scope["path"].startswith(others):
            await self.app(scope, receive, send)
        else:
            await middleware(self, scope, receive, send)

    return call
