"""Runs of a sweep that are forked: as processes of their own, with the same numbers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import until

from fedshift.lab.grid.sweep import children, forks, grid
from fedshift.run.launch import forked
from fedshift_app.run import exit_codes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")

PATIENCE = 120.0  # seconds
QUICK = ("handwritten", "engine=inline", "nodes=4", "train.epochs=1", "allocation.share=0.05")


@pytest.fixture(scope="module")
def begun() -> Iterator[bool]:
    points, _ = grid.points(grid.read([*QUICK, "seed=0,1", "report=true"]))
    with forks.begun(points, children.environment("forks-of-runs", alone=False)) as these:
        yield these


def start(begun: bool, log: Path, *arguments: str) -> children.Child:
    return children.start(
        forked.run_command([]), arguments, log, sweep="forks-of-runs", key=log.name, alone=False, fork=begun,
    )  # fmt: skip


def ends(child: children.Child) -> int:
    assert until(lambda: child.ended, PATIENCE)
    return child.code


def run_of(folder: Path, child: children.Child) -> psutil.Process:
    """Return the process of a run once it has trained for a round; it is forked."""
    assert until(lambda: any(file.stat().st_size for file in folder.glob("*/metrics.jsonl")) or child.ended, PATIENCE)
    (status,) = folder.glob("*/status.json")
    assert not child.ended, child.last_error()
    (process,) = [p for p in psutil.process_iter() if p.name() == "fedshift run" and _has_open(p, status.parent)]
    assert process.pid == child.process.pid
    return process


def _has_open(process: psutil.Process, folder: Path) -> bool:
    return any(Path(file.path).is_relative_to(folder) for file in process.open_files())


@pytest.mark.parametrize("count", [0, 1])
def test_few_or_simulated_runs_are_not_forked(count: int) -> None:
    engines = ["engine=inline", "engine=simulation"]
    seeds = ("seed=0", "seed=0,1")[count]
    points, _ = grid.points(grid.read([QUICK[0], engines[count], *QUICK[2:], seeds]))
    with forks.begun(points, {}) as none:
        assert not none


def test_a_refused_run_is_known_as_such(begun: bool, tmp_path: Path) -> None:
    child = start(begun, tmp_path / "log", "no-such-experiment")
    assert ends(child) == exit_codes.REFUSED
    assert child.refused
    assert "no-such-experiment" in child.last_error()


@pytest.mark.slow
def test_a_forked_run_has_the_weights_and_the_report_of_one_of_its_own(begun: bool, tmp_path: Path) -> None:
    given = (*QUICK, "rounds=2", "workers=1", "train.momentum=0.9")
    for name, how in (("forked", begun), ("plain", False)):
        assert ends(start(how, tmp_path / f"{name}.log", *given, f"output-dir={tmp_path / name}")) == 0
    files = {path.relative_to(path.parents[1]).name for path in (tmp_path / "plain").glob("*/*")}
    assert "report.html" in files
    assert files == {path.name for path in (tmp_path / "forked").glob("*/*")}
    (one,), (other,) = (
        (tmp_path / name).glob("*/checkpoint/weights-00002.safetensors") for name in ("forked", "plain")
    )
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_has_ended_when_the_sweep_goes_on(begun: bool, tmp_path: Path) -> None:
    child = start(begun, tmp_path / "log", *QUICK, "rounds=1000", "report=false", f"output-dir={tmp_path}")
    run = run_of(tmp_path, child)
    children.stop([child])
    assert child.code == exit_codes.TERMINATED
    assert not run.is_running() or run.status() == psutil.STATUS_ZOMBIE
    assert "continue with: fedshift run" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_run_whose_fork_server_was_killed_is_ended(begun: bool, tmp_path: Path) -> None:
    child = start(begun, tmp_path / "log", *QUICK, "rounds=1000", "report=false", f"output-dir={tmp_path}")
    run = run_of(tmp_path, child)
    run.parent().kill()
    assert until(lambda: child.ended, PATIENCE)
    child.clean_up()
    assert not run.is_running() or run.status() == psutil.STATUS_ZOMBIE
    assert ends(start(begun, tmp_path / "next", "--help")) == 0  # there is another one


def test_nothing_of_the_working_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    points, _ = grid.points(grid.read([*QUICK, "seed=0,1"]))
    with forks.begun(points, children.environment(str(tmp_path), alone=False)) as these:
        assert ends(start(these, tmp_path / "log", "--help")) == 0
    assert "Run an experiment" in (tmp_path / "log").read_text()
