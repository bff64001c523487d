"""A method that is an approximation of its paper's says so in every table, on every page and in the log."""

import csv
import io
import json
from pathlib import Path

import pytest
from support import ROOT, Run
from typer.testing import CliRunner

from fedshift_app import cli, server_app
from fedshift_app.comparing import compare
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.launch import runner
from fedshift_app.out import saved, saving
from fedshift_app.report import facts
from fedshift_app.report.reading import read
from fedshift_app.run import console
from fedshift_app.sweep import grid
from fedshift_app.tune import asking
from fedshift_wire.methods import Method

NAME, LABEL = "fedmlp", "fedmlp (approximation)"
WHY = registry.get(NAME).approximation
TOLD = f"{NAME} is an approximation of its paper's method: {WHY}"
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.04"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return a short run of FedAvg and one of the approximation."""
    base = {"experiment": "handwritten", "rounds": 1, "set": TINY, "output-dir": str(tmp_path_factory.mktemp("runs"))}
    return {name: Run(runner.run_inline(base | {"method": name}, 2)) for name in ("fedavg", NAME)}


def test_only_what_says_so_is_labelled() -> None:
    assert WHY
    assert [m.label for m in registry.listed() if m.label != m.name] == [LABEL]
    assert registry.label("fedavg") == "fedavg" and registry.label("gone") == "gone"
    assert registry.approximation_told("fedavg") == ""
    recipe = Method(name="mine", title="Mine", of=NAME).made_of(registry.get(NAME))
    assert recipe.label == "mine (approximation)"


def test_lists() -> None:
    listed = CliRunner().invoke(cli.app, ["methods"]).output
    (line,) = [line for line in listed.splitlines() if line.split()[:1] == [NAME]]
    assert f"an approximation: {WHY}" in line
    assert listed.count("an approximation") == 1
    one = " ".join(CliRunner().invoke(cli.app, ["methods", NAME]).output.split())  # as it was before lines were broken
    assert f"its paper's method, but an approximation: {WHY}" in one
    for table in (registry.markdown(), registry.privacy_markdown()):
        assert f"| `{NAME}` (approximation) | " in table and table.count("(approximation)") == 1


def test_a_search() -> None:
    request = asking.read(["handwritten", f"method=fedavg,{NAME}", "budget=2"], lambda *_: None)
    assert [plan.label for plan in request.plans] == ["fedavg", LABEL]
    finals = [point.label for point in request.finals({})]
    assert any(label.startswith(LABEL) for label in finals)


def test_log_and_results_of_a_run(runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        said = name == NAME
        log = "".join(json.loads(line)["message"] for line in (run.folder / "log.jsonl").read_text().splitlines())
        assert (TOLD in log and f"handwritten: {LABEL} on handwritten" in log) == said
        assert run.results.get("approximation") == (WHY if said else None)
        assert run.results["method"] == name
        assert (LABEL in console.table(run.results)) == said
        assert json.loads((run.folder / "status.json").read_text())["method"] == (LABEL if said else name)
    assert TOLD in server_app.describe(resolve({"method": NAME}), "inline", [])


def test_every_form_of_a_comparison(runs: dict[str, Run]) -> None:
    found = compare([run.folder for run in runs.values()])
    assert [row.label for row in found.numbers.rows] == ["fedavg", LABEL]
    assert TOLD in found.numbers.notes
    for text in (found.text(), found.markdown(), found.html()):
        assert LABEL in text
    assert [row["row"] for row in csv.DictReader(io.StringIO(found.csv()))] == ["fedavg", LABEL]
    told = json.loads(found.json())
    assert [(row["row"], row["method"]) for row in told["rows"]] == [("fedavg", "fedavg"), (LABEL, NAME)]
    assert TOLD in told["notes"]
    assert TOLD not in compare([runs["fedavg"].folder]).numbers.notes


def test_the_report(runs: dict[str, Run]) -> None:
    content = facts.content(read(runs[NAME].folder))
    assert content["title"] == f"{LABEL} on handwritten"
    assert dict(content["settings"])["approximation"] == WHY
    assert dict(content["settings"])["method"].startswith(f"{LABEL}: ")
    assert "approximation" not in dict(facts.content(read(runs["fedavg"].folder))["settings"])


def test_sweeps_and_costs_name_it_so() -> None:
    points, _ = grid.points(grid.read(["handwritten", f"method=fedavg,{NAME}"]), lambda config, nodes: None)
    assert [point.label for point in points] == ["fedavg", LABEL]


def test_the_card_of_a_saved_model(runs: dict[str, Run], tmp_path: Path) -> None:
    saving.save(saving.Wanted(runs[NAME].folder, "safetensors", output=tmp_path / "saved"))
    text = (tmp_path / "saved" / saved.CARD).read_text()
    assert f"by {LABEL} on handwritten" in text
    assert f"`{LABEL}`" in text and f"| {LABEL} (" in text


@pytest.mark.parametrize("method", [m.name for m in registry.listed() if m.approximation])
def test_its_page_says_so_first(method: str) -> None:
    first, _, second, *_ = (ROOT / "docs" / "methods" / f"{method}.md").read_text().splitlines()
    assert first.endswith("(approximation)") and "approximation" in second
    assert f"`{method}` is an approximation" in (ROOT / "docs" / "papers.md").read_text()
