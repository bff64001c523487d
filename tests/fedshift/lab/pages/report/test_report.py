"""``report.html`` shows what the run's files say, refers to nothing outside itself, and always comes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from run_folders import RESULTS
from support import ROOT, InlineRun, Run, node, on_images
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.pages.report import build as report_build
from fedshift.lab.pages.report import by_class, command, curves, maps, predictions
from fedshift.run import reading
from fedshift.run.html import drawing
from fedshift_app.config import registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.rounds import last_rounds

Report = Callable[..., Any]
QUICK = "train.epochs=1 allocation.share=0.05"
TWO = "dataset.domains=[scan,sketch]"
DOMAINS = ("scan", "street")


def check_results(page: Any, results: dict[str, Any]) -> None:
    """Compare the table of the page with a summary, number by number."""
    head, *rows = page.tables["results"]
    shown = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    assert list(shown) == [*results["domains"], "AVG", "STD"]
    last, best = last_rounds(results["averaged_rounds"]), f"best round ({results['best_test']['round']})*"
    columns = {last: results["domains"], "final": results["final"], best: results["best_test"]["domains"]}
    cells = [(domain, name, value) for name, wanted in columns.items() for domain, value in wanted.items()]
    for row, name, value in (*cells, ("AVG", last, results["avg"]), ("STD", last, results["std"])):
        cell = shown[row][name]
        assert cell in ("missing", "") if value is None else float(cell) == value


def confusions(page: Any) -> list[str]:
    return [label.split()[3].rstrip(":") for label in page.plots("Confusion")]


# --- the one that is drawn --------------------------------------------------------------------------------


def test_a_global_method(drawn: Path, drawn_page: Any, hostile: dict[str, str]) -> None:
    results = Run(drawn).results
    check_results(drawn_page, results)
    assert "Finished: 2 rounds" in drawn_page.text and drawn_page.numbers["not_drawn"] == []
    for start in (
        "Top-1 accuracy", "Test loss by domain", "Seconds and megabytes",
        "Training images of each class on 4 nodes",
    ):  # fmt: skip
        assert len(drawn_page.plots(start)) == 1
    (losses,) = drawn_page.plots("Training loss")
    assert "apa" in losses and "ce" in losses
    assert confusions(drawn_page) == list(DOMAINS) and len(drawn_page.plots("t-SNE")) == 2
    assert drawn_page.all("img") == []  # who is sent the page has no image
    assert drawn_page.numbers["round"] == 2
    for domain in DOMAINS:
        result = drawn_page.numbers["domains"][domain]
        matrix = np.array(result["confusion"])
        assert (result["scored"], result["test_images"], matrix.sum(), matrix.shape) == (90, 90, 90, (10, 10))
        # One global model, all test images: what the matrix has right is what the run said.
        assert 100 * np.trace(matrix) / 90 == result["accuracy"] == results["final"][domain]
    assert [row[:2] for row in drawn_page.tables["nodes"][1:]] == [[domain, "2"] for domain in DOMAINS]
    # Names are shown as they are, also where the folder's name is not UTF-8.
    for name in (f"{hostile['experiment']}, seed 0", "\\xff", hostile["command"], "<b> &amp;", hostile["loss"]):
        assert name in drawn_page.text
    assert hostile["loss"] in losses and (drawn / "report.html").stat().st_size < 1_000_000


# --- what it shows ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn_figures")
def test_a_deployment_has_the_matrices_that_its_nodes_counted_and_says_where_the_images_are(
    copied: Run, report: Report, change: Any
) -> None:
    results = copied.results
    results["figures"]["domains"]["scan"]["per_class"]["recall"][3] = None
    (copied.folder / "results.json").write_text(json.dumps(results))
    change.config(copied.folder, engine="deployment")
    page = report(copied.folder)
    check_results(page, results)
    assert [row[:2] for row in page.tables["figures"][1:]] == [*([d, "90"] for d in DOMAINS), ["all together", "180"]]
    fourth = page.tables["classes"][4]
    assert (fourth[:2], fourth[3], len(fourth)) == (["3", "-"], "9", 1 + 3 * 3)
    assert confusions(page) == list(DOMAINS) and page.all("img") == [] and page.numbers["domains"] == {}
    assert f"fedshift report {copied.folder} data-dir=DIR" in page.text
    (lacks,) = page.numbers["not_drawn"]  # one line, as there is one reason
    assert lacks.startswith("Features: the test images are on the nodes.")


def test_figures_of_nodes_are_checked_and_those_of_a_run_that_is_not_finished_read(copied: Run) -> None:
    results = copied.folder / "results.json"
    results.write_text(json.dumps(RESULTS | {"figures": {"round": 1, "domains": {"a": {"n": -4}}}}))
    with refused(ConfigError, "domains.a.n", "found -4"):
        reading.read(copied.folder)
    results.unlink()  # not finished: those of figures.json
    kept = reading.read(copied.folder).sections["figures"]
    assert [domain.n for domain in kept.domains.values() if domain is not None] == [90] * 2
    (copied.folder / "figures.json").unlink()  # a run of an earlier version
    assert "figures" not in reading.read(copied.folder).sections
    without = by_class.section(None)
    assert without.empty and list(without.lacks) == ["By class"]
    assert by_class.section(None, requested=False).lacks == {}  # the user did without


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[] if name in ("fedcode", "fedicon", "fedproto") else pytest.mark.long)
        for name in sorted(on_images(registry.METHODS))
    ],
)
def test_what_is_shown_is_what_was_scored(method: str, run_inline: InlineRun) -> None:
    """With one node a domain, the images scored again have the accuracy of the run's last round, of every method."""
    few = "statistics.least_images=2" * (method == "fedrdn")
    given = f"{QUICK} {TWO} {few} {registry.get(method).short}"
    run = run_inline(method=method, rounds=2, nodes=2, set=given)
    sight = predictions.look(reading.read(run.folder), None, None)
    assert {domain: view.accuracy for domain, view in sight.views.items()} == run.results["final"]
    assert sight.personal == (run.results["evaluated"] == "personal models")
    for view in sight.views.values():
        assert view.features.shape[0] == len(view.y) == len(view.predicted) == view.total == 90


@pytest.mark.usefixtures("undrawn_figures")
def test_a_held_out_domain(run_inline: InlineRun, report: Report) -> None:
    run = run_inline(method="fedcode", rounds=1, nodes=2, set=f"{QUICK} allocation.held_out=[street,sketch]")
    page = report(run.folder, "images=20")
    check_results(page, run.results)
    assert "street, sketch: held by no node" in page.text
    assert set(page.numbers["domains"]) == {"scan", "texture", "street", "sketch"}
    assert page.tables["nodes"][3] == ["street", "0", "0", "held by no node"]


# --- runs that lack something --------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn_figures")
def test_a_missing_domain_is_not_zero_and_who_was_left_out_is_named(copied: Run, report: Report, change: Any) -> None:
    results = copied.results | {"missing": ["street"], "avg": None, "std": None}
    results["chosen_round"] = {"round": 2, "files": ["x"]}
    for result in (results["domains"], results["final"], results["best_test"]["domains"]):
        result["street"] = None
    (copied.folder / "results.json").write_text(json.dumps(results))
    left_out = [f"node {i} <i>&" for i in range(20)]
    change.rounds(copied.folder, lambda line: line["accuracy"].update(street=None) or line.update(left_out=left_out))
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    check_results(page, results)
    assert "Missing in round 2: street." in page.plots("Top-1 accuracy")[0]
    assert "street has a score in 0 of 2 averaged rounds" in page.text
    assert page.numbers["not_drawn"][0].startswith("Features: ")
    assert "The model of round 2 is kept" in page.text
    rows = page.tables["events"][1:]
    assert rows[0] == ["1", "left out: node 0 <i>&"] and "more" in rows[-1][1] and len(rows) < 40


@pytest.mark.usefixtures("undrawn_figures")
def test_an_interrupted_run(copied: Run, report: Report, change: Any) -> None:
    """Of which the last round is cut off, and the last checkpoint too."""
    (copied.folder / "results.json").unlink()
    first, last = (line["accuracy"] for line in copied.rounds)
    with (copied.folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')  # as a kill leaves it
    next((copied.folder / "checkpoint").glob("weights-00002*")).write_bytes(b"nonsense")
    change.config(copied.folder, resumed=[{"after_round": 1}])
    page = report(copied.folder, "images=1")
    assert "No t-SNE: 2 images are too few." in page.text
    assert "Not finished: 2 of 2 rounds are complete" in page.text and "Resumed after round 1." in page.text
    shown = {row[0]: [float(cell) for cell in row[1:3]] for row in page.tables["results"][1:3]}
    for domain in DOMAINS:
        assert shown[domain] == pytest.approx([(first[domain] + last[domain]) / 2, last[domain]])
    assert page.numbers["round"] == 1
    assert {name: found["scored"] for name, found in page.numbers["domains"].items()} == dict.fromkeys(DOMAINS, 1)


@pytest.mark.usefixtures("undrawn_figures")
def test_runs_of_which_little_is_known(copied: Run, report: Report, change: Any) -> None:
    """A round that was not scored and one on a part, then rounds without a number, then none."""

    def partly(line: dict[str, Any]) -> None:
        line |= {"accuracy": None, "avg": None, "test_loss": None} if line["round"] == 1 else {"evaluated_share": 0.5}

    (copied.folder / "results.json").unlink()
    shutil.rmtree(copied.folder / "checkpoint")
    change.rounds(copied.folder, partly)
    page = report(copied.folder)
    assert "No round has been scored on all test images." in page.text and page.plots("Top-1 accuracy")
    assert "1 of 2 rounds were scored. 1 of them on a part" in page.text
    nothing = {"accuracy": dict.fromkeys(DOMAINS), "losses": {"loss": None}}
    change.rounds(copied.folder, lambda line: line.update(nothing) or line.pop("evaluated_share", None))
    assert report(copied.folder).tables["results"][1][1:] == ["missing"] * 3
    (copied.folder / "metrics.jsonl").unlink()
    page = report(copied.folder)
    assert "none of 2 rounds is complete" in page.text and page.plots() == []


@pytest.mark.parametrize("cut", ["empty", "third", "torn", "gone", "noise"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json", "config.yaml", "figures.json", "status.json"])
def test_a_file_that_is_cut_off_is_told_in_a_sentence(name: str, cut: str, copied: Run) -> None:
    """By each command that reads a run folder: an error of ours or a page, none of Python's."""
    file = copied.folder / name
    whole = file.read_bytes()
    parts = {"empty": b"", "third": whole[: len(whole) // 3], "torn": whole[:-9], "noise": b"\x00\xff{[1"}
    file.write_bytes(parts[cut]) if cut in parts else file.unlink()
    for command_name in ("compare", "status"):
        result = CliRunner().invoke(cli.app, [command_name, str(copied.folder)])
        assert isinstance(result.exception, FedShiftError | SystemExit | None), (command_name, result.exception)
    refusal = ""
    try:
        reading.read(copied.folder)
    except FedShiftError as error:
        refusal = str(error)
    assert refusal or name != "metrics.jsonl" or cut == "torn"


# --- where the images are --------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn_figures")
def test_a_deployment_with_personal_models(run_inline: InlineRun, report: Report, change: Any) -> None:
    run = run_inline(method="local", rounds=1, nodes=2, set=f"{QUICK} {TWO}")
    change.config(run.folder, engine="deployment")
    page = report(run.folder, "data-dir=/nowhere")
    assert [line.count("private parts") for line in page.numbers["not_drawn"]] == [1]


# --- figures ------------------------------------------------------------------------------------------------


def test_many_domains_are_readable() -> None:
    """Of 24 long names the legend makes the figure higher; more domains have no names."""
    names = [f"Hospital of town {i:02}" for i in range(30)]
    accuracy = {name: 50.0 + i % 7 for i, name in enumerate(names)} | {names[3]: 10.0, names[5]: 90.0}
    lines = [{"round": n, "accuracy": accuracy} for n in (1, 2)]
    with drawing.style():
        few, many, most = (curves.by_domain(lines, names[:n], "accuracy", "Dice").figure for n in (6, 24, 30))
    assert max(few.get_figheight(), most.get_figheight()) < 3.6 and many.get_figheight() > 5
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in many.axes[0].lines}
    assert len(looks) == 25
    assert most.axes[0].get_legend_handles_labels()[1] == ["AVG"] and len(most.axes[0].lines) == 31
    assert len({(drawing.domain_colour(i), drawing.domain_marker(i)) for i in range(64)}) == 64


def test_many_nodes_are_rows_of_domains_and_equal_features_one_point() -> None:
    nodes = [node(i, (i, 1), domain="ab"[i % 2]) for i in range(2 * maps.EACH_NODE)]
    with drawing.style():
        plot = maps.class_counts(nodes, ("a", "b"), ("x", "y"))
    (axes, *_) = plot.figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert f"all its nodes together ({len(nodes)} in all)" in plot.caption
    assert not maps.tsne(np.ones((30, 4)), 0).any()


# --- the command --------------------------------------------------------------------------------------------


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("images=0", "images: "), ("images=many", "'many'"), ("images=" + "9" * 5000, "images: "),
        ("data-dir=", "key=value"), ("seed=1", "'seed'"),
        ("data-dir=~nouser", "'~nouser'"),
    ],
)  # fmt: skip
def test_wrong_keys(argument: str, named: str, finished: Run) -> None:
    with refused(ConfigError, named):
        command.run(finished.folder, [argument])


@pytest.mark.usefixtures("undrawn_figures")
def test_folders_that_are_none(copied: Run, tmp_path: Path) -> None:
    """Of images and of a run: nothing is written."""
    before = sorted(copied.folder.iterdir())
    (tmp_path / "empty").mkdir()
    for data_dir, named in (("/nonexistent", "/nonexistent"), (tmp_path / "empty", "scan train not found")):
        with pytest.raises(DataError, match=named):  # which is shortened by the length of the folder's name
            command.run(copied.folder, [f"data-dir={data_dir}"])
    assert sorted(copied.folder.iterdir()) == before
    (copied.folder / "report.json").mkdir()
    with refused(ConfigError, f"report: cannot write to {copied.folder}"):
        command.run(copied.folder, ["images=1"])
    with refused(ConfigError, "config.yaml"):
        command.run(tmp_path / "nowhere", [])
    for name, text, named in (("results.json", "[1", "results.json"), ("config.yaml", "resolved: {}", "engine")):
        (copied.folder / name).write_text(text)
        with refused(ConfigError, named):
            command.run(copied.folder, [])


def test_an_error_is_reported_in_a_line_and_fails_no_run(
    copied: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(error: BaseException) -> Callable[..., None]:
        def make(*_: object) -> None:
            raise error

        return make

    monkeypatch.setattr(report_build, "make", broken(ZeroDivisionError("of ours")))
    with refused(FedShiftError, "ZeroDivisionError: of ours"):
        command.run(copied.folder, [])
    for error in (FedShiftError("no room"), SystemExit(130)):
        monkeypatch.setattr(command, "run", broken(error))
        cli.report_after_run(copied.folder)
        said = capsys.readouterr().err
        assert said.startswith("report: none (") and said.count("\n") == 1
        assert f"fedshift report {copied.folder}" in said


def test_a_run_ends_with_its_report_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    def run(folder: Path, _: list[str]) -> report_build.Made:
        made.append(folder)
        return report_build.Made(folder / "report.html", ("Features: gone",))

    monkeypatch.setattr(command, "run", run)
    quick = ["handwritten", "engine=inline", "rounds=1", "nodes=2", f"output-dir={tmp_path}", f"set={QUICK} {TWO}"]
    cli.run(quick)
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "not drawn: Features: gone"
    assert shown.out.splitlines()[-2:] == [f"report: {made[0] / 'report.html'}", f"run folder: {made[0]}"]
    cli.run([*quick, "report=false"])
    assert len(made) == 1
    with refused(ConfigError, "report: 'no'"):
        parse_arguments(["report=no"])
    with pytest.raises(SystemExit) as caught:  # the command itself has an exit code for it, a run has not
        cli.report(made[0], [])
    assert caught.value.code == exit_codes.PARTLY_DRAWN == 5


def test_the_command_does_not_start_slower() -> None:
    slow = {"matplotlib", "sklearn", "jinja2", "torch", "flwr", "scipy", "numpy", "pydantic", "yaml"}
    code = f"import sys, fedshift.cli; assert not {slow!r} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
