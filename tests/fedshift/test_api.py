"""FedShift from Python: the same runs and errors as the command's, in any thread, loop and folder."""

import asyncio
import doctest
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from support import InlineRun, Killed, ran

import fedshift as fs
from fedshift import api
from fedshift.api import calling
from fedshift.run.launch import runner
from fedshift_app import server_app
from fedshift_core import extensions

SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.06"
#: A run of a second.
QUIET: Any = {"engine": "inline", "progress": False}
FEW: Any = {"nodes": 2, "rounds": 1, "train": {"epochs": 1}, "allocation": {"share": 0.06}}
TINY = QUIET | FEW | {"dataset": {"domains": ["scan", "sketch"]}}


@pytest.fixture(autouse=True)
def _own_folder(here: Path) -> Any:
    yield
    extensions.forget()  # one of the examples registers a method


def test_the_examples_of_the_docstrings_are_true() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    checker = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    others = {"DomainClient": fs.Client, "cross_entropy": fs.losses.cross_entropy}
    found = [example for part in (api, fs.method, fs.methods, fs.compare) for example in finder.find(part)]
    for example in sorted(found, key=lambda found: found.name != "fedshift.api.run"):  # it makes the run
        example.globs |= others
        checker.run(example)
    assert checker.summarize(verbose=False).failed == 0
    assert checker.summarize(verbose=False).attempted >= 8


def test_the_package_imports_nothing_and_names_all() -> None:
    code = "import sys, fedshift as fs; print([m for m in ('flwr', 'torch', 'numpy', 'pandas') if m in sys.modules])"
    assert ran("-c", code).stdout == "[]\n"
    for name in dir(fs):
        assert getattr(fs, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fs.nothing  # noqa: B018


def test_a_run_is_that_of_the_command_and_an_object(run_inline: InlineRun) -> None:
    run = fs.run("handwritten", name="first", method="fedprox", **TINY)
    same = run_inline(f"nodes=2 method=fedprox rounds=1 {SHORT}")
    assert run.results.weights_sha256 == same.results["weights_sha256"]
    assert run.folder == Path("runs", "first").resolve() and run.finished and run.state == "completed"
    assert run.results.values["avg"] == run.results.avg and run.config["method"]["name"] == "fedprox"
    assert "command: fedshift run handwritten method=fedprox" in (run.folder / "config.yaml").read_text()
    assert any("info round 1/1" in line for line in run.log())
    assert repr(run).startswith("Run('runs/first': completed, average ")
    again = fs.load("runs/first")
    assert again.results == run.results and len(again.rounds) == 1


def test_it_works_in_a_running_event_loop_and_in_other_threads_and_one_at_a_time(capfd: Any) -> None:
    """It prints nothing, and leaves nothing in the environment."""

    async def main() -> fs.Run:
        return fs.run("handwritten", **TINY)

    before = dict(os.environ)
    runs = [asyncio.run(main())]
    assert dict(os.environ) == before and capfd.readouterr() == ("", "")
    thread = threading.Thread(target=lambda: runs.append(fs.run("handwritten", **TINY)))
    thread.start()
    thread.join()
    assert len({run.results.weights_sha256 for run in runs}) == 1 and len(runs) == 2
    with calling.call("", progress=True), refused(fs.FedShiftError, "fedshift"):
        fs.run("handwritten", **TINY)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs two rounds, after the first of which an error comes."""

    def run(error: type[BaseException], **given: Any) -> None:
        call = server_app.Progress.__call__

        def cut_off(self: Any, result: Any, weights: Any) -> None:
            call(self, result, weights)
            if result.server_round == 1:
                raise error

        with monkeypatch.context() as patch:
            patch.setattr(server_app.Progress, "__call__", cut_off)
            with pytest.raises(error):
                fs.run("handwritten", **TINY | {"rounds": 2} | given)

    return run


def test_a_name_is_taken_once_and_kept_by_a_resumed_run(cut: Any) -> None:
    cut(Killed, name="first")
    assert not fs.load("runs/first").finished
    for call, *named in (
        (lambda: fs.load("runs/first").results, "first"),
        (lambda: fs.run("handwritten", name="first", **TINY), "first"),
        (lambda: fs.run(resume="runs/first", name="second", **QUIET), "name", "'first'", "'second'"),
        # The ServerApp itself refuses a name that is taken, before it asks a node.
        (lambda: runner.run_inline({"experiment": "handwritten", "name": "first"}, 2), "first"),
    ):
        with refused(fs.ConfigError, *named):
            call()
    resumed = fs.run(resume="runs/first", name="first", **QUIET)
    whole = fs.run("handwritten", name="whole", **TINY | {"rounds": 2})
    assert resumed.name == "first" and resumed.results.weights_sha256 == whole.results.weights_sha256


def test_an_interrupted_run_goes_on(cut: Any, capfd: pytest.CaptureFixture[str]) -> None:
    cut(KeyboardInterrupt, name="cut", progress=True)
    assert fs.load("runs/cut").state == "interrupted"
    assert "continue with: fedshift run resume=" in capfd.readouterr().err
    assert fs.run(resume="runs/cut", **QUIET).state == "completed"


def test_a_run_its_model_and_a_saved_one_classify_alike(finished_run: InlineRun, tmp_path: Path) -> None:
    run = fs.load(finished_run(f"nodes=2 method=fedprox rounds=2 {SHORT}").folder)
    model, saved = run.model(), run.save(tmp_path / "saved")
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3), np.uint8)
    (tmp_path / "images").mkdir()
    for name, image in zip("01", images, strict=True):
        Image.fromarray(image).save(tmp_path / "images" / f"{name}.png")
    scores = model(model.preprocess(list(images)))
    assert (model.classes, model.size, scores.shape) == (tuple("0123456789"), 32, (2, 10))
    assert model.predict(images[0]) == [model.classes[int(scores[0].argmax())]]
    opened = fs.load_model(saved)
    assert (opened(opened.preprocess(list(images))) == scores).all()
    predictions = [fs.predict(each, tmp_path / "images") for each in (run, model, saved)]
    assert all(np.array_equal(each.probabilities, predictions[0].probabilities) for each in predictions)
    for call, *named in (
        (lambda: model.preprocess(images[0] / 255), "uint8"),
        (lambda: run.save(format="pickle"), "--format: 'pickle'"),
        (lambda: fs.predict(run, "images", adapt="t3a"), "adapt"),
        (lambda: fs.predict(run, "*.jpeg"), "'*.jpeg'"),
    ):
        with refused(fs.ConfigError, *named):
            call()


def test_runs_are_compared_by_folder_pattern_or_object(finished_run: InlineRun, tmp_path: Path) -> None:
    first, second = (
        fs.load(finished_run(f"nodes=2 method={name} rounds=2 {SHORT}").folder) for name in ("fedavg", "fedprox")
    )
    given = ("runs/*", [first, second], tmp_path / "runs", [first.folder, "runs/*prox*"])
    table, *others = map(fs.compare, given)
    assert {other.text() for other in others} == {table.text()}
    page = table.to_html("table.html")
    assert page == tmp_path / "table.html" and "fedprox" in page.read_text()
    with refused(fs.ConfigError, "no/table.html"):
        table.to_html("no/table.html")
    with refused(fs.ConfigError, "compare"):
        fs.compare([])


def test_a_method_is_an_object() -> None:
    fpl = fs.method("fpl")
    assert fpl.parameters["tau"].description and fpl.travels and fpl.text.startswith("fpl: ")
    assert [method.name for method in fs.methods()] == list(dict.fromkeys(m.name for m in fs.methods()))
    with refused(fs.ConfigError, "'fplx'"):
        fs.method("fplx")


def test_models_are_evaluated_as_the_command_does(finished_run: InlineRun) -> None:
    run = fs.load(finished_run(f"nodes=2 method=fedavg rounds=2 {SHORT}").folder)
    scored = fs.evaluate(run, **QUIET)
    domains = scored.models[0]["domains"]
    assert {name: of["accuracy"] for name, of in domains.items()} == run.results.final
    assert scored.text().startswith("model") and (scored.folder / "evaluate.json").is_file()
    with refused(fs.ConfigError, "rounds"):
        fs.evaluate(run, rounds=3)


@pytest.mark.slow
def test_a_sweep_is_that_of_the_command_and_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    table = fs.sweep("handwritten", method=["fedprox"], seed=range(1), jobs=2, progress=False, **FEW)
    assert [row.method for row in table.numbers.rows] == ["fedprox"]
    (folder,) = Path("runs").glob("sweep-handwritten-*")
    assert (folder / "compare.html").is_file() and capfd.readouterr() == ("", "")
    with refused(fs.ConfigError, "'nothing'"):
        fs.sweep("handwritten", method=["fedavg", "nothing"])


@pytest.mark.slow
@pytest.mark.long
def test_a_search_says_what_it_has_found() -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    found = fs.tune("handwritten", method=["fedprox"], budget=2, progress=False, **FEW)
    best = found.methods["fedprox"]["best"]
    assert best["trial"] in (0, 1) and set(best["values"]) == set(found.methods["fedprox"]["space"])
    assert {row.method for row in found.table.numbers.rows} == {"fedprox"}


# --- data frames --------------------------------------------------------------------------------------------


def test_rounds_are_rows_by_domain(finished_run: InlineRun) -> None:
    run = fs.load(finished_run(f"nodes=2 method=fedavg rounds=2 {SHORT}").folder)
    frame = run.metrics
    assert list(frame.columns[:4]) == ["round", "domain", "accuracy", "test_loss"]
    assert len(frame) == 2 * 2
    last = frame[frame["round"] == 2].set_index("domain")["accuracy"]
    assert last.to_dict() == dict(run.results.final)
    assert frame["loss"].tolist() == [line["losses"]["loss"] for line in run.rounds for _ in range(2)]


def test_a_comparison_is_rows_by_method_or_by_seed(finished_run: InlineRun) -> None:
    runs = [fs.load(finished_run(f"nodes=2 method={name} rounds=2 {SHORT}").folder) for name in ("fedavg", "fedprox")]
    table = fs.compare(runs)
    frame = table.frame().set_index("method")
    assert frame.loc["fedprox", "AVG"] == pytest.approx(runs[1].results.avg)
    assert frame.loc["fedprox", "difference"] == pytest.approx(runs[1].results.avg - runs[0].results.avg)
    seeds = table.frame("seed")
    assert len(seeds) == 2 * len(table.numbers.columns)
    values = seeds[seeds["method"] == "fedavg"].set_index("column")["value"]
    assert values["scan"] == runs[0].results.domains["scan"]
    with refused(fs.ConfigError, "frame", "'domain'", "method, seed"):
        table.frame("domain")
