"""``fedshift sweep --ray``: what a node does of it, what the sweep makes of its answers, and what is refused.

Ray is threads of this process here; ``test_ray_cluster.py`` has a cluster.
"""

import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_runs import Compared, Played
from refusals import refused
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid.sweep import grid, on_ray
from fedshift_app.run.versions import versions
from fedshift_core.errors import ConfigError, FederationError

#: Does as ``fedshift sweep ... --in FOLDER`` does with a run that ``played_runs.SCRIPT`` plays.
SINGLE = """
import runpy, sys
place = sys.argv.index("--in")
play = {play!r}
sys.argv = [play, *sys.argv[2:place], "output-dir=" + sys.argv[place + 1]]
runpy.run_path(play, run_name="__main__")
"""


class Threads(SimpleNamespace):
    """What the sweep uses of the module ``ray``."""

    exceptions = SimpleNamespace(RayError=LookupError)  # of a task that a node did not bring to its end
    init = shutdown = staticmethod(lambda **_: None)
    cluster_resources = staticmethod(lambda: {"CPU": 2})

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2}}, {"Alive": False, "Resources": {"CPU": 64}}]

    def get(self, task: "Future[str]") -> str:
        return task.result()

    def wait(self, tasks: Sequence["Future[str]"], *, timeout: float, num_returns: int = 1) -> tuple[Any, Any]:
        done, left = wait_for(tasks, timeout)
        return list(done), list(left)

    def remote(self, function: Any) -> Any:
        def hand_out(*given: Any) -> "Future[str]":
            if not self.fates:
                return self.pool.submit(function, *given)
            failed: Future[str] = Future()
            failed.set_exception(self.fates.pop(0))
            return failed

        def options(num_cpus: int, **_: Any) -> Any:
            self.cores_of_tasks.append(num_cpus)
            return SimpleNamespace(remote=hand_out)

        return SimpleNamespace(options=options)


@pytest.fixture
def cluster(played: Played, monkeypatch: pytest.MonkeyPatch) -> Threads:
    single = played.home / "single.py"
    single.write_text(SINGLE.format(play=str(played.script)))
    monkeypatch.setattr(on_ray, "sweep_command", lambda: [sys.executable, str(single), "sweep"])
    monkeypatch.setattr(on_ray, "SHARED_SECONDS", 0.3)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # only a main thread may
    threads = Threads(pool=ThreadPoolExecutor(4), cores_of_tasks=[], fates=[])
    monkeypatch.setitem(sys.modules, "ray", threads)
    return threads


def swept(played: Played, *arguments: str) -> None:
    played.prepare(*[word for word in arguments if not word.startswith(("jobs", "workers"))])
    with socket.create_server(("127.0.0.1", 0)) as head:
        given = ["handwritten", f"output-dir={played.home / 'runs'}", *arguments]
        on_ray.sweep(given, "", f"127.0.0.1:{head.getsockname()[1]}")


def test_nodes_do_all_runs_and_a_sweep_that_is_given_again_does_none(
    played: Played, cluster: Threads, compared: type[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    swept(played, "seed=0,1,2")
    assert sorted(played.started) == ["0 new", "1 new", "2 new"] and played.states() == ["finished"] * 3
    assert cluster.cores_of_tasks == [1] * 3
    with refused(ConfigError, "--ray: a run takes 4 cores"):
        swept(played, "seed=0", "workers=4")
    assert "3 runs, 0 of them finished" in capsys.readouterr().out
    swept(played, "seed=0,1,2")
    assert len(played.started) == 3 and [len(runs) for runs, _, _ in compared.calls] == [3, 3]
    played.sweep("seed=0,1,2")  # nor does one on this machine
    assert len(played.started) == 3


def test_a_run_that_fails_is_named_with_its_reason_and_others_are_done(
    played: Played, cluster: Threads, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fate(1, "fail")
    cluster.fates = [LookupError("trace\nModuleNotFoundError: No module named 'fedshift'")]
    with pytest.raises(FederationError, match="2 of 3 runs failed: fedavg seed=0, fedavg seed=1"):
        swept(played, "seed=0,1,2", "jobs=1")
    assert played.states() == ["failed", "failed", "finished"]
    output = capsys.readouterr().err
    assert "fedavg seed=0: failed, left at that: ModuleNotFoundError: No module named 'fedshift'" in output
    assert f"seed=1: failed, left at that: node {socket.gethostname()}: error: no node is left" in output


@pytest.mark.usefixtures("cluster")
def test_a_node_refuses_what_it_cannot_do_alike(tmp_path: Path) -> None:
    (point,), _ = grid.points(grid.read(["handwritten"]))
    (tmp_path / on_ray.LOCK).write_text("mine")
    none, there = tmp_path / "none", versions(point.config)
    for folder, here, holder, found, why in (
        (tmp_path, tmp_path, "another's", there, f"does not see {tmp_path} and "),
        (none, tmp_path, "mine", there, f"does not see {none} and {tmp_path}: all nodes must share output-dir"),
        (tmp_path, none, "mine", there, f"does not see {tmp_path} and {none}: "),
        (tmp_path, tmp_path, "mine", there | {"torch": "1.0"}, "other versions than where the sweep was started: "),
    ):  # fmt: skip
        error = on_ray.do(["false"], folder, here, holder, found, point.config)
        assert error.startswith(f"node {socket.gethostname()}: it ") and why in error and "\n" not in error
    assert on_ray.do(["true"], tmp_path, tmp_path, "mine", there, point.config) == ""


def test_an_address_without_a_cluster_or_a_simulation_is_refused_in_one_line() -> None:
    with socket.socket() as listening:  # nobody listens once it is closed
        listening.bind(("127.0.0.1", 0))
        free = listening.getsockname()[1]
    for address in ("nowhere", "ray://host", f"127.0.0.1:{free}"):
        with pytest.raises(ConfigError, match=f"--ray: .*'{address}'") as caught:
            on_ray.sweep(["handwritten"], "", address)
        assert "\n" not in str(caught.value)
    for words, named in (("engine=simulation", "engine=simulation"), ("--list", "--ray HOST:PORT")):
        with refused(ConfigError, named):
            given = ["sweep", "handwritten", "--ray", "127.0.0.1:1", words]
            CliRunner().invoke(cli.app, given, catch_exceptions=False)
