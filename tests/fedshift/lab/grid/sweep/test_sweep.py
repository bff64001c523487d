"""``fedshift sweep``: what is printed before anything starts, and runs that fail or are killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_runs import Compared, Played
from refusals import refused

from fedshift.lab.grid.sweep import children, grid, progress, sweeping
from fedshift.lab.grid.sweep.grid import Point
from fedshift.lab.tables import compare as tables
from fedshift.run.launch import processes, runner, worker_count
from fedshift_app.config.keys import FREE
from fedshift_app.config.resolving import resolve
from fedshift_app.node import data as node_data
from fedshift_core.atomic_io import Lock
from fedshift_core.errors import ConfigError, DataError, FederationError, FedShiftError


def gridded(*arguments: str) -> tuple[list[Point], list[str]]:
    return grid.points(grid.read(["handwritten", *arguments]))


# --- runs, played by a script ---------------------------------------------------------------------------------


def test_all_runs_are_done_then_compared(
    played: Played, compared: type[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    played.sweep("seed=0,1,2", paper="i2pfl.tableiidigits")
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/3]", "[2/3]", "[3/3]"]
    page = played.folder / "compare.html"
    assert lines[-3:] == ["the table", f"comparison: {page}", f"sweep folder: {played.folder}"]
    assert page.read_text() == "the page"
    ((runs, paper, different),) = compared.calls
    assert ([run.split("-")[1] for run in runs], paper, different) == (["0", "1", "2"], "i2pfl.tableiidigits", False)
    assert {path.suffix for path in played.folder.glob("compare.*")} == {".md", ".csv", ".html"}
    for seed, point in enumerate(played.points):
        assert (point["state"], point["attempts"], point["error"]) == ("finished", 1, None)
        assert (played.folder / point["folder"] / "results.json").is_file() and point["seconds"] >= 1.5
        assert point["arguments"] == ["handwritten", f"seed={seed}", "report=false", "engine=inline"]
    # The same command again runs nothing and compares; nothing is read of what it wrote.
    (played.folder / "sweep.json").write_text("{")
    played.sweep("seed=2,1,0", "engine=inline", "actors=1")
    assert played.started == ["0 new", "1 new", "2 new"] and len(compared.calls) == 2
    assert played.states() == ["finished"] * 3
    with contextlib.suppress(FederationError):  # the script knows seeds only: it does not do the second bn
        played.sweep("seed=0", "model.bn=average,freeze")
    assert compared.calls[-1][-1]  # what the grid varies may differ in the table


def test_a_run_that_fails_again_is_left_and_named_and_the_others_are_compared(
    played: Played, compared: type[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    played.fate(1, "fail", "fail")
    with pytest.raises(FederationError, match=r"^1 of 3 runs failed: fedavg seed=1$"):
        played.sweep("seed=0,1,2")
    assert "failed: fedavg seed=1: no node is left (log: " in capsys.readouterr().err
    assert played.states() == ["finished", "failed", "finished"]
    assert played.points[1]["error"] == "no node is left"
    assert len(compared.calls[0][0]) == 2
    played.sweep("seed=0,1,2")  # the same command gives it another chance
    assert played.states() == ["finished"] * 3
    assert played.points[1]["attempts"] == 3


def test_nothing_is_written_or_started_when_a_run_of_the_grid_is_wrong(played: Played) -> None:
    def check(config: Any, nodes: int) -> None:
        if config.seed == 2:
            raise DataError("/data/x.npz: is broken")

    played.check = check
    with refused(DataError, "fedavg seed=2: /data/x.npz"):
        played.sweep("seed=0,1,2")
    requests = [f"output-dir={played.home / 'runs'}", "train.lr=0.1,-1"]
    with refused(ConfigError, "fedavg train.lr=-1: "):
        sweeping.sweep(requests, "")
    for paper in ("nope", "f2dc.table4"):
        with pytest.raises(ConfigError):
            played.sweep("seed=0", paper=paper)
    assert not (played.home / "runs").exists()
    (played.home / "runs").write_text("")
    with refused(ConfigError, "output-dir"):
        played.sweep("seed=0")
    assert played.started == []


def test_two_sweeps_in_one_folder_are_refused(played: Played) -> None:
    played.sweep("seed=0")
    lock = Lock(played.folder / "lock")
    with pytest.raises(ConfigError, match=rf"is already in progress in process {os.getpid()} on "):
        played.sweep("seed=0")
    lock.release()
    played.sweep("seed=0")


@pytest.fixture
def on_images(played: Played, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sweeps on images of a version, which runs write down."""
    monkeypatch.setattr(node_data, "fingerprints", lambda _: played.images)

    def sweep(train: str, *arguments: str, **more: dict[str, str]) -> None:
        played.images = {"a": {"train": train, "test": "1"}, **more}
        played.sweep(*arguments)

    return sweep


def test_finished_runs_of_other_sweeps_are_taken_only_if_asked_and_of_the_same_versions_and_images(
    played: Played, on_images: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    on_images("1", "seed=0,1")
    on_images("1", "seed=0,1,2", "reuse=true")
    assert played.started == ["0 new", "1 new", "2 new"]
    assert capsys.readouterr().out.count(": reused from ") == 2
    on_images("1", "seed=0,2")
    assert played.started[3:] == ["0 new", "2 new"]
    on_images("1", "seed=1,3", "reuse=true", b={"validation": "1"})
    assert "is not reused: b validation had other images" in capsys.readouterr().out
    for file in played.home.glob("runs/*/*/config.yaml"):
        file.write_text(file.read_text().replace("fedshift: ", "fedshift: older-"))
    on_images("1", "seed=1,2", "reuse=true")
    assert played.started[-2:] == ["1 new", "2 new"] and len(played.started) == 9
    assert "is not reused: it was made with other versions" in capsys.readouterr().out


def test_a_finished_run_on_other_images_is_named_and_done_again(
    played: Played, on_images: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    on_images("1", "seed=0,1", "data-dir=A")
    on_images("1", "seed=0,1", "data-dir=B")  # the same images in another folder
    assert len(played.started) == 2
    on_images("2", "seed=0,1", "data-dir=B")
    assert played.started[2:] == ["0 new", "1 new"] and len(list(played.folder.glob("run-*"))) == 4
    shown = capsys.readouterr()
    assert "2 runs, 0 of them finished" in shown.out
    assert re.search(r"^fedavg seed=0: done again, .* but a train had other images$", shown.err, re.M)
    for train in ("2", "1"):  # those of both images are kept
        on_images(train, "seed=0,1")
    assert capsys.readouterr().out.count("2 runs, 2 of them finished") == 2 and len(played.started) == 4


def test_unless_it_is_said_runs_are_inline_and_take_the_cores_side_by_side(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(worker_count.WORKERS)
    monkeypatch.setattr(worker_count, "cores", lambda: 4)

    def jobs_of(*arguments: str) -> int:
        requested = grid.read(["handwritten", *arguments])
        return sweeping.Sweep(played.home, requested, grid.points(requested)[0]).jobs

    assert "engine=inline" in gridded()[0][0].arguments
    for keys, jobs in (
        ([], 4), (["workers=2"], 2), (["train.threads=3"], 1), (["jobs=3"], 3), (["engine=simulation"], 1),
        (["actors=2"], 1),
    ):  # fmt: skip
        assert jobs_of(*keys) == jobs
    played.sweep("seed=5,6", "jobs=4")  # which share the cores
    logs = [path.read_text() for path in played.home.glob("runs/sweep-*/*.log")]
    assert [line.count("workers=2") for line in logs] == [1, 1]


def test_runs_that_do_not_compare_have_a_table_all_the_same_with_the_reason(
    played: Played, compared: type[Compared], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tables.compare

    def strict(runs: Sequence[Path], *, paper: str = "", allow_different: bool = False) -> Any:
        if not allow_different:
            raise ConfigError("nodes is 2 (a) and 3 (b)")
        return whole(runs, paper=paper, allow_different=allow_different)

    monkeypatch.setattr(tables, "compare", strict)
    played.sweep("seed=0")
    assert "the table\nnodes is 2 (a) and 3 (b)\n" in capsys.readouterr().out and compared.calls[0][2]


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_ctrl_c_and_sigterm_stop_the_run_and_say_how_to_go_on(
    stop: BaseException, code: int, played: Played, compared: type[Compared], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    played.fate(1, "sleep")
    show = progress.Bar.show

    def interrupt(bar: progress.Bar, names: list[str], left: float | None) -> None:
        show(bar, names, left)
        if list((played.home / "runs").glob("*/run-1-*/config.yaml")):
            raise stop

    monkeypatch.setenv(sweeping.COMMAND, "fedshift sweep handwritten seed=0,1")
    with monkeypatch.context() as patch:
        patch.setattr(progress.Bar, "show", interrupt)
        with pytest.raises(SystemExit) as caught:
            played.sweep("seed=0,1")
    assert caught.value.code == code
    output = capsys.readouterr().err
    assert "stopped, 1 of 2 runs are finished\nto continue: fedshift sweep handwritten seed=0,1\n" in output
    assert (played.states(), compared.calls) == (["finished", "waiting"], [])
    assert not any(map(psutil.pid_exists, played.pids))
    played.sweep("seed=0,1")
    assert played.started == ["0 new", "1 new", "1 resumed"]
    assert played.states() == ["finished", "finished"]


def test_what_a_killed_sweep_left_running_is_ended_first(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.sweep("seed=0")
    orphan = subprocess.Popen(["sleep", "60"], env=os.environ | {children.MARK: str(played.folder)})
    played.sweep("seed=0")
    assert orphan.wait(5) in (-signal.SIGTERM, 0)  # 0: somebody else has asked before
    assert "1 process of a sweep that was killed was still running here and was ended" in capsys.readouterr().out


# --- what cannot run --------------------------------------------------------------------------------------------


def test_a_run_says_to_its_sweep_that_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedshift import cli

    def code(error: FedShiftError) -> object:
        with pytest.raises(SystemExit) as stop:
            cli.fail(error)
        return stop.value.code

    assert code(ConfigError("x")) == 1
    monkeypatch.setenv(children.STARTER, processes.this_process())
    assert [code(error("x")) for error in (ConfigError, DataError, FederationError)] == [78, 78, 1]


def test_a_refusal_after_the_run_folder_was_made_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inline, and through ``flwr run``, of which the status file says it."""
    from fedshift_app import server_app

    fields = {"state": "failed", "run_folder": str(tmp_path), "error": "x"}

    def begun(_grid: Any, context: Any) -> None:
        Path(os.environ[runner.STATUS_FILE]).write_text(json.dumps(fields))
        raise context.run_config["error"]

    monkeypatch.setattr(server_app, "app", begun)
    for error, kind in ((DataError("b"), ConfigError), (FederationError("c"), FederationError)):
        with pytest.raises(kind, match=f"^{error}\n"):
            runner.run_inline({"error": error}, 2)
    status = tmp_path / "status.json"
    for final, kind in ((True, ConfigError), (False, FederationError)):
        status.write_text(json.dumps(fields | {"run_folder": None, "refused": final}))
        with pytest.raises(kind):
            runner._outcome(status, 0, None)


@pytest.mark.parametrize(
    ("fates", "started", "message"),
    [
        (["die"], ["new", "resumed"], ""),
        (["fail", "refuse"], ["new", "resumed", "new"], "fedavg: started again, as "),
        (["wrong"], ["new"], "fedavg: failed, left at that: modules f2dc: the network has no feature map"),
    ],
)
def test_a_run_that_ends_early_is_continued_or_begun_anew_but_not_if_it_is_refused(
    fates: list[str], started: list[str], message: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fate(0, *fates)
    with contextlib.nullcontext() if len(started) > 1 else pytest.raises(FederationError, match="1 of 1 run"):
        played.sweep("seed=0", "retries=3")
    assert played.started == [f"0 {how}" for how in started]
    assert message in capsys.readouterr().err


# --- the grid -----------------------------------------------------------------------------------------------


# --- the grid -------------------------------------------------------------------------------------------------

PLAIN = st.text(st.characters(codec="ascii", exclude_characters=",[]{}'\"", categories=["L", "N", "P"]), min_size=1)
LISTS = st.lists(PLAIN, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
QUOTED = st.lists(PLAIN, min_size=1, max_size=3).map(lambda parts: f"'{','.join(parts)}'")


@given(st.lists(PLAIN | LISTS | QUOTED, min_size=1, max_size=5, unique=True), st.sampled_from([",", ", "]))
def test_commas_in_brackets_and_quotes_are_part_of_a_value(values: list[str], comma: str) -> None:
    assert grid.split("key", comma.join(values)) == tuple(values)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("seed=0,,1", "'0,,1'"), ("seed=0,1,0", "'0' comes twice"), ("seed=0 seed=1", "seed comes twice"),
        ("method=fedavg handwritten", "key=value"), ("experiment=handwritten", "experiment"),
        ("resume=runs/1", "resume"),
        ("order=random", "'random'"), ("retries=-1", "'-1'"), ("jobs=2 engine=simulation", "engine=inline"),
        ("jobs=2 actors=2", "engine=inline"), ("workers=2 engine=simulation", "actors=N"),
        ("method=fedavg,i2pfl method.taw=1", "method.taw"), ("method=fedavg,nope", "'nope'"),
        ("train.lr=0.1,-1", "fedavg train.lr=-1: "), ("seed=0,x", "fedavg seed=x: "),
        ("engine=inline,simulation", "'inline,simulation'"), ("nodes=8,1", "fedavg nodes=1: "),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_refused(arguments: str, named: str) -> None:
    with refused(ConfigError, named):
        gridded(*arguments.split())


def test_seeds_are_outermost_and_a_recipes_parameters_are_those_of_the_method() -> None:
    given = ("method=fedavg,f2dc", "method.sigma=0.1,5", "seed=0,1")
    points, _ = gridded(*given)
    rows = ["fedavg {}", "f2dc method.sigma=0.1 {}", "f2dc method.sigma=5 {}"]
    assert [point.label for point in points] == [row.format(f"seed={seed}") for seed in (0, 1) for row in rows]
    assert [point.config.modules[0]["sigma"] for point in points[1:3]] == [0.1, 5.0]
    by_method = gridded(*given, "order=method-first")[0]
    assert [point.label for point in by_method[:2]] == ["fedavg seed=0", "fedavg seed=1"]


def test_a_parameter_that_a_method_lacks_is_left_out_and_equal_runs_are_one() -> None:
    points, notes = gridded("method=fedavg,i2pfl,fedproto", "seed=0,1", "method.tau=0.02,0.07")
    assert [point.label for point in points if "seed=0" in point.label] == [
        "fedavg seed=0", "i2pfl seed=0 method.tau=0.02", "i2pfl seed=0 method.tau=0.07", "fedproto seed=0",
    ]  # fmt: skip
    assert notes == [
        "method.tau is left out for fedavg, fedproto: no such parameter",
        "8 runs instead of 12: equal configurations count once",
    ]
    assert all("method.tau" not in " ".join(point.arguments) for point in points if "i2pfl" not in point.label)


def test_the_name_of_a_grid_knows_no_order_and_nothing_that_decides_no_number() -> None:
    def name(arguments: str) -> str:
        return grid.grid_hash([point.key for point in gridded(*arguments.split())[0]])

    assert name("seed=0,1 method=fedavg,fedprox") == name("method=fedprox,fedavg seed=1,0 engine=inline")
    assert name("seed=0,1") == name("seed=0,1 profile=true order=method-first actors=1 data-dir=x")
    assert len({*map(name, ("seed=0,1", "seed=0,1,2", "seed=0,1 rounds=3", "seed=0,1 nodes=4"))}) == 4


@pytest.mark.parametrize(
    "key", [key for key in FREE if key not in ("model.weights", "dataset.hub")]
)  # its SHA-256 is, not its place
def test_what_may_differ_on_resume_is_not_part_of_the_identity(key: str) -> None:
    value = {
        "dataset.data_dir": "/x", "dataset.download": "true", "profile": "true",
        "federation.log_received": "true", "tracking": "tensorboard",
        "evaluate.figures": "false", "evaluate.site_figures": "false", "keep_rounds": "[2]",
        "dataset.classes_stated": "false",
    }  # fmt: skip
    config = resolve({"set": f"{key}={value.get(key, '9.0')}"})
    assert config != resolve({})
    assert grid.identity(config, 8) == grid.identity(resolve({}), 8) != grid.identity(config, 4)


# --- the time left --------------------------------------------------------------------------------------------
