"""Flower's simulation as FedShift mends it: Ray behind a token, the work of a dead worker done again, nothing lost."""

import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import psutil
import pytest
import ray
from ray.exceptions import RayActorError
from support import Command, InlineRun, Run, until
from traffic import changing, failed, lost

from fedshift.lab.tables.compare import compare
from fedshift.run.launch import runner
from fedshift.run.launch.log_filter import is_end
from fedshift_app.flower import simulating
from fedshift_app.flower.internals import make_context
from fedshift_app.run import exit_codes, status
from fedshift_core.errors import FederationError

FEDSHIFT = str(Path(sys.executable).parent / "fedshift")
SHORT = "dataset.domains=[scan,texture] train.epochs=1 allocation.share=0.08 train.batch_size=16"
LIMIT = 240
#: Who may listen for others than this machine while a run simulates, each with what stands before it: the token.
GUARDED = {"gcs_server", "raylet", "flwr-simulation", "ray::ClientApp", "ray::ClientAppActor", "ray::IDLE"}
#: Asks the cluster's own store for its keys.
STRANGER = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None))
"""


# --- the work of a dead worker --------------------------------------------------------------------------------


class Pool:
    """An actor pool of which so many actors die of the work that they are given."""

    def __init__(self, deaths: int) -> None:
        self.pool: list[Any] = ["actor 0"]
        self._future_to_actor: dict[str, Any] = {}
        self._deaths = deaths
        self.asked: list[tuple[Any, ...]] = []

    def create_actor_fn(self) -> str:
        return f"actor {len(self.asked)}"

    def submit(self, fn: Any, job: tuple[Any, ...]) -> str:
        actor = self.pool.pop()
        self.asked.append((actor, *job))
        self._future_to_actor[actor] = actor
        return str(actor)

    def add_actor_back_to_pool(self, future: str) -> None:
        self.pool.append(self._future_to_actor.pop(future))

    def get(self, future: str) -> tuple[str, str, str]:
        if len(self.asked) <= self._deaths:
            raise RayActorError
        return "0", "the reply", "the context"


MESSAGE: Any = "a message", make_context(1, {"partition-id": 0}, {})


@pytest.mark.parametrize("deaths", [0, 1, simulating.TRIES - 1])
def test_another_worker_does_it_again(deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(deaths)
    monkeypatch.setattr(ray, "get", pool.get)
    done = simulating.process_message(SimpleNamespace(pool=pool, app_fn="the app"), *MESSAGE)
    assert done == ("the reply", "the context")
    message, context = MESSAGE
    assert pool.asked == [(f"actor {i}", "the app", message, "0", context) for i in range(deaths + 1)]
    assert (pool.pool, pool._future_to_actor) == ([f"actor {deaths}"], {})  # no dead one is left among the idle


@pytest.mark.parametrize(("error", "tries"), [(RayActorError(), simulating.TRIES), (ValueError("the app's own"), 1)])
def test_work_that_kills_every_worker_is_given_up_and_an_error_of_the_app_keeps_its_worker(
    error: Exception, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(99)
    monkeypatch.setattr(ray, "get", Mock(side_effect=error))
    with pytest.raises(type(error)):
        simulating.process_message(SimpleNamespace(pool=pool, app_fn="the app"), *MESSAGE)
    assert (len(pool.asked), len(pool.pool)) == (tries, 1)


# --- how Ray is started and ended ---------------------------------------------------------------------------------


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return what stands for ``ray.init``."""
    for name in ("RAY_ADDRESS", simulating.STATUS_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setenv(simulating.MODE, "token")  # it has one
    monkeypatch.setattr(simulating.sys, "platform", "linux")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", Mock())
    monkeypatch.setattr(ray, "shutdown", Mock())
    return cast(Mock, ray.init)


def test_ray_is_closed_and_workers_get_their_path(init: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address Ray joins what `ray start` has noted, and waits in vain for one that was killed."""
    own = {"address": "local", "include_dashboard": False, "_node_ip_address": simulating.LOOPBACK}
    for given in ({"num_cpus": 2}, {"address": "127.0.0.1:6379"}):
        simulating._init_ray(None, {"init_args": given})
        assert init.call_args.kwargs == own | given
    assert os.environ["PYTHONPATH"].split(os.pathsep)[: len(sys.path) + 1] != ["mine"]  # by inheritance
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    simulating._init_ray(None, {})
    started = init.call_args.kwargs
    assert started["runtime_env"]["env_vars"]["PYTHONPATH"].endswith(f"{os.pathsep}mine") and "address" not in started


def test_another_backend_is_refused_not_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module(simulating.sources.ENGINE)
    monkeypatch.setitem(simulating.sources.READ, f"{simulating.BACKEND}:RayBackend", "another")
    backend = import_module(simulating.BACKEND).RayBackend
    monkeypatch.setattr(backend, "process_message", None)
    with pytest.raises(FederationError, match=":RayBackend of Flower"):
        simulating.prepare()


#: What Ray fails with on a machine that does much else.
LATE = Exception("The current node timed out during startup. This could happen because of much.")


def test_a_run_without_ray_ends_with_one_line(
    init: Mock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init.side_effect = LATE
    monkeypatch.setenv(simulating.STATUS_FILE, str(tmp_path / "status.json"))
    with pytest.raises(FederationError, match=r"actors=1.*engine=inline") as raised:
        simulating._init_ray(None, {})
    assert init.call_count == 2
    assert is_end(capsys.readouterr().out.splitlines()[-1])  # at which `fedshift run` ends Flower, before its traceback
    with pytest.raises(FederationError) as shown:
        runner._outcome(tmp_path / "status.json", 0, None)  # type: ignore[arg-type]
    assert str(shown.value) == str(raised.value) and "\n" not in str(shown.value)


# --- nothing is lost in silence -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_simulation_that_loses_work_stops_and_says_so(kind: str, run_inline: InlineRun, tmp_path: Path) -> None:
    """Flower answers for a node whose worker died, in the second round."""
    died = failed("<class 'ray.exceptions.ActorDiedError'>", 0)
    with pytest.raises(FederationError) as caught:
        run_inline(f"rounds=3 {SHORT}", grid=changing(died, kind, [1], [2]))
    (folder,) = (tmp_path / "runs").iterdir()
    problem, *_, go_on = str(caught.value).splitlines()
    assert problem.startswith("round 2: ") and "node 1 (texture): <class 'ray.exceptions.Actor" in problem
    assert go_on.endswith(f"fedshift run resume={folder}")
    assert (status.read(folder).state, len(Run(folder).rounds)) == ("failed", 1)  # from which it goes on


def test_a_simulation_that_did_without_a_node_is_degraded(
    run_inline: InlineRun, fedshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_inline(f"rounds=3 {SHORT}", grid=changing(lost, "train", [1], [2]))
    assert run.results["lost"] == {"2": [1]}
    assert [line.get("lost") for line in run.rounds] == [None, [1], None]
    content = status.read(run.folder)
    assert (content.state, content.resume) == ("degraded", None)
    assert content.error is not None and "node 1 (texture)" in content.error
    assert content.error in " ".join(compare([run.folder]).text().split())
    monkeypatch.setattr(runner, "run_inline", lambda *_: run.folder)
    ended = fedshift("run", "handwritten", "engine=inline", "report=false")
    assert ended.code == status.exit_code(content) == exit_codes.DEGRADED == 4
    assert content.error in ended.err


# --- a real run -----------------------------------------------------------------------------------------------


def of_run(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Return the run's processes with their names; Ray's workers overwrite their environment with their title."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("FEDSHIFT_TEST_SIMULATING") == str(folder):
                yield from ((one, one.name()) for one in (process, *process.children(recursive=True)))


def other_address() -> str:
    """Return an address of this machine that is not its loopback, as an intruder comes from; else the loopback."""
    addresses = (a.address for result in psutil.net_if_addrs().values() for a in result if a.family == socket.AF_INET)
    return next((a for a in addresses if not ipaddress.ip_address(a).is_loopback), "127.0.0.1")


def start(folder: Path, *asked: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [FEDSHIFT, "run", "handwritten", *asked, f"set={SHORT}"], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | {"FEDSHIFT_TEST_SIMULATING": str(folder)},
    )  # fmt: skip


def workers(folder: Path) -> list[psutil.Process]:
    """Return the run's processes that play nodes."""
    return [process for process, name in of_run(folder) if name.startswith("ray::ClientApp")]


def open_to_others(folder: Path) -> dict[str, int]:
    """Return the ports of the run that others than this machine may call, by the name of the process."""
    members = {process.pid: name.split(".")[0] for process, name in of_run(folder)}
    return {
        members[c.pid]: c.laddr.port
        for c in psutil.net_connections("tcp")
        if c.pid in members and c.status == psutil.CONN_LISTEN and not ipaddress.ip_address(c.laddr.ip).is_loopback
    }


def intrude(port: int) -> subprocess.CompletedProcess[str]:
    """Try to get in without the token, from another address of this machine if it has one."""
    unarmed = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    return subprocess.run(
        [sys.executable, "-c", STRANGER, f"{other_address()}:{port}"], env=unarmed, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_nobody_else_gets_into_a_run_and_a_killed_worker_changes_no_number(
    tmp_path: Path, run_inline: InlineRun
) -> None:
    running = start(tmp_path, "nodes=4", "rounds=3", "method=fedcode", "report=false")
    try:
        assert until(lambda: bool(workers(tmp_path)), LIMIT)
        ports = open_to_others(tmp_path)
        assert {"gcs_server", "raylet"} <= set(ports) <= GUARDED
        intruder = intrude(ports["gcs_server"])
        assert intruder.returncode != 0 and "AuthenticationError" in intruder.stderr
        workers(tmp_path)[0].kill()
        said, _ = running.communicate(timeout=LIMIT)
        assert running.returncode == 0, said
    finally:
        running.kill()
        running.wait()
    (folder,) = (tmp_path / "runs").iterdir()
    run = Run(folder)
    assert not any(line["left_out"] for line in run.rounds) and "a worker of the simulation died" in said
    undisturbed = run_inline(f"method=fedcode rounds=3 {SHORT}")
    assert run.results["weights_sha256"] == undisturbed.results["weights_sha256"]
    assert [*of_run(tmp_path)] == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_command_that_is_gone_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    running = start(tmp_path, "nodes=2", "rounds=500")
    assert running.stdout is not None
    assert any(line.startswith("round   2/500") for line in running.stdout)
    running.send_signal(number)
    running.communicate(timeout=LIMIT)
    assert until(lambda: not [*of_run(tmp_path)], 60)
    (folder,) = (tmp_path / "runs").iterdir()
    result = status.read(folder)
    assert (result.state, result.resume) == ("interrupted", f"fedshift run resume={folder}") and result.full_rounds
