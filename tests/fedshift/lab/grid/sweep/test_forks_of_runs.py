"""Runs of a sweep that are forked: as processes of their own, with the same numbers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import Command, until

from fedshift.lab.grid.sweep import children, forks, grid
from fedshift.run.launch import forked
from fedshift_app.run import exit_codes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")

PATIENCE = 120.0  # seconds
QUICK = ("handwritten", "engine=inline", "nodes=4", "train.epochs=1", "allocation.share=0.05")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bool]:
    """Begin in a folder with a file of the name of a package that is needed."""
    points, _ = grid.points(grid.read([*QUICK, "seed=0,1", "report=true"]))
    (folder := tmp_path_factory.mktemp("working")).joinpath("typer.py").write_text("raise SystemExit(9)")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with forks.begun(points, children.environment("forks-of-runs", alone=False)) as these:
            yield these


def start(begun: bool, log: Path, *arguments: str) -> children.Child:
    return children.start(
        forked.run_command([]), arguments, log, sweep="forks-of-runs", key=log.name, alone=False, fork=begun,
    )  # fmt: skip


def ends(child: children.Child) -> int:
    assert until(lambda: child.ended, PATIENCE)
    return child.code


def begin(begun: bool, folder: Path) -> tuple[children.Child, psutil.Process]:
    """Start a run without end; return it and its process, which is forked, once it has trained for a round."""
    child = start(begun, folder / "log", *QUICK, "rounds=1000", "report=false", f"output-dir={folder}")
    assert until(lambda: any(file.stat().st_size for file in folder.glob("*/metrics.jsonl")) or child.ended, PATIENCE)
    assert not child.ended, child.last_error()
    (status,) = folder.glob("*/status.json")
    process = psutil.Process(child.process.pid)
    assert process.name() == "fedshift run" and str(status.parent) in str(process.open_files())
    return child, process


@pytest.mark.parametrize(("engine", "seeds"), [("inline", "seed=0"), ("simulation", "seed=0,1")])
def test_few_or_simulated_runs_are_not_forked(engine: str, seeds: str) -> None:
    points, _ = grid.points(grid.read([QUICK[0], f"engine={engine}", *QUICK[2:], seeds]))
    with forks.begun(points, {}) as none:
        assert not none


def test_a_refused_run_is_known_as_such(begun: bool, tmp_path: Path) -> None:
    child = start(begun, tmp_path / "log", "no-such-experiment")
    assert ends(child) == exit_codes.REFUSED
    assert child.refused
    assert "no-such-experiment" in child.last_error()


@pytest.mark.usefixtures("begun")
def test_the_end_of_a_sweep_leaves_python_s_own_resource_tracker_alone() -> None:
    own = psutil.Process().children()
    (tracker,) = [process for process in own if "multiprocessing.resource_tracker" in " ".join(process.cmdline())]
    assert children.MARK not in tracker.environ()


@pytest.mark.slow
def test_a_forked_run_has_the_weights_and_the_report_of_one_of_its_own(
    begun: bool, tmp_path: Path, fedshift: Command
) -> None:
    given = (*QUICK, "rounds=2", "workers=1", "train.momentum=0.9")
    assert ends(start(begun, tmp_path / "log", *given, f"output-dir={tmp_path / 'forked'}")) == 0
    assert fedshift("run", *given, f"output-dir={tmp_path / 'plain'}").code == 0
    forked_run, plain = (
        {path.name: path for path in (tmp_path / name).rglob("*") if path.is_file()} for name in ("forked", "plain")
    )
    assert forked_run.keys() == plain.keys() >= {"report.html"}
    assert len({of["weights-00002.safetensors"].read_bytes() for of in (forked_run, plain)}) == 1


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_has_ended_when_the_sweep_goes_on(begun: bool, tmp_path: Path) -> None:
    child, run = begin(begun, tmp_path)
    children.stop([child])
    assert child.code == exit_codes.TERMINATED
    assert not run.is_running() or run.status() == psutil.STATUS_ZOMBIE
    assert "continue with: fedshift run" in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_run_whose_fork_server_was_killed_is_ended(begun: bool, tmp_path: Path) -> None:
    child, run = begin(begun, tmp_path)
    run.parent().kill()
    assert until(lambda: child.ended, PATIENCE)
    child.clean_up()
    assert not run.is_running() or run.status() == psutil.STATUS_ZOMBIE
    assert ends(start(begun, tmp_path / "next", "--help")) == 0  # there is another one


def test_nothing_of_the_working_folder_is_imported(begun: bool, tmp_path: Path) -> None:
    assert Path("typer.py").is_file() and ends(start(begun, tmp_path / "log", "--help")) == 0
    assert "Run an experiment" in (tmp_path / "log").read_text()
