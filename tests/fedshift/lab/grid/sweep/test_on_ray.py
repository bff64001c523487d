"""``fedshift sweep --ray``: what a node does of it, what the sweep makes of its answers, and what is refused.

The cluster is threads of this process here; ``test_ray_cluster.py`` has one of Ray.
"""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from played_runs import Compared, Played
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid.sweep import grid, on_ray, ray_address, ray_task, sweeping
from fedshift.lab.grid.sweep.ray_cluster import LostError
from fedshift.lab.grid.sweep.ray_task import Order, Outcome
from fedshift_app.run import exit_codes
from fedshift_app.run.versions import versions
from fedshift_core.atomic_io import Lock
from fedshift_core.errors import ConfigError, FederationError

#: Does as ``fedshift sweep ... --in FOLDER`` does with a run that ``played_runs.SCRIPT`` plays.
SINGLE = """
import runpy, sys
place = sys.argv.index("--in")
play = {play!r}
sys.argv = [play, *sys.argv[2:place], "output-dir=" + sys.argv[place + 1]]
runpy.run_path(play, run_name="__main__")
"""


class Thread:
    """A task that a thread does; ``how`` takes its outcome's place."""

    def __init__(self, future: "Future[Outcome]", how: Exception | None) -> None:
        self._future, self._how = future, how
        self.cancelled = False

    @property
    def ended(self) -> bool:
        return self._future.done()

    def outcome(self) -> Outcome:
        outcome = self._future.result()
        if self._how is not None:
            raise self._how
        return outcome

    def cancel(self) -> None:
        self.cancelled = True


class Threads:
    """A cluster of threads."""

    def __init__(self, rooms: int = 2) -> None:
        self.rooms = rooms
        self.pool = ThreadPoolExecutor(4)
        self.orders: list[tuple[str, int]] = []
        self.fates: list[Exception | None] = []

    def places(self, cores: int) -> int:
        return self.rooms // cores

    def submit(self, order: Order, cores: int, name: str) -> Thread:
        self.orders.append((name, cores))
        how = self.fates.pop(0) if self.fates else None
        # A node that is lost has done nothing.
        done = self.pool.submit(lambda: Outcome(0, "", "gone") if how is not None else ray_task.do(order))
        return Thread(done, how)


@pytest.fixture
def cluster(played: Played, monkeypatch: pytest.MonkeyPatch) -> Threads:
    single = played.home / "single.py"
    single.write_text(SINGLE.format(play=str(played.script)))
    monkeypatch.setattr(ray_task, "sweep_command", lambda: [sys.executable, str(single)])
    monkeypatch.setattr(ray_task, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(on_ray, "SHARED_SECONDS", 0.3)
    return Threads()


def swept(played: Played, cluster: Threads, *arguments: str) -> None:
    """Do a sweep on a cluster, as ``on_ray.sweep`` does without Ray."""
    played.prepare(*[word for word in arguments if not word.startswith(("jobs", "workers"))])
    request = grid.read(["handwritten", f"output-dir={played.home / 'runs'}", *arguments])
    points, folder = sweeping.resolved(request, "", lambda *_: None, grid.unchecked)
    on_ray.check_room(cluster, points)
    with on_ray.held(folder):
        on_ray.RaySweep(folder, request, points, cluster).run("")


def test_nodes_do_all_runs_and_a_sweep_that_is_given_again_does_none(
    played: Played, cluster: Threads, compared: type[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    swept(played, cluster, "seed=0,1,2")
    assert sorted(played.started) == ["0 new", "1 new", "2 new"] and played.states() == ["finished"] * 3
    assert cluster.orders == [(f"fedavg seed={seed}", 1) for seed in range(3)]
    assert "3 runs, 0 of them finished" in capsys.readouterr().out
    swept(played, cluster, "seed=0,1,2")
    assert len(played.started) == 3 and [len(runs) for runs, _, _ in compared.calls] == [3, 3]
    played.sweep("seed=0,1,2")  # nor does one on this machine
    assert len(played.started) == 3


def test_a_run_whose_node_is_lost_is_handed_out_again_but_not_for_ever(
    played: Played, cluster: Threads, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.fates = [LostError("its node died")] * 2
    swept(played, cluster, "seed=0")
    assert played.states() == ["finished"] and played.points[0]["attempts"] == 3
    assert capsys.readouterr().err.count("fedavg: lost, another node goes on with it: its node died\n") == 2
    cluster.fates = [LostError("its node died")] * 9
    with pytest.raises(FederationError, match="1 of 1 run failed: fedavg"):
        swept(played, cluster, "seed=7")
    assert len(cluster.fates) == 9 - on_ray.MOST_LOSSES - 1


def test_a_run_that_fails_is_named_with_its_reason_and_others_are_done(
    played: Played, cluster: Threads, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fate(1, "fail")
    cluster.fates = [RuntimeError("ModuleNotFoundError: No module named 'fedshift'"), None, None]
    with pytest.raises(FederationError, match="2 of 3 runs failed: fedavg seed=0, fedavg seed=1"):
        swept(played, cluster, "seed=0,1,2", "jobs=1")
    assert played.states() == ["failed", "failed", "finished"]
    told = capsys.readouterr().err
    assert "fedavg seed=0: failed, left at that: ModuleNotFoundError: No module named 'fedshift'" in told
    assert "fedavg seed=1: failed, left at that: no node is left" in told


def test_a_run_that_another_process_has_is_waited_for(
    played: Played, cluster: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, codes = ray_task._once, [exit_codes.IN_USE, exit_codes.IN_USE]
    monkeypatch.setattr(ray_task, "_once", lambda *given: (codes.pop(), "") if codes else real(*given))
    swept(played, cluster, "seed=0")
    assert played.states() == ["finished"] and not codes


def test_a_run_takes_the_cores_of_its_workers_and_no_cluster_without_them(played: Played, cluster: Threads) -> None:
    swept(played, cluster, "seed=0", "workers=2")
    assert cluster.orders == [("fedavg", 2)]
    with pytest.raises(ConfigError, match=r"--ray: a run takes 3 cores .*, and no node has so many"):
        swept(played, cluster, "seed=0", "workers=3")


def test_a_node_refuses_what_it_cannot_do_alike(tmp_path: Path) -> None:
    (point,), _ = grid.points(grid.read(["handwritten"]), lambda *_: None)
    (tmp_path / "lock-ray").write_text("mine")
    order = Order(
        ("handwritten",), str(tmp_path), str(tmp_path), "lock-ray", "mine", point.config, versions(point.config)
    )
    assert not ray_task.refusal(order)
    for wrong, why in (
        (
            replace(order, held="another's"),
            f"does not see {tmp_path}; output-dir must be a folder that all nodes share",
        ),
        (replace(order, folder=str(tmp_path / "none")), "output-dir must be"),
        (replace(order, here=str(tmp_path / "none")), f"it has no folder {tmp_path / 'none'}, from which"),
        (replace(order, versions=order.versions | {"torch": "1.0"}), "torch "),
    ):
        outcome = ray_task.do(wrong)
        assert outcome.code == exit_codes.REFUSED and "\n" not in outcome.error
        assert outcome.error.startswith(f"node {socket.gethostname()}: ") and why in outcome.error
    assert ray_task.refusal(replace(order, versions=order.versions | {"torch": "1.0"})).endswith("instead of 1.0")


def test_a_node_that_does_not_share_the_folder_is_told_from_one_that_does(
    played: Played, cluster: Threads, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_task, "_once", lambda *_: (exit_codes.OK, ""))  # its results land elsewhere
    with pytest.raises(FederationError):
        swept(played, cluster, "seed=0")
    assert "its folder holds no results; is the folder shared?" in capsys.readouterr().err


def test_an_interrupted_task_ends_its_run(played: Played, cluster: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    played.prepare("seed=0")
    played.fate(0, "sleep")
    (point,), _ = grid.points(grid.read(["handwritten", "seed=0"]), lambda *_: None)
    (played.home / "lock").write_text("x")
    order = Order(
        point.arguments, str(played.home), str(played.home), "lock", "x", point.config, versions(point.config)
    )

    def interrupted(process: "subprocess.Popen[str]", timeout: float | None = None) -> tuple[str, str]:
        while not (played.home / "started").exists():
            time.sleep(0.02)
        if timeout == ray_task.WAIT_SECONDS:
            raise KeyboardInterrupt
        process.wait(timeout)
        return "", ""

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ray_task.do(order)
    with pytest.raises(ProcessLookupError):
        os.kill(played.pids[0], 0)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("failed: fedavg: no node is left (log: /x)\nerror: 1 of 1 runs failed: fedavg", "no node is left"),
        ("note\nerror: method.tau: expected a number\n", "method.tau: expected a number"),
        ("Killed\n", "Killed"),
        ("", "ended with code 9 without a message"),
    ],
)  # fmt: skip
def test_the_reason_is_that_of_the_run(output: str, told: str) -> None:
    assert ray_task.reason(output, 9) == told


def test_a_folder_in_use_is_refused_both_ways(tmp_path: Path) -> None:
    with on_ray.held(tmp_path):
        with pytest.raises(ConfigError, match="already in progress"), on_ray.held(tmp_path):
            pass
        with pytest.raises(ConfigError, match="already in progress"):
            sweeping.lock(tmp_path)
        Lock(tmp_path / "lock", shared=True).release()  # as single runs take it
    sweeping.lock(tmp_path).release()


def test_an_address_without_a_cluster_is_refused_in_one_line() -> None:
    with socket.socket() as listening:  # nobody listens once it is closed
        listening.bind(("127.0.0.1", 0))
        free = listening.getsockname()[1]
    for address, why in (
        ("nowhere", "expected HOST:PORT or ray://HOST:PORT, found 'nowhere'"),
        ("host:0", "expected HOST:PORT"),
        ("ray://host", "expected HOST:PORT"),
        (f"127.0.0.1:{free}", f"nothing answers at '127.0.0.1:{free}': Connection refused"),
    ):
        error = CliRunner().invoke(cli.app, ["sweep", "handwritten", "--ray", address]).exception
        assert isinstance(error, ConfigError) and "\n" not in str(error)
        assert str(error).startswith("--ray: ") and why in str(error)


def test_another_program_at_the_address_is_not_taken_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "ANSWER_SECONDS", 1.0)
    told = r"no cluster of Ray answers at '127.0.0.1:\d+'; see `ray status`"
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(ConfigError, match=told):
        ray_address.check(f"127.0.0.1:{listening.getsockname()[1]}")  # it never answers


@pytest.mark.parametrize("option", [["--list"], ["--in", "x"], ["--dry-run"]])
def test_it_goes_with_no_other_form(option: list[str]) -> None:
    error = CliRunner().invoke(cli.app, ["sweep", "handwritten", "--ray", "h:1", *option]).exception
    assert isinstance(error, ConfigError) and "--ray goes alone or with --paper TABLE" in str(error)


def test_a_simulation_is_refused_before_the_cluster_is_asked() -> None:
    with pytest.raises(ConfigError, match="--ray needs engine=inline, found engine=simulation"):
        on_ray.sweep(["handwritten", "engine=simulation"], "", "127.0.0.1:1", lambda *_: None)
