"""A request passes by the middlewares of other APIs, and by none of its own."""

import asyncio
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink import main as flower
from starlette.middleware.base import BaseHTTPMiddleware

from fedshift_app.flower import middlewares


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
