"""FedShift from Python: the same runs and errors as the command's, in any thread, loop and folder."""

import asyncio
import doctest
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import InlineRun, Killed, refusal_of

import fedshift as fs
from fedshift import api
from fedshift.api import calling
from fedshift.run.launch import runner
from fedshift_app import server_app
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.run import resuming
from fedshift_core import extensions

SHORT = "train.epochs=1 allocation.share=0.06"
#: A run of a second.
TINY: dict[str, Any] = {"engine": "inline", "nodes": 4, "rounds": 1, "progress": False, "train": {"epochs": 1},
                        "allocation": {"share": 0.06}}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    extensions.forget()  # one of the examples registers a method


def test_the_examples_of_the_docstrings_are_true() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    checker = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    others = {"DomainClient": fs.Client, "cross_entropy": fs.losses.cross_entropy}
    found = [*finder.find(api), *finder.find(fs.compare)]
    for example in sorted(found, key=lambda found: found.name != "fedshift.api.run"):  # it makes the run
        example.globs |= others
        checker.run(example)
    assert checker.summarize(verbose=False).failed == 0
    assert checker.summarize(verbose=False).attempted >= 8


def test_the_package_imports_nothing_and_names_all() -> None:
    code = "import sys, fedshift as fs; print([m for m in ('flwr', 'torch', 'numpy', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    for name in dir(fs):
        assert getattr(fs, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fs.nothing  # noqa: B018


def test_its_functions_keep_their_names_when_rooms_of_the_same_names_are_imported() -> None:
    assert importlib.import_module("fedshift.run") is sys.modules["fedshift.run"] is not fs.run
    assert callable(fs.run)


def test_a_run_is_that_of_the_command_and_an_object(run_inline: InlineRun) -> None:
    run = fs.run("handwritten", name="first", method="fedprox", **TINY)
    same = run_inline(rounds=1, method="fedprox", set="train.epochs=1 allocation.share=0.06")
    assert run.results.weights_sha256 == same.results["weights_sha256"]
    assert run.folder == Path("runs", "first").resolve() and run.finished and run.state == "completed"
    assert run.results.values["avg"] == run.results.avg and run.config["method"]["name"] == "fedprox"
    assert "command: fedshift run handwritten method=fedprox" in (run.folder / "config.yaml").read_text()
    assert any("info round 1/1" in line for line in run.log())
    assert repr(run).startswith("Run('runs/first': completed, average ")
    again = fs.load("runs/first")
    assert again.results == run.results and len(again.rounds) == 1


def test_nothing_stays_in_the_environment(capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    fs.run("handwritten", **TINY)
    assert dict(os.environ) == before
    assert capfd.readouterr() == ("", "")


def test_it_works_in_a_running_event_loop_and_in_other_threads() -> None:
    async def main() -> fs.Run:
        return fs.run("handwritten", **TINY)

    runs = [asyncio.run(main())]
    thread = threading.Thread(target=lambda: runs.append(fs.run("handwritten", **TINY)))
    thread.start()
    thread.join()
    assert len({run.results.weights_sha256 for run in runs}) == 1 and len(runs) == 2


def test_a_second_call_waits_for_nobody() -> None:
    with calling.call("", progress=True):
        text = refusal_of(fs.FedShiftError, fs.run, "handwritten", **TINY)
    assert text.startswith("fedshift: another run, sweep or search is in progress in this process")


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"methods": "fpl"}, "methods=fpl"),
        ({"rounds": 2.5}, "rounds=2.5"),
        ({"train": {"lrr": 1}}, "train.lrr=1"),
        ({"train.lr": -1}, "train.lr=-1"),
        ({"engine": "ray"}, "engine=ray"),
        ({"name": "a/b"}, "name=a/b"),
        ({"name": ".hidden"}, "name=.hidden"),
        ({"method": "fedpro"}, "method=fedpro"),
    ],
)
def test_errors_are_the_commands(given: dict[str, Any], argument: str) -> None:
    def command() -> None:
        flat, _ = parse_arguments(["handwritten", argument])
        resuming.resolve(flat, hold=False)

    expected = refusal_of(fs.ConfigError, command)
    assert refusal_of(fs.ConfigError, fs.run, "handwritten", **given) == expected
    assert not Path("runs").exists()


def test_a_name_is_taken_once_and_kept_by_a_resumed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    call = server_app.Progress.__call__

    def killed(self: Any, result: Any, weights: Any) -> None:
        call(self, result, weights)
        if result.server_round == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(server_app.Progress, "__call__", killed)
        with pytest.raises(Killed):
            fs.run("handwritten", name="first", **TINY | {"rounds": 2})
    assert not fs.load("runs/first").finished
    assert "is not finished" in refusal_of(fs.ConfigError, lambda: fs.load("runs/first").results)
    assert "runs/first exists already" in refusal_of(fs.ConfigError, fs.run, "handwritten", name="first", **TINY)
    keys = {"engine": "inline", "progress": False}
    text = refusal_of(fs.ConfigError, fs.run, resume="runs/first", name="second", **keys)
    assert text.startswith("name: the run that is resumed is called 'first', requested is 'second'")
    resumed = fs.run(resume="runs/first", name="first", **keys)
    whole = fs.run("handwritten", name="whole", **TINY | {"rounds": 2})
    assert resumed.name == "first" and resumed.results.weights_sha256 == whole.results.weights_sha256


def test_plain_flwr_run_takes_a_name_too(tmp_path: Path) -> None:
    """The ServerApp itself refuses one that is taken, before it asks a node."""
    flat = {"experiment": "handwritten", "rounds": 1, "name": "mine", "output-dir": str(tmp_path / "runs"),
            "set": "train.epochs=1 allocation.share=0.06"}  # fmt: skip
    assert runner.run_inline(flat, 4) == tmp_path / "runs" / "mine"
    assert "mine exists already" in refusal_of(fs.ConfigError, runner.run_inline, flat, 4)


def test_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    call = server_app.Progress.__call__

    def interrupted(self: Any, result: Any, weights: Any) -> None:
        call(self, result, weights)
        if result.server_round == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(server_app.Progress, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fs.run("handwritten", name="cut", **TINY | {"rounds": 2, "progress": True})
    assert fs.load("runs/cut").state == "interrupted"
    assert "interrupted; continue with: fedshift run resume=" in capfd.readouterr().err
    assert fs.run(resume="runs/cut", engine="inline", progress=False).state == "completed"


def test_a_model_is_a_module_that_classifies_as_the_saved_one(finished_run: InlineRun, tmp_path: Path) -> None:
    folder = finished_run(rounds=2, method="fedprox", set=SHORT).folder
    run = fs.load(folder)
    model = run.model()
    assert (model.classes, model.size) == (tuple("0123456789"), 32)
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 24, 3), np.uint8)
    scores = model(model.preprocess(list(images)))
    assert scores.shape == (3, 10)
    saved = fs.load_model(run.save(tmp_path / "saved"))
    assert (saved(saved.preprocess(list(images))) == scores).all()
    assert model.predict(images[0]) == [model.classes[int(scores[0].argmax())]]
    assert "array (H, W, 3) or (H, W) of uint8" in refusal_of(fs.ConfigError, model.preprocess, images[0] / 255)
    assert refusal_of(fs.ConfigError, run.save, format="pickle").startswith("--format: 'pickle' is unknown")


def test_predictions_of_a_run_a_module_and_a_saved_model_are_the_same(finished_run: InlineRun, tmp_path: Path) -> None:
    from PIL import Image

    for name, value in (("0", 0), ("1", 255)):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.fromarray(np.full((9, 9, 3), value, np.uint8)).save(tmp_path / "images" / name / "a.png")
    run = fs.load(finished_run(rounds=2, set=SHORT).folder)
    found = [fs.predict(model, tmp_path / "images") for model in (run, run.model(), run.save(tmp_path / "saved"))]
    assert all(np.array_equal(each.probabilities, found[0].probabilities) for each in found)
    assert found[0].metrics() is not None
    assert "adapt needs a saved model" in refusal_of(fs.ConfigError, fs.predict, run, "images", adapt="t3a")
    assert "nothing matches '*.jpeg'" in refusal_of(fs.ConfigError, fs.predict, run, "*.jpeg")


def test_runs_are_compared_by_folder_pattern_or_object(finished_run: InlineRun, tmp_path: Path) -> None:
    first, second = (fs.load(finished_run(rounds=2, method=name, set=SHORT).folder) for name in ("fedavg", "fedprox"))
    tables = [
        fs.compare(given) for given in ("runs/*", [first, second], tmp_path / "runs", [first.folder, "runs/*prox*"])
    ]
    assert len({table.text() for table in tables}) == 1
    page = tables[0].to_html("table.html")
    assert page == tmp_path / "table.html" and "fedprox" in page.read_text()
    assert refusal_of(fs.ConfigError, tables[0].to_html, "no/table.html").startswith("cannot write")
    assert refusal_of(fs.ConfigError, fs.compare, []) == "compare: no run is given"


def test_a_method_is_an_object() -> None:
    fpl = fs.method("fpl")
    assert fpl.parameters["tau"].description and fpl.travels and fpl.text.startswith("fpl: ")
    assert [method.name for method in fs.methods()] == list(dict.fromkeys(m.name for m in fs.methods()))
    assert "unknown method 'fplx'" in refusal_of(fs.ConfigError, fs.method, "fplx")


def test_models_are_evaluated_as_the_command_does(finished_run: InlineRun) -> None:
    run = fs.load(finished_run(rounds=2, set=SHORT).folder)
    scored = fs.evaluate(run, engine="inline", progress=False)
    domains = scored.models[0]["domains"]
    assert {name: of["accuracy"] for name, of in domains.items()} == run.results.final
    assert scored.text().startswith("model") and (scored.folder / "evaluate.json").is_file()
    assert "a model is evaluated as it is" in refusal_of(fs.ConfigError, fs.evaluate, run, rounds=3)


@pytest.mark.slow
def test_a_sweep_is_that_of_the_command_and_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    grid: dict[str, Any] = {"method": ["fedprox"], "seed": range(1), "jobs": 2, "progress": False}
    table = fs.sweep("handwritten", **grid, nodes=4, rounds=1, train={"epochs": 1}, allocation={"share": 0.06})
    assert [row.method for row in table.numbers.rows] == ["fedprox"]
    (folder,) = Path("runs").glob("sweep-handwritten-*")
    assert (folder / "compare.html").is_file() and capfd.readouterr() == ("", "")
    text = refusal_of(fs.ConfigError, fs.sweep, "handwritten", method=["fedavg", "nothing"])
    assert "unknown method 'nothing'" in text


@pytest.mark.slow
@pytest.mark.long
def test_a_search_says_what_it_has_found() -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    found = fs.tune(
        "handwritten", method=["fedprox"], budget=2, nodes=4, rounds=1, train={"epochs": 1},
        allocation={"share": 0.1}, progress=False,
    )  # fmt: skip
    best = found.methods["fedprox"]["best"]
    assert best["trial"] in (0, 1) and set(best["values"]) == set(found.methods["fedprox"]["space"])
    assert {row.method for row in found.table.numbers.rows} == {"fedprox"}
