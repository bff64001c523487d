"""``fedshift sweep``: the grid, what is printed before anything starts, and runs that fail or are killed."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_runs import Compared, Played

from fedshift.lab.grid.sweep import children, grid, progress, running, sweeping
from fedshift.lab.grid.sweep.grid import Point
from fedshift.lab.grid.sweep.progress import Timed, time_left
from fedshift.run import checking
from fedshift.run.launch import processes, runner, worker_count
from fedshift_app.config.keys import FREE
from fedshift_app.config.resolving import resolve
from fedshift_app.node import data as node_data
from fedshift_core.atomic_io import Lock
from fedshift_core.errors import ConfigError, DataError, FederationError, FedShiftError

QUICK = ("engine=inline", "nodes=4", "rounds=2", "train.epochs=1", "allocation.share=0.05")


def gridded(*arguments: str) -> tuple[list[Point], list[str]]:
    return grid.points(grid.read(["handwritten", *arguments]))


def labels(*arguments: str) -> list[str]:
    return [point.label for point in gridded(*arguments)[0]]


# --- the grid -------------------------------------------------------------------------------------------------

PLAIN = st.text(st.characters(codec="ascii", exclude_characters=",[]{}'\"", categories=["L", "N", "P"]), min_size=1)
LISTS = st.lists(PLAIN, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
QUOTED = st.lists(PLAIN, min_size=1, max_size=3).map(lambda parts: f"'{','.join(parts)}'")


@given(st.lists(PLAIN | LISTS | QUOTED, min_size=1, max_size=5, unique=True), st.sampled_from([",", ", "]))
def test_commas_in_brackets_and_quotes_are_part_of_a_value(values: list[str], comma: str) -> None:
    assert grid.split("key", comma.join(values)) == tuple(values)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("[street,sketch]", ["[street,sketch]"]),
        ("[street,sketch],[scan]", ["[street,sketch]", "[scan]"]),
        ("{scan: 1, street: [2,3]},{scan: 2}", ["{scan: 1, street: [2,3]}", "{scan: 2}"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"]",1', ['"]"', "1"]),
    ],
)
def test_split(text: str, values: list[str]) -> None:
    assert grid.split("key", text) == tuple(values)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["seed=0,,1"], ["seed", "missing", "'0,,1'"]),
        (["seed="], ["seed", "missing"]),
        (["seed=0,1,0"], ["seed", "'0' comes twice"]),
        (["seed=0", "seed=1"], ["seed comes twice", "seed=A,B"]),
        (["method=fedavg", "handwritten"], ["'handwritten'", "key=value"]),
        (["experiment=handwritten"], ["experiment", "first argument"]),
        (["resume=runs/1"], ["resume", "same command"]),
        (["order=random"], ["order", "'seed-first' or 'method-first'", "'random'"]),
        (["retries=-1"], ["retries", "greater than or equal to 0", "'-1'"]),
        (["reuse=maybe"], ["reuse", "'maybe'"]),
        (["jobs=2", "engine=simulation"], ["jobs=2", "engine=inline"]),
        (["jobs=2", "actors=2"], ["jobs=2", "engine=inline"]),
        (["workers=2", "engine=simulation"], ["workers=2", "engine=inline", "actors=N"]),
        (["method=fedavg,i2pfl", "method.taw=1"], ["method.taw", "no method of the grid", "i2pfl has alpha"]),
        (["method=fedavg,nope"], ["nope", "unknown method 'nope'"]),
        (["train.lr=0.1,-1"], ["fedavg train.lr=-1: ", "greater than 0"]),
        (["seed=0,x"], ["fedavg seed=x: ", "whole number"]),
        (["engine=inline,simulation"], ["engine", "'inline,simulation'"]),
        (["nodes=8,1"], ["fedavg nodes=1: ", "at least 2 nodes"]),
    ],
)
def test_a_wrong_grid_is_refused(arguments: list[str], reason: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        gridded(*arguments)
    for part in reason:
        assert part in str(caught.value)


def test_seeds_are_outermost_so_that_all_methods_soon_have_one() -> None:
    requested = ("method=fedavg,fedbn", "seed=0,1", "model.name=cnn_bn")
    assert labels(*requested) == ["fedavg seed=0", "fedbn seed=0", "fedavg seed=1", "fedbn seed=1"]
    assert labels(*requested, "order=method-first") == [
        "fedavg seed=0",
        "fedavg seed=1",
        "fedbn seed=0",
        "fedbn seed=1",
    ]


def test_a_recipes_parameters_are_parameters_of_the_method() -> None:
    points, notes = gridded("method=fedavg,f2dc,fedicon", "method.sigma=0.1,5", "method.tta=true,false")
    assert [point.label for point in points] == [
        "fedavg", "f2dc method.sigma=0.1", "f2dc method.sigma=5", "fedicon method.tta=true", "fedicon method.tta=false"
    ]  # fmt: skip
    assert [point.config.modules[0]["sigma"] for point in points[1:3]] == [0.1, 5.0]
    assert [point.config.adapt["name"] for point in points[3:]] == ["fedicon", "none"]
    assert notes[:2] == [
        "method.sigma is left out for fedavg, fedicon: no such parameter",
        "method.tta is left out for fedavg, f2dc: no such parameter",
    ]


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


def test_values_that_mean_the_same_are_one_run() -> None:
    points, notes = gridded("train.lr=0.1,0.10,1e-1")
    assert len(points) == len(notes) == 1


def test_the_method_may_be_that_of_the_experiment_or_a_dotted_key() -> None:
    assert labels("seed=0") == ["fedavg"]
    assert labels("method.name=fedavg,i2pfl", "method.tau=0.1") == ["fedavg", "i2pfl"]


def test_a_child_is_given_what_was_typed() -> None:
    (point,) = gridded("allocation.held_out=[street,sketch]", "actors=2", "data-dir=a,b", "set=train.lr=0.1")[0]
    assert point.arguments == (
        "handwritten", "allocation.held_out=[street,sketch]", "actors=2", "data-dir=a,b", "set=train.lr=0.1",
        "report=false",
    )  # fmt: skip
    assert point.config.allocation.held_out == ("street", "sketch")
    assert "report=true" in gridded("report=true")[0][0].arguments


def test_the_name_of_a_grid_knows_no_order_and_nothing_that_decides_no_number() -> None:
    def name(*arguments: str) -> str:
        return grid.grid_hash([point.key for point in gridded(*arguments)[0]])

    assert name("seed=0,1", "method=fedavg,fedprox") == name("method=fedprox,fedavg", "seed=1,0", "engine=inline")
    assert name("seed=0,1") == name("seed=0,1", "profile=true", "order=method-first", "actors=1", "data-dir=x")
    assert len({name("seed=0,1"), name("seed=0,1,2"), name("seed=0,1", "rounds=3"), name("seed=0,1", "nodes=4")}) == 4


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


def test_a_run_that_fetched_its_weights_is_the_one_that_was_asked_for() -> None:
    """Its folder holds their SHA-256, the grid has none: it was done again and again, and counted as failed."""
    config = resolve({"set": "model.name=torchvision:resnet18 model.download=true"})
    fetched = config.model_copy(update={"model": config.model.model_copy(update={"weights_sha256": "a" * 64})})
    assert grid.identity(fetched, 8) == grid.identity(config, 8) != grid.identity(resolve({}), 8)
    own = fetched.model_copy(update={"model": fetched.model.model_copy(update={"download": False})})
    other = own.model_copy(update={"model": own.model.model_copy(update={"weights_sha256": "b" * 64})})
    assert grid.identity(own, 8) != grid.identity(other, 8)  # of a file of the user's own it counts


# --- the time left --------------------------------------------------------------------------------------------


def test_time_left_scales_by_rounds_and_knows_methods() -> None:
    done = [Timed("fedavg", 10, 10.0), Timed("fpl", 10, 50.0)]
    assert time_left([], [], [Timed("fedavg", 10, 0.0)], 1) is None
    assert time_left(done, [], [Timed("fedavg", 20, 0.0)], 1) == 20.0
    assert time_left(done, [], [Timed("fpl", 5, 0.0), Timed("moon", 10, 0.0)], 1) == 25.0 + 30.0
    assert time_left(done, [(Timed("fedavg", 10, 0.0), 4.0)], [], 1) == 6.0
    assert time_left(done, [(Timed("fedavg", 10, 0.0), 90.0)], [], 1) == 9.0  # overdue, and not about to end
    assert time_left(done, [], [Timed("fpl", 10, 0.0)] * 4, 2) == 100.0
    assert time_left(done, [], [], 2) == 0.0


def test_the_bar_is_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=100))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.Bar(6, 2) as bar:
        bar.show(["i2pfl seed=0"], 65.0)
        bar.count()
    assert "3/6" in screen.getvalue()
    assert "left 1:05  i2pfl seed=0" in screen.getvalue()


# --- runs, played by a script ---------------------------------------------------------------------------------


def test_all_runs_are_done_then_compared(
    played: Played, compared: type[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    played.sweep("seed=0,1,2", paper="i2pfl.table1")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("[")] == [
        "[1/3] fedavg seed=0", "[2/3] fedavg seed=1", "[3/3] fedavg seed=2",
    ]  # fmt: skip
    assert "avg 52.0" in lines[-4] and lines[-4].endswith("left 0:00")
    page = played.folder / "compare.html"
    assert lines[-3:] == ["the table", f"comparison: {page}", f"sweep folder: {played.folder}"]
    assert page.read_text() == "the page"
    assert played.started == ["0 new", "1 new", "2 new"]
    ((runs, paper, different),) = compared.calls
    assert ([run.split("-")[1] for run in runs], paper, different) == (["0", "1", "2"], "i2pfl.table1", False)
    assert {path.suffix for path in played.folder.glob("compare.*")} == {".md", ".csv", ".html"}
    for point in played.points:
        assert (point["state"], point["attempts"], point["error"]) == ("finished", 1, None)
        assert (played.folder / point["folder"] / "results.json").is_file()
        assert point["seconds"] >= 1.5
        assert point["arguments"] == ["handwritten", point["label"].split()[1], "report=false", "engine=inline"]


def test_the_same_command_again_runs_nothing_and_compares(played: Played, compared: type[Compared]) -> None:
    played.sweep("seed=0,1")
    (played.folder / "sweep.json").write_text("{")  # nothing is read of it
    played.sweep("seed=1,0", "engine=inline", "actors=1")
    assert len(played.started) == 2
    assert len(compared.calls) == 2
    assert played.states() == ["finished", "finished"]


def test_results_without_their_time_are_reported(played: Played) -> None:
    played.sweep("seed=0")
    (file,) = played.folder.glob("*/results.json")
    file.write_text('{"avg": 1.0}')
    with pytest.raises(ConfigError, match=r"results\.json: rounds: Field required"):
        played.sweep("seed=0")


def test_runs_that_cannot_stand_in_one_table_are_compared_in_groups(
    played: Played, compared: type[Compared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After hours of training there is a table, and it says why it has groups."""
    module = sys.modules["fedshift.lab.tables.compare"]
    usual = module.compare

    @dataclasses.dataclass(frozen=True)
    class Numbers:
        notes: tuple[str, ...] = ()

    @dataclasses.dataclass(frozen=True)
    class Table:
        numbers: Numbers = Numbers()

        def text(self, _: object = None) -> str:
            return "; ".join(self.numbers.notes)

        markdown = csv = html = text

    def compare(runs: Any, *, paper: str = "", allow_different: bool = False) -> Table:
        usual(runs, paper=paper, allow_different=allow_different)
        if not allow_different:
            raise ConfigError("these runs differ in model.bn")
        return Table()

    monkeypatch.setattr(module, "compare", compare)
    played.sweep("seed=0,1")
    assert [call[-1] for call in compared.calls] == [False, True]
    assert (played.folder / "compare.md").read_text() == "these runs differ in model.bn"


@pytest.mark.parametrize(("settings", "different"), [("seed=0,1", False), ("model.bn=average,freeze", True)])
def test_only_what_the_grid_varies_may_differ_in_the_table(
    settings: str, different: bool, played: Played, compared: type[Compared]
) -> None:
    with contextlib.suppress(FederationError):  # the script knows seeds only: it does not do the second bn
        played.sweep("seed=0", settings) if different else played.sweep(settings)
    assert compared.calls[-1][-1] is different


def test_a_failed_run_is_tried_again_at_the_end_and_reported(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fate(0, "fail")
    played.sweep("seed=0,1")
    assert played.started == ["0 new", "1 new", "0 resumed"]
    output = capsys.readouterr().err
    (log,) = played.folder.glob("fedavg-seed=0-*.log")
    assert output == f"fedavg seed=0: failed, it is tried again at the end: no node is left (log: {log})\n"
    assert [line for line in log.read_text().splitlines() if line.startswith("--- attempt")][1].startswith(
        "--- attempt: fedshift run handwritten seed=0 report=false engine=inline output-dir="
    )
    assert [(point["state"], point["attempts"]) for point in played.points] == [("finished", 2), ("finished", 1)]


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


def test_retries_0_leaves_a_failed_run(played: Played) -> None:
    played.fate(0, "fail")
    with pytest.raises(FederationError, match="1 of 1 run failed"):
        played.sweep("seed=0", "retries=0")
    assert played.started == ["0 new"]


def test_a_run_that_is_killed_is_continued(played: Played) -> None:
    played.fate(0, "die")
    played.sweep("seed=0")
    assert played.started == ["0 new", "0 resumed"]
    assert len(list(played.folder.glob("run-*"))) == 1


def test_a_run_that_cannot_be_continued_is_begun_anew_and_that_is_reported(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fate(0, "fail", "refuse")
    played.sweep("seed=0")
    assert played.started == ["0 new", "0 resumed", "0 new"]
    assert "fedavg: started again, as " in (result := capsys.readouterr().err)
    assert "cannot be continued: resume: the weights" in result


def test_a_refusal_is_known_before_a_run_is_continued(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.fate(0, "fail", "fail")
    with pytest.raises(FederationError):
        played.sweep("seed=0")
    (run,) = played.folder.glob("run-*")
    (run / "metrics.jsonl").write_text("".join(json.dumps({"round": i}) + "\n" for i in (1, 2)))
    played.sweep("seed=0")
    assert played.started[2:] == ["0 new"]
    assert "2 full rounds in metrics.jsonl, but no checkpoint" in capsys.readouterr().err


def test_what_counts_is_what_is_on_disk(played: Played) -> None:
    played.fate(0, "late")  # ended with another code after it had finished
    played.sweep("seed=0")
    assert (played.started, played.states()) == (["0 new"], ["finished"])


def test_nothing_is_written_or_started_when_a_run_of_the_grid_is_wrong(played: Played) -> None:
    def check(config: Any, nodes: int) -> None:
        if config.seed == 2:
            raise DataError("/data/x.npz: is broken")

    played.check = check
    with pytest.raises(DataError, match=r"^fedavg seed=2: /data/x.npz: is broken$"):
        played.sweep("seed=0,1,2")
    requests = [f"output-dir={played.home / 'runs'}", "train.lr=0.1,-1"]
    with pytest.raises(ConfigError, match=r"^fedavg train\.lr=-1: "):
        sweeping.sweep(requests, "")
    with pytest.raises(ConfigError, match="there is no table 'nope'"):
        played.sweep("seed=0", paper="nope")
    with pytest.raises(ConfigError, match="it prints costs, which runs do not have"):
        played.sweep("seed=0", paper="f2dc.table4")
    assert not (played.home / "runs").exists()
    assert played.started == []


def test_images_and_pairs_are_looked_at_once_for_all_runs_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    data: list[tuple[int, int]] = []
    models: list[str] = []
    monkeypatch.setattr(checking, "check_data", lambda config, nodes: data.append((config.seed, nodes)))
    monkeypatch.setattr(checking, "check_model", lambda config: models.append(config.method["name"]))
    grid.check(gridded("method=fedavg,i2pfl", "seed=0,1", "train.lr=0.1,0.2")[0])
    assert (data, models) == ([(0, 8), (1, 8)], ["fedavg", "i2pfl"])


def test_two_sweeps_in_one_folder_are_refused(played: Played) -> None:
    played.sweep("seed=0")
    lock = Lock(played.folder / "lock")
    with pytest.raises(ConfigError, match=rf"is already in progress in process {os.getpid()} on "):
        played.sweep("seed=0")
    lock.release()
    played.sweep("seed=0")


def test_finished_runs_of_other_sweeps_are_taken_only_if_asked_and_of_the_same_versions(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.sweep("seed=0,1")
    played.sweep("seed=0,1,2", "reuse=true")
    assert played.started == ["0 new", "1 new", "2 new"]
    assert capsys.readouterr().out.count(": reused from ") == 2
    played.sweep("seed=0,2")
    assert played.started[3:] == ["0 new", "2 new"]
    for file in played.home.glob("runs/*/*/config.yaml"):
        file.write_text(file.read_text().replace("fedshift: ", "fedshift: older-"))
    played.sweep("seed=1,2", "reuse=true")
    assert played.started[5:] == ["1 new", "2 new"]
    assert "is not reused: it was made with other versions" in capsys.readouterr().out


class Read:
    """Images as they are now, and how often they were read; runs write down what they are."""

    def __init__(self, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
        self.played, self.times, self.now = played, 0, {"a": {"train": "1", "test": "1"}}
        monkeypatch.setattr(node_data, "fingerprints", self)

    def __call__(self, config: Any) -> dict[str, dict[str, str]]:
        self.times += 1
        return self.now

    def sweep(self, train: str, *arguments: str) -> None:
        self.times, self.now = 0, {"a": {"train": train, "test": "1"}}
        self.played.images = self.now
        self.played.sweep("seed=0,1", *arguments)


def test_a_finished_run_on_other_images_is_named_and_done_again(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = Read(played, monkeypatch)
    read.sweep("1", "data-dir=A")
    read.sweep("1", "data-dir=B")  # the same images in another folder
    assert len(played.started) == 2 and read.times == 1
    read.sweep("2", "data-dir=B")
    assert played.started[2:] == ["0 new", "1 new"] and len(list(played.folder.glob("run-*"))) == 4
    told = capsys.readouterr()
    assert "2 runs, 0 of them finished" in told.out
    assert re.search(r"^fedavg seed=0: done again, as \S+ is finished, but a train had other images$", told.err, re.M)
    for train in ("2", "1"):  # those of both images are kept
        read.sweep(train)
        assert "2 runs, 2 of them finished" in capsys.readouterr().out
    assert len(played.started) == 4


def test_a_run_on_other_images_is_not_reused_in_another_sweep(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = Read(played, monkeypatch)
    read.sweep("1")
    read.now = played.images = {"a": {"train": "1", "test": "1"}, "b": {"validation": "1"}}
    played.sweep("seed=1,2", "reuse=true")
    assert played.started[2:] == ["1 new", "2 new"]
    assert re.search(r": \S+ is not reused: b validation had other images", capsys.readouterr().out)


def test_runs_of_versions_that_wrote_no_images_stay_finished(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    Read(played, monkeypatch)
    for _ in range(2):
        played.sweep("seed=0")
    assert len(played.started) == 1


def test_inline_runs_go_side_by_side(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    show = progress.Bar.show
    monkeypatch.setattr(progress.Bar, "show", lambda s, names, left: most.append(len(names)) or show(s, names, left))
    played.sweep("engine=inline", "seed=0,1,2,3", "jobs=3")
    assert max(most) == 3
    assert played.states() == ["finished"] * 4


def test_unless_it_is_said_runs_are_inline_and_take_the_cores_side_by_side(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(worker_count.WORKERS)
    monkeypatch.setattr(worker_count, "cores", lambda: 4)

    def of(*arguments: str) -> sweeping.Sweep:
        requested = grid.read(["handwritten", *arguments])
        played.home.joinpath("sweep").mkdir(exist_ok=True)
        return sweeping.Sweep(played.home / "sweep", requested, grid.points(requested)[0])

    assert "engine=inline" in gridded()[0][0].arguments
    assert [of(*more).jobs for more in ([], ["workers=2"], ["train.threads=3"], ["jobs=3"])] == [4, 2, 1, 3]
    assert [of(*more).jobs for more in (["engine=simulation"], ["actors=2"])] == [1, 1]
    assert [of()._share(waiting) for waiting in (0, 1, 3, 9)] == [4, 2, 1, 1]  # one that is alone gets all cores
    played.sweep("seed=0,1", "jobs=4", "workers=1")
    played.sweep("seed=5,6", "jobs=4")
    logs = [path.read_text() for path in sorted(played.home.glob("runs/sweep-*/*.log"))]
    assert sorted(line.count("workers=2") for line in logs) == [0, 0, 1, 1]


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
    assert not any(is_alive(pid) for pid in played.pids)
    played.sweep("seed=0,1")
    assert played.started == ["0 new", "1 new", "1 resumed"]
    assert played.states() == ["finished", "finished"]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_what_a_killed_sweep_left_running_is_ended_first(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.sweep("seed=0")
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {children.MARK: str(played.folder)}
    )
    played.sweep("seed=0")
    assert orphan.wait(5) in (-signal.SIGTERM, 0)  # 0: somebody else has asked before
    assert "1 process of a sweep that was killed was still running here and was ended" in capsys.readouterr().out


def test_the_watchdog_of_a_killed_sweep_leaves_the_runs_of_the_next_one(tmp_path: Path) -> None:
    log, sweep = tmp_path / "log", f"sweep-{os.getpid()}"
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    killed = subprocess.Popen(
        [
            sys.executable, "-c",
            "import pathlib, sys, time\n"
            "from fedshift.lab.grid.sweep import children\n"
            "with children.guarded(str):\n"
            " child = children.start(sys.argv[3:], [], pathlib.Path(sys.argv[1]), sweep=sys.argv[2], key='a',"
            " alone=True)\n"
            " print(child.process.pid, flush=True)\n"
            " time.sleep(60)",
            str(log), sweep, *sleeper,
        ],
        env=os.environ | {"PYTHONPATH": str(runner.APP)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert killed.stdout is not None
    left = int(killed.stdout.readline())
    next_one = children.start(sleeper, [], log, sweep=sweep, key="a", alone=True)  # the same marks
    try:
        killed.kill()
        killed.wait()
        killed.stdout.close()
        wait_for(lambda: not is_alive(left))
        time.sleep(1)
        assert next_one.process.poll() is None
    finally:
        next_one.process.kill()
        next_one.process.wait()


def test_the_real_command_runs_this_tree(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(9)")  # of the working folder, which must not come first
    result = subprocess.run(
        [*running.run_command(), "--nonsense"], env=os.environ | {"PYTHONPATH": str(runner.APP)},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2 and "--nonsense" in result.stderr


# --- real runs ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_killed_sweep_and_killed_run_end_with_the_numbers_of_an_undisturbed_sweep(
    tmp_path: Path, compared: type[Compared], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = ["handwritten", *QUICK[:2], "rounds=20", *QUICK[3:], "seed=0,1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def sweep(output: Path) -> Path:
        sweeping.sweep([*requests, f"output-dir={output}"], "")
        (folder,) = output.iterdir()
        return folder

    def rounds(seed: int) -> list[Path]:
        return [path for path in broken.glob(f"*/*seed{seed}*/metrics.jsonl") if path.stat().st_size]

    sweep(whole)
    first = subprocess.Popen(
        [sys.executable, "-P", "-m", "fedshift", "sweep", *requests, f"output-dir={broken}"],
        env=os.environ | {"PYTHONPATH": str(runner.APP)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: bool(rounds(0)))
    first.kill()
    first.wait()
    show, killed = progress.Bar.show, []

    def kill(bar: progress.Bar, names: list[str], left: float | None) -> None:
        show(bar, names, left)
        if rounds(1) and not killed:
            (folder,) = broken.iterdir()
            killed.extend(processes._marked(children.MARK, str(folder)))
            for process in killed:
                process.kill()

    monkeypatch.setattr(progress.Bar, "show", kill)
    folder = sweep(broken)
    assert killed
    points = json.loads((folder / "sweep.json").read_text())["points"]
    assert [point["state"] for point in points] == ["finished", "finished"]
    assert all(point["attempts"] >= 2 for point in points)  # on a busy machine both were killed twice
    assert numbers(whole) == numbers(broken)
    assert all("resumed_after" in results for results in all_results(broken))
    assert not any("resumed_after" in results for results in all_results(whole))


def wait_for(there: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_results(output: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(output.glob("*/*/results.json"))]


def numbers(output: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in results.items() if key not in ("seconds", "resumed_after")}
        for results in all_results(output)
    ]


def test_what_this_process_itself_started_is_no_leftover(
    played: Played, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A helper of a trial that has ended outlives it by a moment (``tune`` then starts a sweep in its folder)."""
    played.sweep("seed=0")
    capsys.readouterr()
    own = {children.MARK: str(played.folder), children.STARTER: processes.this_process()}
    lingering = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | own)
    played.sweep("seed=0")
    assert lingering.wait(5) in (-signal.SIGTERM, 0)
    assert "was killed" not in capsys.readouterr().out


# --- what cannot run --------------------------------------------------------------------------------------------


def test_a_pair_of_method_and_network_that_cannot_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    arguments = [
        "handwritten", "method=fedavg,f2dc", "model.name=cnn,timm:vit_tiny_patch16_224", f"output-dir={tmp_path}",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"^F2DC|^f2dc") as caught:
        sweeping.sweep(arguments, "")
    assert "model.name=timm:vit_tiny_patch16_224: modules f2dc: the network" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_networks_of_nodes_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve({"method": "fedproto", "set": "model.per_node=[cnn,cnn_bn]"})
    from fedshift_app.node import setup

    built: list[str] = []
    real = setup.initial_model
    monkeypatch.setattr(
        setup, "initial_model", lambda cfg, own=None: (built.append((own or cfg.model).name), real(cfg, own))[1]
    )
    checking.check_model(config)
    assert {"cnn", "cnn_bn"} <= set(built)


def test_what_is_refused_is_not_tried_again(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.fate(1, "wrong")
    with pytest.raises(FederationError, match="1 of 2 runs failed: fedavg seed=1"):
        played.sweep("seed=0,1", "retries=3")
    assert "seed=1: failed, left at that: modules f2dc: the network has no feature map" in capsys.readouterr().err
    assert played.started == ["0 new", "1 new"]


@pytest.mark.parametrize(
    ("error", "swept", "code"),
    [
        (ConfigError("x"), True, 78),
        (DataError("x"), True, 78),
        (FederationError("x"), True, 1),
        (ConfigError("x"), False, 1),
    ],
)
def test_a_run_says_to_its_sweep_that_it_is_refused(
    error: FedShiftError, swept: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedshift import cli

    if swept:
        monkeypatch.setenv(children.STARTER, processes.this_process())
    with pytest.raises(SystemExit) as stop:
        cli.fail(error)
    assert stop.value.code == code


def test_a_refusal_after_the_run_folder_was_made_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inline, and through ``flwr run``, of which the status file says it."""
    from fedshift_app import server_app

    def begun(_grid: Any, context: Any) -> None:
        fields = {"state": "failed", "run_folder": str(tmp_path), "error": "x"}
        Path(os.environ[runner.STATUS_FILE]).write_text(json.dumps(fields))
        raise context.run_config["error"]

    monkeypatch.setattr(server_app, "app", begun)
    for error, kind in (
        (ConfigError("a"), ConfigError),
        (DataError("b"), ConfigError),
        (FederationError("c"), FederationError),
    ):
        with pytest.raises(kind, match=f"^{error}\n"):
            runner.run_inline({"error": error}, 2)
    status = tmp_path / "status.json"
    for refused, kind in ((True, ConfigError), (False, FederationError)):
        status.write_text(json.dumps({"state": "failed", "run_folder": None, "error": "x", "refused": refused}))
        with pytest.raises(kind):
            runner._outcome(status, 0, None)  # type: ignore[arg-type]
