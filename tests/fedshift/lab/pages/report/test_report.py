"""``report.html`` shows what the run's files say, refers to nothing outside itself, and always comes."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import RESULTS
from support import ROOT, InlineRun, Run
from support import node as node_of
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.pages.report import build as report_build
from fedshift.lab.pages.report import by_class, command, curves, maps, predictions, record_sections
from fedshift.run import reading
from fedshift.run.html import drawing
from fedshift.run.html.confusion import confusion_of
from fedshift.run.launch import runner
from fedshift.site.deploy import exporting
from fedshift_app.config import registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_app.features.figures.show import Figures
from fedshift_app.run import exit_codes
from fedshift_clients.models.shortcut import Shortcut
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.limits import MOST_SHOWN
from fedshift_core.rounds import last_rounds
from fedshift_core.yaml_files import as_yaml, read_yaml
from fedshift_datasets import catalog
from fedshift_datasets.io import cache
from fedshift_datasets.io.feature_store import FeatureStore

QUICK = "train.epochs=1 allocation.share=0.05"
DOMAINS = ("scan", "texture", "street", "sketch")
VOID = {"meta", "br", "img", "hr", "link", "input"}
SECTIONS = {
    "accuracy", "training", "by-class", "sites", "confusion", "features", "federation", "configuration",
}  # fmt: skip


class Page(HTMLParser):
    """A page, read; every element must be closed, in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text, self.open = "", []
        self.lacks: tuple[str, ...] = ()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] | None = None
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        by_name = {key: value or "" for key, value in attrs}
        self.elements.append((tag, by_name))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows = self.tables.setdefault(by_name.get("id", ""), [])
        if self._rows is not None:
            if tag == "tr":
                self._rows.append([])
            elif tag in ("td", "th"):
                self._rows[-1].append("")
            elif tag == "data":
                self._rows[-1][-1] = by_name["value"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag
        if tag == "table":
            self._rows = None

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data
        if self._rows and self._rows[-1] and self.open[-1] != "data":
            self._rows[-1][-1] += data.strip()

    def all(self, tag: str) -> list[dict[str, str]]:
        return [result for name, result in self.elements if name == tag]

    def plots(self) -> list[str]:
        return [result["aria-label"] for result in self.all("svg")]

    def plot(self, start: str) -> str:
        (result,) = [label for label in self.plots() if label.startswith(start)]
        return result


def report(folder: Path, *arguments: str) -> Page:
    """Make the report of a run and check what holds for all of them."""
    made = command.run(folder, list(arguments))
    assert made.page == folder / "report.html"
    page = Page(made.page)
    json.loads((folder / "report.json").read_text())
    assert page.source.startswith("<!DOCTYPE html>")
    # It refers to nothing outside itself, and runs nothing.
    assert not {"script", "link", "iframe", "object", "base", "form"} & {tag for tag, _ in page.elements}
    names = [result["id"] for _, result in page.elements if "id" in result]
    assert len(names) == len(set(names))
    for _, result in page.elements:
        for key in ("href", "src", "xlink:href", "srcset", "data", "poster", "action"):
            if key in result:
                assert result[key].startswith(("#", "data:image/png;base64,")), result[key][:80]
                assert not result[key].startswith("#") or result[key][1:] in names
        assert not [key for key in result if key.startswith("on")]
    for pointed in page.source.split("url(")[1:]:
        assert pointed.startswith("#")
        assert pointed[1 : pointed.index(")")] in names
    assert "@import" not in page.source
    assert "http://" not in page.source and "https://" not in page.source
    # A reader who does not see a figure gets a text.
    for result in page.all("img"):
        assert len(result["alt"]) > 10
    for result in page.all("svg"):
        assert len(result["aria-label"]) > 20 and result["role"] == "img"
    assert page.source.count("<title>") == 1 + len(page.all("svg"))
    folded = SECTIONS - set(names)
    assert folded <= {"by-class", "confusion", "features", "sites"}
    assert bool(folded) == ("not-shown" in names)
    page.lacks = made.lacks
    return page


def numbers(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


def check_results(page: Page, results: dict[str, Any]) -> None:
    """Compare the table of the page with a summary, number by number."""
    head, *rows = page.tables["results"]
    shown = {row[0]: row[1:] for row in rows}
    assert list(shown) == [*results["domains"], "AVG", "STD"]
    columns = {name: i for i, name in enumerate(head[1:])}
    last, best = last_rounds(results["averaged_rounds"]), f"best round ({results['best_test']['round']})*"
    for name, wanted in (
        (last, results["domains"]),
        ("final", results["final"]),
        (best, results["best_test"]["domains"]),
    ):
        for domain, value in wanted.items():
            cell = shown[domain][columns[name]]
            assert cell == "missing" if value is None else float(cell) == value
    for name, row in ((results["avg"], "AVG"), (results["std"], "STD")):
        cell = shown[row][columns[last]]
        assert cell in ("missing", "") if name is None else float(cell) == name


@pytest.fixture(scope="session")
def finished(shared_run: InlineRun) -> Run:
    """A run of I2PFL of two rounds, which no test may change."""
    return shared_run(method="i2pfl", nodes=8, rounds=2, set=QUICK)


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Run:
    """The same run, to be changed."""
    return Run(shutil.copytree(finished.folder, tmp_path / "copy"))


def change_config(run: Run, **changes: Any) -> None:
    path = run.folder / "config.yaml"
    path.write_text(as_yaml(read_yaml(path) | changes))


def change_rounds(run: Run, change: Any) -> None:
    lines = run.rounds
    for line in lines:
        change(line)
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


# --- what it shows ----------------------------------------------------------------------------------------


def test_a_global_method(copied: Run) -> None:
    page = report(copied.folder, "images=all")
    results = copied.results
    check_results(page, results)
    assert "Finished: 2 rounds" in page.text
    for start in (
        "Mean accuracy", "Top-1 accuracy", "Training loss", "Test loss by domain", "Seconds and megabytes",
        "Recall of each class", "Training images of each class on 8 nodes",
    ):  # fmt: skip
        page.plot(start)
    assert page.lacks == () == tuple(numbers(copied.folder)["not_drawn"])
    assert [label.split()[3].rstrip(":") for label in page.plots() if label.startswith("Confusion")] == list(DOMAINS)
    assert len([label for label in page.plots() if label.startswith("t-SNE")]) == 2
    for line in copied.rounds:
        assert {"loss/ce", "loss/apa"} <= set(line["losses"])
    assert "apa" in page.plot("Training loss") and "ce" in page.plot("Training loss")
    assert page.all("img") == []  # who is sent the page has no image
    outcome = numbers(copied.folder)
    assert outcome["round"] == 2
    for domain in DOMAINS:
        result = outcome["domains"][domain]
        matrix = np.array(result["confusion"])
        assert matrix.shape == (10, 10)
        assert (result["scored"], result["test_images"], matrix.sum()) == (90, 90, 90)
        # One global model, all test images: what the matrix has right is what the run said.
        assert 100 * np.trace(matrix) / 90 == result["accuracy"] == results["final"][domain]
    assert [row[0] for row in page.tables["nodes"][1:]] == list(DOMAINS)
    assert [row[1] for row in page.tables["nodes"][1:]] == ["2"] * 4
    assert (copied.folder / "report.html").stat().st_size < 1_000_000


@pytest.mark.usefixtures("undrawn_figures")
def test_figures_by_class_and_matrices_without_images(copied: Run) -> None:
    """Of a deployment, whose images are not here, matrices are those that the nodes counted."""
    result = copied.results["figures"]
    result["domains"]["scan"]["per_class"]["recall"][3] = None
    (copied.folder / "results.json").write_text(json.dumps(copied.results | {"figures": result}))
    change_config(copied, engine="deployment")
    page = report(copied.folder)
    assert [row[:2] for row in page.tables["figures"][1:]] == [*([d, "90"] for d in DOMAINS), ["all together", "360"]]
    fourth = page.tables["classes"][4]
    assert fourth[:2] == ["3", "-"] and fourth[3] == "9" and len(fourth) == 1 + 3 * 5
    assert [label.split()[3].rstrip(":") for label in page.plots() if label.startswith("Confusion")] == list(DOMAINS)
    assert "scan: all 90 test images, as its nodes counted them in the run" in page.text
    results = copied.folder / "results.json"
    results.write_text(json.dumps(RESULTS | {"figures": {"round": 1, "domains": {"a": {"n": -4}}}}))
    with pytest.raises(ConfigError, match=r"figures: domains\.a\.n: Input should be .* equal to 0, found -4"):
        reading.read(copied.folder)
    results.unlink()  # not finished: those of figures.json
    kept = reading.read(copied.folder).sections["figures"]
    assert kept is not None and [domain.n for domain in kept.domains.values() if domain is not None] == [90] * 4
    (copied.folder / "figures.json").unlink()  # a run of an earlier version
    assert "figures" not in reading.read(copied.folder).sections
    without = by_class.section(None)
    assert without.missing.startswith("No node counted by class") and without.empty
    assert without.lacks == {"By class": "no node counted by class"}
    assert by_class.section(None, requested=False).lacks == {}  # the user did without


@pytest.mark.long
def test_the_same_run_gives_the_same_page(copied: Run) -> None:
    report(copied.folder, "images=20")
    first = [(copied.folder / name).read_text() for name in ("report.html", "report.json")]
    report(copied.folder, "images=20")
    assert [(copied.folder / name).read_text() for name in ("report.html", "report.json")] == first


@pytest.mark.long
def test_a_sample_of_the_test_images_is_reported(copied: Run) -> None:
    page = report(copied.folder, "images=30")
    assert "scan: on 30 of 90 test images" in page.text
    assert numbers(copied.folder)["domains"]["scan"]["scored"] == 30


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[] if name in ("fedcode", "fedicon", "fedproto") else pytest.mark.long)
        for name in sorted(registry.METHODS)
    ],
)
def test_what_is_shown_is_what_was_scored(method: str, run_inline: InlineRun) -> None:
    """With one node a domain, the images scored again have the accuracy of the run's last round, of every method."""
    two = "dataset.domains=[scan,sketch]"
    needs = dict.fromkeys(("fedbn", "tent", "eata"), "model.name=cnn_bn")
    needs |= dict.fromkeys(("fedccrl", "fedrdn"), "statistics.least_images=2")  # the nodes have few
    needs |= {"fedicon": "method.classifier_rounds=1", "fedseproto": "train.epochs=2"}
    needs |= {"ggeur": "model.freeze=encoder method.samples=20 method.least_images=2"}
    run = run_inline(method=method, rounds=2, nodes=2, set=f"{QUICK} {two} {needs.get(method, '')}".strip())
    sight = predictions.look(reading.read(run.folder), None, None)
    assert {domain: view.accuracy for domain, view in sight.views.items()} == run.results["final"]
    assert sight.personal == (run.results["evaluated"] == "personal models")
    for view in sight.views.values():
        assert view.features.shape[0] == len(view.y) == len(view.predicted) == view.total == 90


def test_a_report_goes_on_from_kept_features(
    run_inline: InlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what it shows where images pass the whole network, as they do where features cannot be kept."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    network = "model.freeze=encoder model.projection=16 model.precompute=on model.precompute_maps=float32"
    run = run_inline(method="f2dc", rounds=2, set=f"{QUICK} {network} images.crop_padding=0 train.precision=float32")
    passed: list[int] = []
    begins = Shortcut.beginning
    monkeypatch.setattr(Shortcut, "beginning", lambda self, x: passed.append(len(x)) or begins(self, x))
    kept = predictions.look(reading.read(run.folder), None, None)
    assert sum(passed) < 50  # those by which a network is known

    def full(*_: Any) -> None:
        raise DataError("the disk is full")

    monkeypatch.setattr(FeatureStore, "places", full)
    whole = predictions.look(reading.read(run.folder), None, None)
    assert list(kept.views) == list(whole.views) == list(DOMAINS)
    for domain, view in kept.views.items():
        assert (view.predicted == whole.views[domain].predicted).all()
        np.testing.assert_allclose(view.features, whole.views[domain].features, atol=1e-5)


@pytest.mark.long
def test_one_round_of_different_networks(run_inline: InlineRun) -> None:
    networks = f"{QUICK} model.name=cnn3 model.per_node=[cnn3,cnn2]"
    run = run_inline(method="fedproto", rounds=1, nodes=4, set=networks)
    page = report(run.folder)
    check_results(page, run.results)
    assert "cnn3, cnn2" in page.text
    assert len([label for label in page.plots() if label.startswith("t-SNE")]) == 2
    result = numbers(run.folder)["domains"]
    assert {domain: result[domain]["accuracy"] for domain in DOMAINS} == run.results["final"]


@pytest.mark.long
def test_features_of_different_widths_are_not_put_into_one_picture(run_inline: InlineRun) -> None:
    networks = f"{QUICK} model.name=cnn model.per_node=[cnn,cnn2]"
    page = report(run_inline(method="local", rounds=1, nodes=4, set=networks).folder)
    assert "No t-SNE: the networks' features are 64, 512 wide" in page.text
    assert not [label for label in page.plots() if label.startswith("t-SNE")]


@pytest.mark.long
def test_a_method_that_adapts_to_the_test_images(run_inline: InlineRun) -> None:
    """FedICON scores before and after: what is shown is after, which with one node a domain is the run's score."""
    run = run_inline(
        method="fedicon", rounds=2, nodes=4, set=f"{QUICK} method.tta_mode=online method.classifier_rounds=1"
    )
    page = report(run.folder)
    assert "adapts to the test images" in page.text
    assert "before-adaptation" in page.tables["results"][0]
    result = numbers(run.folder)["domains"]
    assert {domain: result[domain]["accuracy"] for domain in DOMAINS} == run.results["final"]


@pytest.mark.long
def test_each_way_of_batchnorm_is_labelled(run_inline: InlineRun) -> None:
    ways = "model.name=cnn_bn evaluate.bn=[own,averaged,batch] images.eval_batch=32"
    run = run_inline(method="fedavg", rounds=1, nodes=4, set=f"{QUICK} {ways}")
    page = report(run.folder)
    check_results(page, run.results)
    assert {"bn=averaged", "bn=batch"} <= {cell for table in page.tables.values() for line in table for cell in line}
    result = (
        "BatchNorm's statistics: own (of each node's own training images); bn=averaged: the same rounds with those as "
        "they were averaged; bn=batch: the same rounds with those of each batch of test images; batches of 32 "
        "test images"
    )
    assert result in page.text
    other = "BatchNorm's statistics are those of the kept model (as they were averaged), not those of the run's first"
    assert other in page.text
    scored = predictions.look(reading.read(run.folder), None, None).views
    assert {name: view.accuracy for name, view in scored.items()} == run.rounds[-1]["others"]["bn=averaged"]


@pytest.mark.usefixtures("undrawn_figures")
def test_a_held_out_domain(run_inline: InlineRun) -> None:
    run = run_inline(method="fedcode", rounds=1, nodes=2, set=f"{QUICK} allocation.held_out=[street,sketch]")
    page = report(run.folder, "images=20")
    check_results(page, run.results)
    assert "street, sketch: held by no node" in page.text
    assert set(numbers(run.folder)["domains"]) == set(DOMAINS)
    assert page.tables["nodes"][3] == ["street", "0", "0", "held by no node"]


@pytest.mark.long
def test_scores_of_client_models_and_of_a_validation_part(run_inline: InlineRun) -> None:
    more = f"{QUICK} evaluate.client_models=last allocation.validation_fraction=0.2"
    run = run_inline(rounds=1, nodes=4, set=more)
    page = report(run.folder, "images=20")
    fields = {row[0]: float(row[1]) for row in page.tables["features-1"][1:]}
    scores = run.results["client_models"]
    shown = (fields["LTA"], fields["ATA scan"])
    assert shown == pytest.approx((scores["lta"], scores["ata"]["scan"]), abs=0.051)
    assert "best round (1)+" in page.tables["results"][0]


# --- runs that lack something --------------------------------------------------------------------------------


def test_a_missing_domain_is_not_zero(copied: Run) -> None:
    results = copied.results
    for result in (results["domains"], results["final"], results["best_test"]["domains"]):
        result["street"] = None
    results |= {"missing": ["street"], "avg": None, "std": None}
    (copied.folder / "results.json").write_text(json.dumps(results))
    change_rounds(copied, lambda line: line["accuracy"].update(street=None))
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    check_results(page, results)
    assert "street missing" in page.plot("Mean accuracy") and "street missing" in page.plot("Top-1 accuracy")
    assert "street has a score in 0 of 2 averaged rounds" in page.text
    assert "Features: There is no checkpoint that can be read." in page.text


def test_nothing_is_known(copied: Run) -> None:
    nothing = dict.fromkeys(DOMAINS)
    change_rounds(copied, lambda line: line.update(accuracy=nothing, losses={"loss": None}))
    (copied.folder / "results.json").unlink()
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    assert page.tables["results"][1][1:] == ["missing"] * 3


@pytest.mark.usefixtures("undrawn_figures")
def test_an_interrupted_run(copied: Run) -> None:
    (copied.folder / "results.json").unlink()
    with (copied.folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')  # as a kill leaves it
    change_config(copied, resumed=[{"after_round": 1}])
    page = report(copied.folder, "images=20")
    assert "Not finished: 2 of 2 rounds are complete" in page.text and "Resumed after round 1." in page.text
    lines = [json.loads(line) for line in (copied.folder / "metrics.jsonl").read_text().splitlines()[:2]]
    shown = {row[0]: row[1:] for row in page.tables["results"][1:]}
    for domain in DOMAINS:
        assert float(shown[domain][1]) == lines[1]["accuracy"][domain]
        assert float(shown[domain][0]) == pytest.approx(np.mean([line["accuracy"][domain] for line in lines]))
    assert set(numbers(copied.folder)["domains"]) == set(DOMAINS)


def test_a_run_without_a_full_round(copied: Run) -> None:
    for name in ("results.json", "metrics.jsonl"):
        (copied.folder / name).unlink()
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    assert "none of 2 rounds is complete" in page.text
    assert page.plots() == []


def test_rounds_that_were_not_scored_or_on_a_part(copied: Run) -> None:
    def change(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            line |= {"accuracy": None, "avg": None, "test_loss": None}
        else:
            line["evaluated_share"] = 0.5

    change_rounds(copied, change)
    (copied.folder / "results.json").unlink()
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    assert "No round has been scored on all test images." in page.text
    assert "1 of 2 rounds were scored. 1 of them on a part" in page.text
    page.plot("Top-1 accuracy")


@pytest.mark.usefixtures("undrawn_figures")
def test_who_was_left_out(copied: Run) -> None:
    change_rounds(
        copied, lambda line: line.update(left_out=[f"node {i} <i>&" for i in range(20)], started_anew=["node 7"])
    )
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    rows = page.tables["events"][1:]
    assert rows[0] == ["1", "left out: node 0 <i>&"]
    assert len(rows) == 31 and "and 12 more" in rows[-1][1]


HOSTILE = "\x1b[2J\nround 9/9  scan 100.0 <script>alert(1)</script> "


@pytest.mark.long
def test_hundreds_of_names_of_an_earlier_version_make_a_page_of_bounded_length(copied: Run) -> None:
    """Which nodes could then give to losses and to ways of scoring, of any length."""
    names = [HOSTILE + "x" * (1_000_000 if i == 3 else 0) + str(i) for i in range(900)]
    change_rounds(
        copied,
        lambda line: line.update(
            losses=line["losses"] | {f"loss/{name}": 1.0 for name in names},
            others={name: dict.fromkeys(DOMAINS, 50.0) for name in names},
            left_out=[f"node 0: {HOSTILE}" + "y" * 100_000],
        ),
    )
    file = copied.folder / "results.json"
    content = json.loads(file.read_text())
    content["others"] = {name: dict.fromkeys(DOMAINS, 50.0) for name in names}
    file.write_text(json.dumps(content))
    shutil.rmtree(copied.folder / "checkpoint")
    page = report(copied.folder)
    assert len(page.source) < 500_000
    assert "\x1b" not in page.source and "<script" not in page.source
    assert len(page.tables["results"][0]) == 4 + MOST_SHOWN  # domain, last rounds, final, others, best round
    assert f"{900 - MOST_SHOWN} more ways to score are in results.json." in page.text
    losses = {name for line in copied.rounds for name in line["losses"]}
    assert f"{len(losses) - MOST_SHOWN} more are in metrics.jsonl." in page.text
    assert len(page.plot("Training loss")) < 4000
    assert all(len(row[1]) < 800 for row in page.tables["events"])


@pytest.mark.long
def test_a_damaged_checkpoint_gives_way_to_the_one_before(copied: Run) -> None:
    (weights,) = (copied.folder / "checkpoint").glob("weights-00002*")
    weights.write_bytes(b"nonsense")
    page = report(copied.folder, "images=20")
    assert "Of the weights of round 1." in page.text
    assert numbers(copied.folder)["round"] == 1


@pytest.mark.parametrize("cut", ["empty", "third", "line", "torn", "gone", "noise"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json", "config.yaml", "figures.json", "status.json"])
def test_a_file_that_is_cut_off_is_told_in_a_sentence(name: str, cut: str, copied: Run) -> None:
    """By each command that reads a run folder: an error of ours or a page, none of Python's."""
    whole = (copied.folder / name).read_bytes()
    parts = {
        "empty": b"", "third": whole[: len(whole) // 3], "line": whole.partition(b"\n")[0] + b"\n", "torn": whole[:-9],
        "noise": b"\x00\xff{[1", "gone": b"",
    }  # fmt: skip
    (copied.folder / name).write_bytes(parts[cut])
    if cut == "gone":
        (copied.folder / name).unlink()
    for command_name in ("compare", "status"):
        result = CliRunner().invoke(cli.app, [command_name, str(copied.folder)])
        assert isinstance(result.exception, FedShiftError | SystemExit | None), (command_name, result.exception)
    refused = ""
    try:
        reading.read(copied.folder)
    except FedShiftError as error:
        refused = str(error)
    assert refused or name != "metrics.jsonl" or cut in ("line", "torn")


def test_names_are_shown_as_they_are(run_inline: InlineRun, tmp_path: Path) -> None:
    name = '<script>alert(1)</script>&"x" $a_b$ {{ 7 * 7 }}'.replace("/", "")
    file = tmp_path / f"{name}.yaml"
    file.write_text((ROOT / "conf" / "experiments" / "handwritten.yaml").read_text())
    run = run_inline(str(file), rounds=1, nodes=4, set=f"{QUICK} dataset.domains=[scan,sketch]")
    change_config(run, command="fedshift run </pre><img src=x>", versions={"<b>": "&amp;"})
    change_rounds(run, lambda line: line["losses"].update({"loss/<u>$x$&": 1.0}))
    shutil.rmtree(run.folder / "checkpoint")  # its figures have no other names
    page = report(run.folder, "images=20")
    assert f"{name}, seed 0" in page.text
    assert "fedshift run </pre><img src=x>" in page.text and "<b> &amp;" in page.text
    assert "<u>$x$&" in page.text
    assert "<u>$x$&" in page.plot("Training loss")


# --- where the images are --------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn_figures")
def test_a_deployment_says_where_the_images_are(copied: Run) -> None:
    change_config(copied, engine="deployment")
    page = report(copied.folder)
    check_results(page, copied.results)
    assert f"fedshift report {copied.folder} data-dir=DIR" in page.text
    assert "features" not in {result.get("id") for _, result in page.elements}
    (lacks,) = page.lacks  # one line, as there is one reason
    assert lacks.startswith("Features: the test images are on the nodes.")
    assert page.all("img") == []
    assert numbers(copied.folder)["domains"] == {}


@pytest.mark.long
def test_a_deployment_whose_images_are_at_hand(copied: Run, tmp_path: Path) -> None:
    change_config(copied, engine="deployment")
    images = tmp_path / "images"
    images.mkdir()
    for folder in exporting.export(resolve({}), 4, tmp_path / "nodes"):
        for path in folder.path.iterdir():
            path.rename(images / path.name)
    (images / "street_test.npz").unlink()
    page = report(copied.folder, f"data-dir={images}")
    outcome = numbers(copied.folder)["domains"]
    assert {domain: result["accuracy"] for domain, result in outcome.items()} == {
        domain: value for domain, value in copied.results["final"].items() if domain != "street"
    }
    assert "street is not shown" in page.text


@pytest.mark.usefixtures("undrawn_figures")
def test_a_deployment_with_personal_models(run_inline: InlineRun) -> None:
    run = run_inline(method="local", rounds=1, nodes=4, set=QUICK)
    change_config(run, engine="deployment")
    page = report(run.folder, "data-dir=/nowhere")
    assert "Features: The test images and the private parts of the models are on the nodes." in page.text
    assert [line.count("private parts") for line in page.lacks] == [1]


@pytest.mark.long
def test_images_that_are_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    for domain in ("mnist", "usps"):
        for split, number in (("train", 40), ("test", 20)):
            x = rng.integers(0, 256, (number, 32, 32, 3), np.uint8)
            np.savez(data / f"{domain}_{split}.npz", x=x, y=np.arange(number) % 10)
    flat = {
        "experiment": "handwritten", "dataset": "digits", "data-dir": str(data), "rounds": 1,
        "output-dir": str(tmp_path / "runs"), "set": "train.epochs=1 dataset.domains=[mnist,usps]",
    }  # fmt: skip
    run = Run(runner.run_inline(flat, 2))
    data.rename(tmp_path / "moved")
    catalog.load.cache_clear()  # as in another process
    page = report(run.folder)
    check_results(page, run.results)
    assert "cannot be scored here" in page.text
    assert f"fedshift report {run.folder} data-dir=DIR" in page.text
    page = report(run.folder, f"data-dir={tmp_path / 'moved'}")
    assert len([label for label in page.plots() if label.startswith("Confusion")]) == 2


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["images=0"], "images: expected a whole number of at least 1 or all, found '0'"),
        (["images=many"], "'many'"),
        (["data-dir="], "not of the form key=value"),
        (["nope"], "not of the form key=value"),
        (["seed=1"], "unknown key 'seed'; there are data-dir, images"),
        (["node=3"], r"node: .*, found '3'; .* examples/figures/features\.py RUN --node K"),
    ],
)
def test_wrong_keys(arguments: list[str], reason: str, finished: Run) -> None:
    with pytest.raises(ConfigError, match=reason):
        command.run(finished.folder, arguments)


def test_a_data_dir_without_the_images(copied: Run, tmp_path: Path) -> None:
    before = sorted(copied.folder.iterdir())
    with pytest.raises(DataError, match=r"data-dir /nonexistent does not exist; it must be a folder with images"):
        command.run(copied.folder, ["data-dir=/nonexistent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the test images cannot be scored there: scan train not found"):
        command.run(copied.folder, [f"data-dir={tmp_path / 'empty'}"])
    with pytest.raises(ConfigError, match="data-dir: '~nouser' cannot be a path"):
        command.run(copied.folder, ["data-dir=~nouser"])
    with pytest.raises(ConfigError, match="images: expected a whole number"):
        command.run(copied.folder, ["images=" + "9" * 5000])
    assert sorted(copied.folder.iterdir()) == before


def test_folders_that_are_none(copied: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not the folder of a run: it has no config\.yaml"):
        command.run(tmp_path / "nowhere", [])
    (copied.folder / "results.json").write_text("[1")
    with pytest.raises(ConfigError, match=r"results\.json: cannot be read"):
        command.run(copied.folder, [])
    (copied.folder / "config.yaml").write_text("resolved: {}")
    with pytest.raises(ConfigError, match="lacks engine"):
        command.run(copied.folder, [])


def test_an_error_is_reported_in_a_line(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(report_build, "make", broken)
    with pytest.raises(FedShiftError, match="the report cannot be made: ZeroDivisionError: of ours"):
        command.run(copied.folder, [])


def test_a_report_never_fails_a_run(
    finished: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (FedShiftError("no room"), SystemExit(130)):

        def broken(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(command, "run", broken)
        cli.report_after_run(finished.folder)
        said = capsys.readouterr().err
        assert said.startswith("report: none (") and said.count("\n") == 1
        assert f"fedshift report {finished.folder}" in said


def test_a_run_ends_with_its_report_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    def run(folder: Path, _: list[str]) -> report_build.Made:
        made.append(folder)
        return report_build.Made(folder / "report.html", ("Features: gone",))

    monkeypatch.setattr(command, "run", run)
    quick = ["handwritten", "engine=inline", "rounds=1", "nodes=4", f"output-dir={tmp_path}", f"set={QUICK}"]
    cli.run(quick)
    shown = capsys.readouterr()
    *_, said, last = shown.out.splitlines()
    assert shown.err.splitlines()[-1] == "not drawn: Features: gone"
    assert last == f"run folder: {made[0]}"
    assert said == f"report: {made[0] / 'report.html'}"
    cli.run([*quick, "report=false"])
    assert len(made) == 1
    with pytest.raises(ConfigError, match="report: 'no'; allowed are true, false"):
        parse_arguments(["report=no"])
    with pytest.raises(SystemExit) as caught:  # the command itself has an exit code for it, a run has not
        cli.report(made[0], [])
    assert caught.value.code == exit_codes.PARTLY_DRAWN == 5
    assert "not drawn: Features: gone" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.long
def test_a_simulation_and_its_report(tmp_path: Path) -> None:
    """The run is that of other processes; the report is made in the command's own."""
    quick = ["method=fedcode", "nodes=2", "rounds=1", "train.epochs=1", "dataset.domains=[scan,sketch]"]
    ended = subprocess.run(
        [sys.executable, "-m", "fedshift", "run", "handwritten", *quick], cwd=tmp_path, capture_output=True,
        text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert ended.stdout.splitlines()[-2:] == [f"report: {folder / 'report.html'}", f"run folder: {folder}"]
    assert "Warning" not in ended.stderr
    run = Run(folder)
    check_results(Page(folder / "report.html"), run.results)
    outcome = numbers(folder)["domains"]
    assert {domain: result["accuracy"] for domain, result in outcome.items()} == run.results["final"]


def test_the_command_does_not_start_slower() -> None:
    slow = ("matplotlib", "sklearn", "jinja2", "torch", "flwr", "scipy", "numpy", "pydantic", "yaml")
    code = f"import sys, fedshift.cli; print([m for m in {slow!r} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


# --- the numbers ------------------------------------------------------------------------------------------


def test_tsne_of_features_that_are_all_alike() -> None:
    assert maps.tsne(np.ones((6, 3)), seed=0).tolist() == [[0, 0]] * 6
    placed = maps.tsne(np.random.default_rng(0).normal(size=(5, 3)), seed=0)
    assert np.isfinite(placed).all() and len(np.unique(placed, axis=0)) == 5


def test_many_classes_and_domains() -> None:
    """DomainNet has 345 classes; nobody has ten domains yet."""
    classes, domains = [f"class {k}" for k in range(345)], [f"domain {d}" for d in range(10)]
    y = np.arange(345).repeat(2)
    counts = np.bincount(y * 345 + np.roll(y, 1), minlength=345**2).reshape(345, 345)
    with drawing.style():
        assert len(confusion_of("domain 0", counts, classes, 0, "domain 0").svg) < 200_000
        placed = np.random.default_rng(0).normal(size=(len(y), 2))
        by_class, by_domain = maps.by_class_and_domain(placed, y, np.arange(len(y)) % 10, domains, classes)
    assert "colour wheel" in by_class.caption
    assert "class 344" in by_class.svg and "class 344" not in by_domain.svg  # a key for those who look at the colours
    assert "domain 9" in by_domain.svg


def test_a_row_without_images_is_marked() -> None:
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 0, 4]])
    with drawing.style():
        drawn = confusion_of("scan", counts, ["a", "b", "c"], 0, "scan: on all 8 test images")
        whole = confusion_of("scan", counts + 1, ["a", "b", "c"], 1, "scan: on all 17 test images")
    assert drawn.caption.endswith("Hatched: no test image of b.") and "<pattern" in drawn.svg
    assert "Hatched" not in whole.caption and "<pattern" not in whole.svg


def test_whiskers_end_at_100_and_equal_bytes_are_two_lines() -> None:
    fields = {"domains": {"a": 100.0, "b": 92.0}, "avg": 96.0, "std": 5.7, "averaged_rounds": 5}
    with drawing.style():
        bars: Any = curves.bars(fields)
        costs: Any = curves.costs([{"round": n, "seconds": 1.0, "bytes_up": 5e6, "bytes_down": 5e6} for n in (1, 2)])
    (whisker,) = bars.figure.axes[0].collections
    assert whisker.get_segments()[0][:, 0] == pytest.approx([96 - 8 / 2**0.5, 100])
    down, up = costs.figure.axes[1].lines
    assert (down.get_label(), up.get_label()) == ("to the nodes", "from the nodes")
    assert down.get_linewidth() > 2 * up.get_linewidth()


def test_the_table_names_scored_rounds_that_are_not_the_last_ones(copied: Run) -> None:
    record = reading.read(copied.folder)
    assert record.results is not None
    accuracy = record_sections.sections(replace(record, results=record.results | {"averaged_over": [1, 3]}))[0]
    assert accuracy.tables[0].heads[1] == "last 2 scored rounds"
    assert "Last 2 scored rounds: 1, 3." in accuracy.notes


def test_one_domain_has_no_spread_and_a_long_name_is_cut() -> None:
    fields = {"domains": {"a" * 60: 85.0}, "avg": 85.0, "std": 0.0, "averaged_rounds": 5}
    with drawing.style():
        drawn: Any = curves.bars(fields)
    assert drawn.figure.axes[0].texts[-1].get_text() == "85.0" and "STD" not in drawn.caption and "±" not in drawn.title
    assert len(drawn.figure.axes[0].get_yticklabels()[0].get_text()) == drawing.ROW_NAME


def lines_of(domains: list[str]) -> list[dict[str, Any]]:
    accuracy = {name: 50.0 + i % 7 for i, name in enumerate(domains)}
    accuracy |= {domains[3]: 10.0, domains[5]: 90.0}
    return [{"round": n, "accuracy": accuracy} for n in (1, 2)]


def test_many_domains_are_readable() -> None:
    """Of 24 long names the legend makes the figure higher; of more domains there is a band."""
    names = [f"Hospital of town {i:02}" for i in range(30)]
    with drawing.style():
        few: Any = curves.by_domain(lines_of(names[:6]), names[:6], "accuracy")
        many: Any = curves.by_domain(lines_of(names[:24]), names[:24], "accuracy")
        most: Any = curves.by_domain(lines_of(names), names, "accuracy")
        for plot in (few, many, most):
            plot.figure.draw_without_rendering()
    assert few.figure.get_figheight() < 3.6 and most.figure.get_figheight() < 3.6
    inches = many.figure.axes[0].get_window_extent().height / many.figure.dpi
    assert inches > 1.8 and many.figure.get_figheight() > 5
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in many.figure.axes[0].lines}
    assert len(looks) == 25
    assert [line.get_label() for line in most.figure.axes[0].lines] == [names[3], names[5], "AVG"]
    assert "The band holds all 30 domains; named are the lowest and the highest at the end." in most.caption
    pairs = {(drawing.domain_colour(i), drawing.domain_marker(i)) for i in range(64)}
    assert len(pairs) == 64


def test_what_is_left_out_of_a_figure_is_said() -> None:
    counts: dict[str, Any] = {
        "accuracy": 50.0, "balanced_accuracy": 50.0, "macro_f1": 50.0, "auc": 50.0, "ece": 5.0, "n": 8, "images": 8,
        "confusion": None, "per_class": {"recall": [40.0, 60.0], "precision": [50.0, 50.0], "n": [4, 4]},
    }  # fmt: skip
    figures = Figures.model_validate(
        {"round": 2, "classes": ["a", "b"], "domains": {f"d{i}": counts for i in range(10)}, "overall": None}
    )
    with drawing.style():
        (bars,) = by_class.section(figures).figures
    assert "Not drawn: 2 more domains; the table by class has them." in bars.caption
    domains = [f"site {i}" for i in range(30)]
    placed = np.random.default_rng(0).normal(size=(60, 2))
    with drawing.style():
        drawn = maps.by_class_and_domain(placed, np.arange(60) % 2, np.arange(60) % 30, domains, ["a", "b"])
    assert all("Markers of the 30 domains repeat, and no key names them." in one.caption for one in drawn)


def test_a_name_that_looks_like_a_part_of_a_drawing_is_shown_as_it_is() -> None:
    name = 'id="zz" href="#a" #0072b2'
    with drawing.style():
        figure, (axes,) = drawing.canvas(1.0)
        axes.set_title(name)
        drawn = drawing.Plot(figure, "f", "t", "")
    assert f">{name}<" in drawn.svg


def test_a_run_whose_folder_is_not_utf_8_has_its_report(copied: Run) -> None:
    folder = copied.folder.rename(os.fsdecode(os.fsencode(copied.folder) + b"\xff"))
    page = report(folder)
    assert "\\xff" in page.text


def test_classes_of_nodes_and_of_many_nodes_by_domain() -> None:
    few = [node_of(i, (3, i), "scan" if i < 2 else "street", 1) for i in range(4)]
    many = [node_of(i, (1, 0), "scan" if i % 2 else "street", 1) for i in range(maps.EACH_NODE + 2)]
    with drawing.style():
        small, large = (maps.class_counts(nodes, ("scan", "street"), ("a", "b")) for nodes in (few, many))
    assert small.caption.startswith("A row is a node, by domain")
    assert "on 4 nodes: at most 3 of one class" in small.svg
    assert large.caption.startswith("A row is a domain, all its nodes together (50 in all)")
    assert ">25<" in large.svg


def test_colours_are_the_themes() -> None:
    with drawing.style():
        figure, (axes,) = drawing.canvas(1.0)
        axes.plot([1, 2], [1, 2], color=drawing.domain_colour(3), marker=drawing.domain_marker(3))
        axes.plot([1, 2], [1, 2], color=drawing.class_colour(3, 10))
        svg = drawing.Plot(figure, "x", "a <title> & more", "").svg
    assert "var(--d3)" in svg and "var(--k3)" in svg and "currentColor" in svg and "var(--grid)" in svg
    assert "a &lt;title&gt; &amp; more" in svg
    assert "#000000" not in svg and not [colour for colour in drawing.THEME.values() if colour in svg]
