"""What a SuperNode spares its line to the SuperLink, against Flower's own classes and a server of our own."""

import inspect
import resource
import subprocess
import sys
import threading
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support import ROOT

from fedshift_app.flower import round_trips
from fedshift_app.flower.round_trips import CLIENT, PARTS, SUPERLINK, Confirmations, LastParts


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Flower's modules as they were."""
    for place, name in ((CLIENT, "httpx"), (PARTS, "get_num_workers"), (SUPERLINK, "uvicorn")):
        module = import_module(place)
        monkeypatch.setattr(module, name, getattr(module, name))


def test_the_installed_flower_is_known() -> None:
    assert round_trips.unknown(CLIENT, PARTS, SUPERLINK) == ""


def test_another_flower_is_left_alone(monkeypatch: pytest.MonkeyPatch, restored: None) -> None:
    client, superlink = import_module(CLIENT), import_module(SUPERLINK)
    with monkeypatch.context() as patch:
        patch.setattr("flwr.supercore.version.package_version", "1.43.0")
        assert round_trips.unknown(CLIENT) == "this is Flower 1.43.0, supported are 1.41.x and 1.42.x"
        round_trips.spare_node()
        round_trips.spare_superlink()
    monkeypatch.setattr(
        round_trips, "SHAPES", {(CLIENT, "ProtobufClient"): ("nothing of the kind",), (SUPERLINK, "gone"): ("",)}
    )
    assert round_trips.unknown(CLIENT) == f"{CLIENT}.ProtobufClient is not what it was"
    round_trips.spare_node()
    round_trips.spare_superlink()
    assert client.httpx is httpx and inspect.ismodule(superlink.uvicorn)


def test_a_nodes_connections_stay_open_for_a_minute_and_four_parts_travel_at_once(restored: None) -> None:
    round_trips.spare_node()
    client: Any = import_module(CLIENT)
    made = client.ProtobufClient("http://127.0.0.1:1", timeout=7.0)
    pool = made._client._transport._pool
    assert (pool._keepalive_expiry, pool._max_connections) == (60.0, 100)
    assert made._client.timeout == httpx.Timeout(7.0) and made._client.follow_redirects
    assert client.httpx.Response is httpx.Response
    meeting = threading.Barrier(4, timeout=20)  # breaks unless four are there at once

    def pull(name: str) -> bytes:
        meeting.wait()
        return name.encode()

    parts: Any = import_module(PARTS)
    names = [*"abcd"]
    assert parts.pull_objects(names, pull) == {name: name.encode() for name in names}


def test_the_superlink_has_as_many_connections_as_the_system_allows() -> None:
    program = (
        "import resource as r; most = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, most));"
        "from fedshift_app.flower import round_trips; round_trips.spare_superlink();"
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (most, most))"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.split()[-1] == "True"


def test_the_superlink_closes_idle_connections_last(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *given: None)
    started: list[dict[str, Any]] = []
    module: Any = import_module(SUPERLINK)
    monkeypatch.setattr(module, "uvicorn", SimpleNamespace(run=lambda **options: started.append(options), other=1))
    round_trips.spare_superlink()
    module.uvicorn.run(app="app", port=2)
    module.uvicorn.run(timeout_keep_alive=3)
    assert started == [{"app": "app", "port": 2, "timeout_keep_alive": 75}, {"timeout_keep_alive": 3}]
    assert round_trips.IDLE_SUPERLINK > round_trips.IDLE_NODE and module.uvicorn.other == 1


def test_a_confirmation_goes_beside_the_work_and_a_reply_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    may, done = threading.Event(), []

    def confirm(run_id: int, name: str) -> None:
        assert may.wait(20)
        done.append((run_id, name))
        if name == "b":
            raise ConnectionError("the line is down")

    confirmations = Confirmations()
    confirmations.wait()  # nothing was begun
    confirmations.later(confirm)(7, "a")
    assert done == []  # the node goes on
    may.set()
    confirmations.wait()
    assert done == [(7, "a")]
    confirmations.later(confirm)(7, "b")
    confirmations.later(confirm)(7, "c")  # a run that ended without a reply
    confirmations.wait()
    assert [name for _, name in done] == ["a", "b", "c"]
    assert "the arrival of a message could not be confirmed: the line is down" in caplog.text


class Line:
    """Parts that are brought, and a record of them."""

    def __init__(self) -> None:
        self.brought: list[tuple[int, str]] = []

    def __call__(self, run_id: int, name: str) -> bytes:
        self.brought.append((run_id, name))
        return name.encode() * 10

    def message(self, parts: LastParts, *names: str, run_id: int = 1) -> list[tuple[int, str]]:
        """Bring the parts of a message; return those that passed the line."""
        self.brought.clear()
        pull = parts.before_pull(self)
        assert [pull(run_id, name) for name in names] == [name.encode() * 10 for name in names]
        parts.after_pull()
        return list(self.brought)


def test_a_part_of_the_last_message_is_not_brought_again() -> None:
    line, parts = Line(), LastParts()
    assert line.message(parts, "weights", "a") == [(1, "weights"), (1, "a")]
    assert line.message(parts) == []  # a question that brought nothing
    assert line.message(parts, "weights", "b") == [(1, "b")]
    assert line.message(parts, "weights", "a", "b") == [(1, "a")]
    assert line.message(parts, "c") == [(1, "c")]
    assert line.message(parts, "weights") == [(1, "weights")]  # only the last message's are kept
    assert line.message(parts, "weights", run_id=2) == [(2, "weights")]  # another run's are its own
    assert [*parts._kept] == [(2, "weights")] and not parts._arriving  # between messages nothing else is held


def test_no_more_is_kept_than_there_is_room_for() -> None:
    line, parts = Line(), LastParts(most=25)
    line.message(parts, "a", "b", "c")
    assert line.message(parts, "a", "b", "c") == [(1, "c")]
