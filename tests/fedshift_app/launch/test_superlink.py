"""The guarded SuperLink: what of Flower's own app is open to the network, and what `fedshift superlink` starts."""

import asyncio
import os
import shutil
from typing import Any

import httpx
import pytest
from flwr.superlink import extensions
from flwr.superlink import main as flower
from hypothesis import given
from hypothesis import strategies as st

from fedshift_app.flower import internals
from fedshift_app.launch import superlink
from fedshift_app.run.folder import COMMAND
from fedshift_wire.errors import FedShiftError

REMOTE, LOCAL = ("192.0.2.7", 40000), ("127.0.0.1", 40000)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Flower's own SuperLink app with the guard in it."""
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)  # put back afterwards
    internals.guard_superlink(superlink.OnlyFleet)
    return flower.create_app()


def status(app: Any, client: tuple[str, int], method: str, path: str) -> int:
    """Return the answer to a caller at an address."""

    async def ask() -> int:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://superlink") as session:
            return (await session.request(method, path)).status_code

    return asyncio.run(ask())


def test_the_network_reaches_the_fleet_api_and_health_and_nothing_else(guarded: Any) -> None:
    paths = [*guarded.openapi()["paths"], "/docs", "/openapi.json", "/", "/v1/fleet"]
    controls = [path for path in paths if path.startswith(("/v1/control/", "/v1/runtime/"))]
    assert {"/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"} <= set(controls)
    for path in paths:
        method = "GET" if path in (superlink.HEALTH, "/docs", "/openapi.json", "/") else "POST"
        is_open = path == superlink.HEALTH or path.startswith(superlink.FLEET)
        assert (status(guarded, REMOTE, method, path) == 403) is not is_open, path


def test_this_machine_reaches_every_api(guarded: Any) -> None:
    for path in guarded.openapi()["paths"]:
        assert status(guarded, LOCAL, "POST", path) != 403, path


@pytest.mark.parametrize(
    "path", ["/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/control/x"]
)
def test_no_detour_leads_to_the_control_api(guarded: Any, path: str) -> None:
    assert status(guarded, REMOTE, "POST", path) in (403, 404, 405)


@given(st.ip_addresses())
def test_only_loopback_is_this_machine(address: Any) -> None:
    mapped = getattr(address, "ipv4_mapped", None) or address
    assert superlink.may_pass("/v1/control/start-run", (str(address), 1)) == mapped.is_loopback
    assert superlink.may_pass("/v1/fleet/pull-messages", (str(address), 1))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_every_form_of_loopback_is_this_machine(host: str) -> None:
    assert superlink.may_pass("/v1/control/start-run", (host, 1))


def test_a_caller_without_an_address_is_a_stranger() -> None:
    assert not superlink.may_pass("/v1/control/start-run", None)


def test_a_flower_without_a_place_for_the_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(flower, "_get_middleware", lambda: [])
    with pytest.raises(FedShiftError, match="open to the network"):
        internals.guard_superlink(superlink.OnlyFleet)


def test_the_commands_name_is_not_handed_to_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(internals, "run_superlink", lambda options, guard: started.append(options))
    monkeypatch.setenv(COMMAND, "fedshift superlink --credentials x")
    superlink.serve(["--port", "1"])
    assert COMMAND not in os.environ
    monkeypatch.setenv(COMMAND, "fedshift deploy-demo")
    superlink.serve(["--port", "1"])
    assert os.environ[COMMAND] == "fedshift deploy-demo"
    assert started == [["--port", "1"]] * 2


def test_flower_finds_its_commands_outside_an_activated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    path = internals.path_with_flower()
    assert shutil.which("flower-superexec", path=path) and path.endswith("/nowhere")
