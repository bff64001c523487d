"""The guarded SuperLink: what of Flower's own app is open to the network, and what `fedshift superlink` starts."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink import extensions
from flwr.superlink import main as flower
from hypothesis import given
from hypothesis import strategies as st

from fedshift.run.launch import connections, local_superlink, processes, superlink
from fedshift_app.flower import internals
from fedshift_core.env import TELEMETRY
from fedshift_core.errors import ConfigError, FedShiftError

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


def test_its_user_reaches_every_api_from_this_machine(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "user_of", lambda *_: os.getuid())
    for path in guarded.openapi()["paths"]:
        assert status(guarded, LOCAL, "POST", path) != 403, path


def test_another_user_of_this_machine_reaches_what_the_network_does(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "user_of", lambda *_: os.getuid() + 1)
    for path, refused in (("control/start-run", True), ("runtime/acquire-task", True), ("fleet/pull-messages", False)):
        assert (status(guarded, LOCAL, "POST", f"/v1/{path}") == 403) is refused
    monkeypatch.setattr(superlink.OnlyFleet, "any_user", True)  # as --any-user
    assert status(guarded, LOCAL, "POST", "/v1/control/start-run") != 403


@pytest.mark.parametrize(
    "path", ["/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/control/x"]
)
def test_no_detour_leads_to_the_control_api(guarded: Any, path: str) -> None:
    assert status(guarded, REMOTE, "POST", path) in (403, 404, 405)


@given(st.ip_addresses())
def test_only_loopback_is_this_machine(address: Any) -> None:
    mapped = getattr(address, "ipv4_mapped", None) or address
    assert superlink.is_local((str(address), 1)) == mapped.is_loopback
    assert all(superlink.is_local((host, 1)) for host in ("127.8.9.10", "::1", "::ffff:127.0.0.1"))
    assert not superlink.is_local(None)  # a caller without an address


def test_a_flower_without_a_place_for_the_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(flower, "_get_middleware", lambda: [])
    with pytest.raises(FedShiftError, match="open to the network"):
        internals.guard_superlink(superlink.OnlyFleet)


def test_a_request_waits_for_a_busy_database(tmp_path: Path) -> None:
    internals.wait_for_database()
    store: Any = ObjectStoreFactory(str(tmp_path / "superlink.db")).store()
    assert store.query("PRAGMA busy_timeout") == [{"timeout": 60_000}]


def test_flower_reports_to_its_makers_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, value in (("", "0"), ("1", "1")):
        monkeypatch.setenv(TELEMETRY, asked) if asked else monkeypatch.delenv(TELEMETRY, raising=False)
        assert local_superlink.environment(tmp_path)[TELEMETRY] == value


# --- the SuperLink of one run ---------------------------------------------------------------------------------


def test_only_its_owner_on_this_machine_reaches_the_superlink_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {40000: os.getuid(), 40001: os.getuid() + 1}
    monkeypatch.setattr(connections, "user_of", lambda client, server: known.get(client[1]))
    guard = superlink.OnlyOwner(lambda *_: None)

    def passes(client: Any) -> bool:
        return guard.passes({"path": superlink.HEALTH, "server": ("127.0.0.1", 9000), "client": client})

    local = [("127.0.0.1", port) for port in (40000, 40001, 40002)]
    assert [passes(client) for client in (*local, REMOTE, None)] == [True, False, False, False, False]
    monkeypatch.setattr(connections, "TABLES", (Path("/nonexistent"),))
    assert passes(local[1])  # where it is unknown


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can call as another user")
def test_another_user_of_this_machine_can_submit_nothing_to_it(tmp_path: Path) -> None:
    call = (  # what is imported later may be out of the other user's reach
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[3]))\n"
        "caller = socket.socket()\n"
        "caller.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "caller.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'.encode())\n"
        "print(caller.recv(4096).split()[1].decode())\n"
    )
    with processes.Group(local_superlink.empty_folder(tmp_path), local_superlink.environment(tmp_path)) as flower:
        link = local_superlink.SuperLink(processes.free_port())
        local_superlink.start_superlink(flower, link, "--simulation", "--isolation", "subprocess")
        for path, own in (("/health", "200"), ("/openapi.json", "200"), ("/v1/control/start-run", "405")):
            requests = [sys.executable, "-c", call, str(link.port), path]
            codes = [
                subprocess.run([*requests, user], capture_output=True, text=True, check=True).stdout.strip()
                for user in ("0", "65534")
            ]
            assert codes == [own, "403"], path


@pytest.mark.parametrize("given", ["--database FILE", "--insecure --database=FILE"])
def test_two_superlinks_do_not_share_a_database(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = given.replace("FILE", str(tmp_path / "superlink.db")).split()
    started: list[str] = []

    def first(*_: Any) -> None:
        started.append("first")
        with pytest.raises(ConfigError, match=rf"--database .*superlink\.db is in use by .* process {os.getpid()} "):
            superlink.serve(options)

    monkeypatch.setattr(internals, "run_superlink", first)
    superlink.serve(options)
    monkeypatch.setattr(internals, "run_superlink", lambda *_: started.append("again"))
    for each in (options, [], []):  # it was let go
        superlink.serve(each)
    assert started == ["first", *["again"] * 3]


# --- the owner of a connection ------------------------------------------------------------------------------


OF_PROC = pytest.mark.skipif(not connections.TABLES[0].is_file(), reason="this system has no /proc/net/tcp")


@contextmanager
def connected(host: str, called: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a server's end of a connection, and its caller's."""
    family = {True: socket.AF_INET6, False: socket.AF_INET}
    server = socket.create_server((host, 0), family=family[":" in host], dualstack_ipv6=host == "::")
    with server, socket.socket(family[":" in called]) as caller:
        caller.connect((called, server.getsockname()[1]))
        with server.accept()[0] as accepted:
            yield accepted, caller


@OF_PROC
def test_a_connection_belongs_to_its_caller() -> None:
    with connected("127.0.0.1", "127.0.0.1") as (accepted, caller):
        here, there = caller.getsockname(), accepted.getsockname()
        assert connections.user_of(here, there) == os.getuid()
        assert connections.user_of((f"::ffff:{here[0]}", here[1]), there) == os.getuid()
        assert connections.user_of(("127.0.0.9", here[1]), there) is None  # the same port of another address
        assert connections.user_of(there, (there[0], 1)) is None  # a listener, or nobody
        assert connections.user_of(("::1", here[1]), there) is None
        caller.shutdown(socket.SHUT_RDWR)
        caller.close()
        assert connections.user_of(here, there) is None  # a connection that was let go is nobody's


@OF_PROC
@pytest.mark.skipif(os.getuid() != 0, reason="only root can call as another user")
@pytest.mark.parametrize("user", [65534, 4321])
def test_another_users_connection_is_not_ours(user: int) -> None:
    call = (  # what is imported later may be out of the other user's reach
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[2]))\n"
        "caller = socket.socket()\n"
        "caller.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "caller.recv(1)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", call, str(port), str(user)]) as other:
            with server.accept()[0] as accepted:
                assert connections.user_of(accepted.getpeername(), accepted.getsockname()) == user
            assert other.wait(30) == 0
