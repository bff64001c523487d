"""A method that is an approximation of its paper's says so in every table, on every page and in the log."""

import csv
import io
import json
from itertools import product
from pathlib import Path

import pytest
from support import ROOT, Run
from typer.testing import CliRunner

from fedshift import cli
from fedshift.export import saved, saving
from fedshift.lab.grid.costs import command as costs
from fedshift.lab.grid.rescore import command as rescoring
from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.lab.pages.report import record_sections
from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.claim_rule import NOT_COMPARABLE
from fedshift.lab.tables.compare.claims import claims
from fedshift.run.catalog import things
from fedshift.run.launch import runner
from fedshift.run.reading import read
from fedshift_app.config import fits, registry
from fedshift_app.config import trackers as config_trackers
from fedshift_app.config.resolving import resolve
from fedshift_app.run import console, trackers
from fedshift_core.registry import Method

NAME, LABEL = "fedmlp", "fedmlp (approximation)"
WHY = registry.get(NAME).approximation
FOLDERS = f"-{NAME}-approximation-seed"  # in the names of its run folders
NOTICE = f"{NAME} is an approximation of its paper's method: {WHY}"
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
    assert registry.approximation_line("fedavg") == ""
    recipe = Method(name="mine", title="Mine", of=NAME).made_of(registry.get(NAME))
    assert recipe.label == "mine (approximation)"


def test_lists() -> None:
    listed = CliRunner().invoke(cli.app, ["methods"]).output
    (line,) = [line for line in listed.splitlines() if line.split()[:1] == [NAME]]
    assert f"an approximation: {WHY}" in line
    assert listed.count("an approximation") == 1
    one = " ".join(CliRunner().invoke(cli.app, ["methods", NAME]).output.split())  # as it was before lines were broken
    assert f"an approximation of its paper's method: {WHY}" in one
    for table in (registry.markdown(), fits.privacy()):
        assert f"| `{NAME}` (approximation) | " in table and table.count("(approximation)") == 1


def test_a_search() -> None:
    request = tune_requested.read(["handwritten", f"method=fedavg,{NAME}", "budget=2"])
    assert [plan.label for plan in request.plans] == ["fedavg", LABEL]
    finals = [point.label for point in request.finals({})]
    assert any(label.startswith(LABEL) for label in finals)
    assert [plan.trial({}).label for plan in request.plans] == ["fedavg", LABEL]


def test_log_and_results_of_a_run(runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        said = name == NAME
        log = "".join(json.loads(line)["message"] for line in (run.folder / "log.jsonl").read_text().splitlines())
        assert (NOTICE in log and f"handwritten: {LABEL} on handwritten" in log) == said
        assert run.results.get("approximation") == (WHY if said else None)
        assert run.results["method"] == name
        assert (LABEL in console.table(run.results, resolve({}))) == said
        assert json.loads((run.folder / "status.json").read_text())["method"] == (LABEL if said else name)
        assert ("approximation" in run.folder.name) == said and (not said or FOLDERS in run.folder.name)
    assert NOTICE in console.describe(resolve({"method": NAME}), "inline", [])


@pytest.mark.usefixtures("undrawn_figures")
def test_every_form_of_a_comparison(runs: dict[str, Run]) -> None:
    table = compare([run.folder for run in runs.values()])
    assert [row.label for row in table.numbers.rows] == ["fedavg", LABEL]
    assert NOTICE in table.numbers.notes
    for text in (table.text(), table.markdown(), table.html()):
        assert LABEL in text
    assert [row["row"] for row in csv.DictReader(io.StringIO(table.csv()))] == ["fedavg", LABEL]
    content = json.loads(table.json())
    assert [(row["row"], row["method"]) for row in content["rows"]] == [("fedavg", "fedavg"), (LABEL, NAME)]
    assert NOTICE in content["notes"]
    assert NOTICE not in compare([runs["fedavg"].folder]).numbers.notes


def test_the_report(runs: dict[str, Run]) -> None:
    ours, others = (dict(record_sections.sections(read(runs[name].folder))[-1].tables[0].rows)
                    for name in (NAME, "fedavg"))  # fmt: skip
    assert record_sections.head(read(runs[NAME].folder))["title"] == f"{LABEL} on handwritten"
    assert ours["approximation"] == WHY and ours["method"].startswith(f"{LABEL}: ")
    assert "approximation" not in others


def test_sweeps() -> None:
    points, _ = grid.points(grid.read(["handwritten", f"method=fedavg,{NAME}"]))
    assert [point.label for point in points] == ["fedavg", LABEL]


def test_costs() -> None:
    table = costs.run(["fedavg", NAME, "handwritten", "nodes=2", *TINY.split()])
    assert [cost["label"] for cost in json.loads(table.json())["costs"]] == ["fedavg", LABEL]
    rows = [line for line in table.text().splitlines() if line.startswith(NAME)]
    assert len(rows) == 1 and rows[0].startswith(f"{LABEL}  ")
    assert f"| {LABEL} | " in table.markdown() and table.markdown().count(NAME) == 1


def test_a_dry_run() -> None:
    for name in ("fedavg", NAME):
        requests = ["run", "handwritten", f"method={name}", "nodes=2", "engine=inline", *TINY.split(), "--dry-run"]
        ended = CliRunner().invoke(cli.app, requests)
        assert ended.exit_code == 0, ended.output
        _, _, result = ended.output.partition("\nestimate\n")
        assert (NOTICE in " ".join(result.split())) == (name == NAME)


def test_a_run_scored_again(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rescoring.rescore([str(runs[NAME].folder), "images.eval_batch=7", f"output-dir={tmp_path}", "jobs=1"])
    (folder,) = tmp_path.iterdir()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.count(FOLDERS) == 2 and FOLDERS in folder.name  # the run, and where its scores are
    assert Run(folder).results["approximation"] == WHY
    assert LABEL in compare([folder]).text()


def test_claims_are_not_decided_by_it(tmp_path: Path) -> None:
    domains = ("photo", "art_painting", "cartoon", "sketch")
    for seed, (name, gain) in product(range(3), (("fedavg", 0.0), (NAME, 5.0))):
        scores = dict.fromkeys(domains, 50 + seed + gain + seed * gain / 100)  # a gain beyond doubt
        summary = {
            "method": name, "dataset": "pacs", "seed": seed, "evaluated": "global model", "averaged_rounds": 5,
            "domains": scores, "final": scores, "best_test": {"round": 3, "domains": scores},
            "weights_sha256": f"{name}{seed}", "nodes": [{"domain": domain, "class_counts": [1]} for domain in domains],
            "config": {
                "resolved": resolve({"experiment": "fedseproto-pacs", "method": name, "seed": seed}).model_dump(
                    mode="json"
                ),
                "engine": "inline", "versions": {"torch": "1"},
            },
        }  # fmt: skip
        (tmp_path / f"{name}-{seed}.json").write_text(json.dumps(summary))
    checked = claims([tmp_path])
    (claim,) = [one for one in checked.claims if one.table == "fedseproto.table2pacs"]
    assert (claim.row, claim.runs) == ("FedMLP", f"{tmp_path.name}: {LABEL}")
    assert (claim.verdict, claim.why) == (NOT_COMPARABLE, "an approximation")
    for text in (checked.text(), checked.markdown(), checked.json()):
        assert LABEL in text and "an approximation" in text


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_trackers(tracker: str, tmp_path: Path) -> None:
    pytest.importorskip(
        tracker, reason=f"{config_trackers.CALLED[tracker]} is not installed: extra {config_trackers.EXTRAS[tracker]}"
    )
    requested = {
        "experiment": "handwritten",
        "rounds": 1,
        "set": TINY,
        "output-dir": str(tmp_path),
        "tracking": tracker,
    }
    folder = runner.run_inline(requested | {"method": NAME}, 2)
    assert FOLDERS in folder.name  # what TensorBoard calls the run
    if tracker == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams import metadata

        events = EventAccumulator(str(folder / trackers.FOLDER)).Reload()
        content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        assert metadata.parse_session_start_info_plugin_data(content).hparams["approximation"].string_value == WHY
    else:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=trackers.store_in(tmp_path))
        (shown,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        assert (shown.info.run_name, shown.data.params["approximation"]) == (folder.name, WHY)


def test_an_experiment_of_it(tmp_path: Path) -> None:
    usual = (ROOT / "conf" / "experiments" / "handwritten.yaml").read_text()
    file = tmp_path / "mine.yaml"
    file.write_text(
        usual.replace("name: fedavg", f"name: {NAME}").replace("  fedplvm:", f"  {NAME}: {{tau: 0.4}}\n  fedplvm:")
    )
    result = things.experiment(str(file))
    assert f"  method    {LABEL}\n" in result
    assert f"{LABEL}: tau=0.4" in " ".join(result.split())


def test_the_card_of_a_saved_model(runs: dict[str, Run], tmp_path: Path) -> None:
    saving.save(saving.Wanted(runs[NAME].folder, "safetensors", output=tmp_path / "saved"))
    text = (tmp_path / "saved" / saved.CARD).read_text()
    assert f"by {LABEL} on handwritten" in text
    assert f"`{LABEL}`" in text and f"| {LABEL} (" in text


@pytest.mark.parametrize("method", [m.name for m in registry.listed() if m.approximation])
def test_its_page_says_so_first(method: str) -> None:
    first, _, second, *_ = (ROOT / "docs" / "methods" / f"{method}.md").read_text().splitlines()
    assert first.endswith("(approximation)") and "approximation" in second
    assert f"`{method}` is an approximation" in (ROOT / "docs" / "results" / "papers.md").read_text()


def test_no_table_of_the_docs_names_it_without() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines() if line.startswith("|")]
    rows = [
        line for line in lines if NAME in line.replace(f".{NAME}.", "")
    ]  # a module's name says nothing of the method
    assert len(rows) > 5
    assert [row for row in rows if "approximation" not in row] == []
