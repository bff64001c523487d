"""Ray starts without the servers that a simulation does not use."""

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import parameter, services

from fedshift_app.flower import few_servers
from fedshift_core.env import RAY_WORKER

NODE = "ab" * 28
RAYLET = [
    "raylet", f"--node_id={NODE}", "--session_dir={folder}", "--dashboard_agent_command=python agent.py --node-id=1",
    "--runtime_env_agent_command=python main.py", "--python_worker_command=python worker.py", "--head",
]  # fmt: skip


@pytest.fixture
def _linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_servers.sys, "platform", "linux")
    for name in (*few_servers.ENVIRONMENTS, RAY_WORKER):
        monkeypatch.delenv(name, raising=False)


def test_the_release_of_ray_is_one_that_was_read() -> None:
    assert ray.__version__.startswith(few_servers.RELEASES)


def test_a_placeholder_ends_with_its_parent(tmp_path: Path) -> None:
    given = [part.format(folder=tmp_path) for part in RAYLET]
    agent = next(part for part in few_servers.with_placeholders(given) if part.startswith(few_servers.AGENTS[0]))
    words = shlex.split(agent.partition("=")[2])
    start = f"import subprocess, time; print(subprocess.Popen({words!r}, stdout=2).pid, flush=True)"
    program = f"{start}; time.sleep(2)"  # the shell reads its parent's id as it starts
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(done.stdout)).wait(60)


@pytest.mark.usefixtures("_linux")
def test_ray_starts_what_is_used_and_is_itself_again_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[str, list[str]]] = []

    def start(command: list[str], process_type: str) -> None:
        started.append((process_type, command))

    monkeypatch.setattr(services, "start_ray_process", start)
    monkeypatch.setenv(RAY_WORKER, "/worker.py")
    before = services.start_api_server, services.start_ray_process, parameter.RayParams
    with few_servers.few_servers({"include_dashboard": False}):
        assert services.start_api_server(False, False, "127.0.0.1") == (None, None)
        params: Any = parameter.RayParams(num_cpus=2)
        services.start_ray_process(["log"], "log_monitor")
        services.start_ray_process([part.format(folder=tmp_path) for part in RAYLET], "raylet")
    assert (params.no_monitor, params.worker_path, params.num_cpus) == (True, "/worker.py", 2)
    assert [kind for kind, _ in started] == ["log_monitor", "raylet"]
    assert "sleep 1" in " ".join(started[1][1])
    assert (services.start_api_server, services.start_ray_process, parameter.RayParams) == before


@pytest.mark.usefixtures("_linux")
def test_all_servers_start_where_they_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not few_servers.needs_all({"include_dashboard": False, "num_cpus": 2})
    assert few_servers.needs_all({"include_dashboard": True})
    assert few_servers.needs_all({"runtime_env": {"env_vars": {}}, "include_dashboard": True})
    for name in few_servers.ENVIRONMENTS:
        with monkeypatch.context() as patch:
            patch.setenv(name, "a.b")
            assert few_servers.needs_all({})
    monkeypatch.setattr(ray, "__version__", "2.99.0")
    assert few_servers.needs_all({})
    with few_servers.few_servers({}):
        assert isinstance(parameter.RayParams, type)
