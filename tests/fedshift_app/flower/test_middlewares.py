"""A request passes by the middlewares of other APIs, and by none of its own."""

import asyncio
import re
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import httpx
import pytest
from fastapi import Response, routing
from fastapi.dependencies import utils
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest, RegisterNodeFleetResponse
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink import main as flower
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.supernode import main as supernode
from starlette.middleware.base import BaseHTTPMiddleware

from fedshift_app.flower import middlewares

TIME = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Narrow the middlewares for one test; return the names of those that a request goes through."""
    through: list[str] = []
    real = BaseHTTPMiddleware.__call__

    async def counted(self: Any, scope: Any, receive: Any, send: Any) -> None:
        through.append(type(self).__name__)
        await real(self, scope, receive, send)

    for name in middlewares.middlewares_of(flower):
        monkeypatch.setattr(getattr(flower, name), "__call__", counted)  # and taken away again
    return through


def ask(app: Any, path: str) -> int:
    async def asked() -> int:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://superlink") as session:
            headers = {"content-type": PROTOBUF_MEDIA_TYPE}
            return (await session.post(path, content=b"", headers=headers)).status_code

    return asyncio.run(asked())


def test_the_installed_flower_is_known() -> None:
    result = middlewares.middlewares_of(flower)
    assert middlewares.unknown(result) == ""
    stack = [middleware.cls for middleware in flower._get_middleware()]
    assert set(result.values()) <= set(stack)
    missing = set() if version("flwr").startswith("1.41.") else set(middlewares.GONE)
    assert set(middlewares.OWN) - set(result) == missing


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/runtime/acquire-task", "/v1/control/list-runs"])
def test_each_request_goes_through_those_of_its_own_api(whole: list[str], path: str) -> None:
    app = flower.create_app()
    answer, through = ask(app, path), set(whole)
    api = next(api for api in middlewares.APIS if path.startswith(api))
    own = {name for name in middlewares.middlewares_of(flower) if middlewares.OWN[name][0] == api}
    assert through - own and (through & own or not own)  # Flower 1.42 has none for the Runtime API
    whole.clear()
    middlewares.narrow()
    assert ask(app, path) == answer
    assert set(whole) == through & own


def test_a_node_without_a_key_is_refused_as_before(whole: list[str]) -> None:
    app = flower.create_app()
    middlewares.narrow()
    assert ask(app, "/v1/fleet/pull-messages") == 401
    assert "NodeAuthMiddleware" in whole


@pytest.mark.parametrize("path", ["/health", "/v1/", "/v1/fleet", "//v1/runtime/acquire-task"])
def test_what_is_no_apis_goes_through_all(whole: list[str], path: str) -> None:
    app = flower.create_app()
    middlewares.narrow()
    ask(app, path)
    assert set(whole) == set(middlewares.middlewares_of(flower))


def test_another_flower_is_left_alone(whole: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {name: result.__call__ for name, result in middlewares.middlewares_of(flower).items()}
    monkeypatch.setattr("flwr.supercore.version.package_version", "1.43.0")
    middlewares.narrow()
    assert {name: result.__call__ for name, result in middlewares.middlewares_of(flower).items()} == plain
    monkeypatch.undo()
    result = middlewares.middlewares_of(flower)
    result["NodeAuthMiddleware"] = SimpleNamespace(dispatch=ask)
    assert middlewares.unknown(result).startswith("NodeAuthMiddleware does not contain")


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the way through the middlewares for one test."""
    for owner, name in (
        (BaseHTTPMiddleware, "__call__"), (utils, "run_in_threadpool"), (routing._IncludedRouter, "matches"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))  # and taken away again
    middlewares.shorten()


def answers(paths: list[str], body: bytes = b"") -> list[tuple[int, bytes, list[str]]]:
    """Return what new SuperLinks and SuperNodes answer to requests at these paths."""
    apps: list[Any] = [flower.create_app(), supernode.create_app()]

    async def asked() -> list[tuple[int, bytes, list[str]]]:
        found = []
        for app in apps:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://superlink") as session:
                for path in paths:
                    headers = {"content-type": PROTOBUF_MEDIA_TYPE}
                    answer = await session.post(path, content=body, headers=headers)
                    content = TIME.sub(b"a time", answer.content)
                    found.append((answer.status_code, content, sorted(answer.headers)))
        return found

    return asyncio.run(asked())


@pytest.mark.parametrize("body", [b"", b"\xff\xff", b"x" * 100_000])
def test_the_short_way_leads_to_the_same_answers(body: bytes, request: pytest.FixtureRequest) -> None:
    paths = [*sorted(path for _, path in PROTOBUF_REQUEST_TYPES), "/health", "/v1/fleet/nothing", "/v1/responses"]
    before = answers(paths, body)
    assert {status for status, _, _ in before} >= {404, 405} | ({400} if body[:1] == b"\xff" else {200, 401})
    request.getfixturevalue("shortened")
    assert answers(paths, body) == before


def test_calls_are_answered_and_only_lookups_stay_in_the_loop(shortened: None, monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads: list[str] = []
    real = anyio.to_thread.run_sync

    async def counted(function: Any, *given: Any, **named: Any) -> Any:
        in_threads.append(getattr(function, "func", function).__name__)
        return await real(function, *given, **named)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
    app = flower.create_app()
    app.state.enable_supernode_auth = False
    monkeypatch.setattr(NodeAuthMiddleware, "dispatch", passing)
    request = RegisterNodeFleetRequest(public_key=b"key")

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://superlink") as session:
            headers = {"content-type": PROTOBUF_MEDIA_TYPE}
            return await session.post("/v1/fleet/register-node", content=request.SerializeToString(), headers=headers)

    answer = asyncio.run(asked())
    assert answer.status_code == 200
    assert answer.headers["content-type"] == PROTOBUF_MEDIA_TYPE
    assert RegisterNodeFleetResponse.FromString(answer.content).node_id
    assert in_threads == ["fleet_register_node"]


async def passing(_self: Any, request: Any, call_next: Any) -> Any:
    return await call_next(request)


def test_what_is_called_at_once_is_there() -> None:
    for module, name in middlewares.LOOKUPS:
        assert callable(getattr(import_module(module), name))


def test_an_error_behind_reaches_the_middleware(shortened: None) -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ZeroDivisionError

    caught: list[type[BaseException]] = []

    async def dispatch(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ZeroDivisionError as error:
            caught.append(type(error))
            return Response(status_code=418)

    app = BaseHTTPMiddleware(broken, dispatch)
    assert ask(app, "/v1/fleet/pull-messages") == 418
    assert caught == [ZeroDivisionError]
