"""``fedshift evaluate`` gives the accuracies that a model had in its run, on the nodes and images that are asked."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from real_federation import opened
from refusals import refused
from support import InlineRun, Run, refusal_of

from fedshift.export import saving
from fedshift.export.saving import Wanted
from fedshift.lab.grid.evaluate import command
from fedshift.lab.tables.results import loading
from fedshift.run.launch import local_superlink, log_filter, runner, site_status
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError, FederationError, FedShiftError

QUICK = (
    "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1 model.name=cnn_bn train.precision=float32 "
    "train.lr=0.05 train.batch_size=8"
)
THREE = f"{QUICK} dataset.domains=[scan,texture,street]"


def evaluated(to: Path, *arguments: object, site: str = "") -> dict[str, dict[str, Any]]:
    """Evaluate inline; return the models of ``evaluate.json`` by their label."""
    assert command.evaluate([*map(str, arguments), f"output-dir={to}", "engine=inline"], site, as_json=False) == 0
    (folder,) = to.iterdir()
    content = json.loads((folder / command.JSON_FILE).read_text())
    return {model["model"]: model for model in content["models"]}


def accuracy(model: dict[str, Any]) -> dict[str, float]:
    return {name: domain["accuracy"] for name, domain in model["domains"].items()}


def saved(run: Run, to: Path, **options: Any) -> Path:
    folder, _ = saving.save(Wanted(run.folder, "safetensors", output=to, **options))
    return folder


# --- the same accuracies ---------------------------------------------------------------------------------


def test_a_run_and_its_saved_model_score_what_the_run_says(
    finished_run: InlineRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(method="fedavg", nodes=2, rounds=2, set=QUICK)
    other = finished_run(method="fedprox", nodes=2, rounds=1, set=QUICK.replace("cnn_bn", "cnn"))
    scored = evaluated(tmp_path / "out", run.folder, saved(run, tmp_path / "shared-model"), other.folder)
    assert list(scored) == [run.folder.name, "shared-model", other.folder.name]
    first, second, third = scored.values()
    final = run.results["final"]
    assert accuracy(first) == accuracy(second) == final != accuracy(third) == other.results["final"]
    assert (first["avg"], first["worst"]) == (pytest.approx(sum(final.values()) / 2), min(final.values()))
    assert [(d["images"], d["trained_on"]) for d in third["domains"].values()] == [(90, True)] * 2
    assert (first["method"], third["method"], third["network"]) == ("fedavg", "fedprox", "cnn")
    # The same counts as in the run, and a folder that other commands read.
    made = Run(Path(first["run_folder"]))
    assert made.results["figures"]["domains"] == run.results["figures"]["domains"]
    assert made.results["rounds"] == 0
    place = made.folder.parent
    assert {r.name for r in loading.read([place]).runs} == {Path(m["run_folder"]).name for m in scored.values()}
    assert f"{first['avg']:.1f}" in capsys.readouterr().out
    rows = list(csv.DictReader((place / command.CSV_FILE).open()))
    assert [(row["model"], row["domain"], float(row["accuracy"])) for row in rows] == [
        (label, name, value) for label, model in scored.items() for name, value in accuracy(model).items()
    ]


#: All but the first are long.
BEFORE = (
    "evaluate.bn=[retaken,averaged,batch]",
    "adapt.name=tent",
    "allocation.validation_fraction=0.3 keep=best-validation",
    "evaluate.bn=[averaged,retaken] model.bn_keep=retaken",
    "modules=[f2dc] model.name=cnn",
    "shift.name=corruption shift.corruption=fog",
    "model.freeze=encoder model.precompute=on images.crop_padding=0",
)


@pytest.mark.parametrize("settings", [BEFORE[0], *(pytest.param(each, marks=pytest.mark.long) for each in BEFORE[1:])])
def test_what_a_run_does_before_a_score_is_done_again(settings: str, finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(method="fedavg", nodes=2, rounds=2, set=f"{QUICK} {settings}")
    (model,) = evaluated(tmp_path / "out", run.folder).values()
    line = run.rounds[run.results.get("chosen_round", {}).get("round", 2) - 1]
    if "bn_keep" in settings:
        assert accuracy(model) == line["others"]["bn=retaken"] != line["accuracy"]
    else:
        assert (accuracy(model), model["others"]) == (line["accuracy"], line.get("others", {}))


# --- other images ----------------------------------------------------------------------------------------


def test_a_domain_that_no_node_trained_on_is_scored_and_marked(
    finished_run: InlineRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(method="fedavg", nodes=3, rounds=1, set=THREE)
    (model,) = evaluated(tmp_path / "all", run.folder, "dataset.domains=[scan,texture,street,sketch]").values()
    seen = {name: value for name, value in accuracy(model).items() if name != "sketch"}
    assert seen == run.results["final"]
    assert [d["trained_on"] for d in model["domains"].values()] == [True, True, True, False]
    assert f"{accuracy(model)['sketch']:.1f}*" in capsys.readouterr().out
    (alone,) = evaluated(tmp_path / "late", run.folder, "dataset.domains=[sketch]").values()
    assert accuracy(alone) == {"sketch": accuracy(model)["sketch"]}
    assert alone["worst"] is None


def trees(folder: Path, sites: dict[str, str], shift: int = 0) -> Path:
    """Write ten images of each class of each site: bright stripes in a place of their own."""
    for number, (site, classes) in enumerate(sites.items()):
        for kind in classes.split():
            (folder / site / kind).mkdir(parents=True)
            top = 10 * (ord(kind[0]) % 3)
            for i in range(10):
                image = Image.new("RGB", (32, 32), (30 + 5 * i, 20 * number + shift, 40))
                image.paste((220, 200, 255 - 3 * i), (0, top, 32, top + 8))
                image.save(folder / site / kind / f"{i}-{shift}.png")
    return folder


@pytest.mark.usefixtures("undrawn_figures")
def test_a_late_site_is_found_in_a_folder_and_its_classes_go_by_name(run_inline: InlineRun, tmp_path: Path) -> None:
    images = trees(tmp_path / "images", dict.fromkeys(("north", "south"), "apple bread corn"))
    experiment = tmp_path / "own.yaml"
    experiment.write_text(
        f"dataset: {{name: folders, data_dir: {images}, size: 32}}\nmodel: {{name: cnn}}\ntrain: {{epochs: 1, "
        "batch_size: 4, lr: 0.005, precision: float32}\nrounds: 2\n"
    )
    run = run_inline(str(experiment), nodes=2)
    model = saved(run, tmp_path / "model")
    (same,) = evaluated(tmp_path / "same", model, f"data-dir={images}").values()
    assert accuracy(same) == run.results["final"]
    trees(images, {"late": "Bread corn"}, shift=9)
    (more,) = evaluated(tmp_path / "more", model, f"data-dir={images}").values()
    assert list(more["domains"]) == ["north", "south", "late"] and more["domains"]["late"]["images"] == 4
    assert accuracy(more) == run.results["final"] | {"late": accuracy(more)["late"]}
    given = ("dataset.domains=[late]", "report=true")
    (late,) = evaluated(tmp_path / "some", model, f"data-dir={images}", *given).values()
    assert accuracy(late) == {"late": accuracy(more)["late"]} and (Path(late["run_folder"]) / "report.html").is_file()
    strange = trees(tmp_path / "strange", {"east": "apple dough"})
    said = refusal_of(ConfigError, evaluated, tmp_path / "no", model, f"data-dir={strange}")
    assert said == f"classes: {strange} has apple, dough; the model model knows apple, bread, corn, in this order"
    assert not [*(tmp_path / "no").iterdir()]


# --- refusals --------------------------------------------------------------------------------------------


def test_what_is_no_model_is_refused_in_a_line(finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(method="fedavg", nodes=2, rounds=2, set=QUICK)
    (tmp_path / "empty").mkdir()
    program, _ = saving.save(Wanted(run.folder, "torchscript", output=tmp_path / "program"))
    damaged = saved(run, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"other")
    for path, named in (
        (tmp_path / "nothing", "no folder"), (tmp_path / "empty", "is no model"), (program, "torchscript"),
        (damaged, "SHA-256"),
    ):  # fmt: skip
        assert named in refusal_of(FedShiftError, evaluated, tmp_path / "out", run.folder, path)
    for key, named in (
        ("method=fedprox", "'method'"), ("train.lr=1", "'train.lr'"), ("workers=two", "workers"),
        ("dataset.classes=[a,b]", "'dataset.classes'"), ("dataset.size=64", "64"), ("dataset=cifar10", "airplane"),
        ("dataset.domains=[moon]", "'moon'"),
    ):  # fmt: skip
        assert named in refusal_of(ConfigError, evaluated, tmp_path / "out", run.folder, key)
    assert not [*(tmp_path / "out").iterdir()]
    (run.folder / "results.json").unlink()
    said = refusal_of(FedShiftError, evaluated, tmp_path / "out", run.folder)  # evaluate itself has no --round
    assert "2 of 2 rounds are complete" in said and "\nfedshift save RUN --round N saves one of 2, 1" in said
    with refused(ConfigError, "1 to 1000"):
        command.evaluate([f"output-dir={tmp_path}"], "", as_json=False)


def test_a_run_without_a_model_for_all_nodes_says_what_can_be_done(finished_run: InlineRun, tmp_path: Path) -> None:
    fedbn = finished_run(method="fedbn", nodes=2, rounds=1, set=QUICK)
    mixed = finished_run(method="fedala", nodes=2, rounds=1, set=QUICK)
    fedproto = finished_run(method="fedproto", nodes=2, rounds=1, set=f"{QUICK} method.predict_by=prototype")
    only_scores = finished_run(method="fedavg", nodes=2, rounds=0, set=QUICK)
    for path, named in (
        (fedbn.folder, "fedshift save RUN --node 0"), (mixed.folder, "--before-adaptation"),
        (saved(fedproto, tmp_path / "node", node=0), "'fedproto'"), (only_scores.folder, "rounds=0"),
        (saved(fedbn, tmp_path / "shared", shared=True), "fedshift save-node"),
    ):  # fmt: skip
        assert named in refusal_of(ConfigError, evaluated, tmp_path / "out", path)
    nodes = [saved(fedbn, tmp_path / str(i) / "model", node=i) for i in range(2)]  # two of one name
    scored = evaluated(tmp_path / "nodes", *nodes)
    assert list(scored) == ["0/model", "1/model"]
    for model, (name, value) in zip(scored.values(), fedbn.results["final"].items(), strict=True):
        assert accuracy(model)[name] == value  # of the node's own domain: what its own model had in the run


# --- on the nodes of a SuperLink ----------------------------------------------------------------------------


TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1 train.precision=float32 train.lr=0.05"
THREE_SITES = "dataset.domains=[scan,sketch,street]"
LIMIT = 240


@pytest.mark.slow
@pytest.mark.long
def test_a_site_that_joins_late_is_scored_as_in_a_simulation(run_inline: InlineRun, tmp_path: Path) -> None:
    run = run_inline(nodes=2, rounds=2, set=TINY)
    here = [str(run.folder), THREE_SITES, "nodes=3", f"output-dir={tmp_path / 'here'}", "engine=inline"]
    command.evaluate(here, "", as_json=False)
    (file,) = tmp_path.glob("here/*/evaluate.json")
    wanted = json.loads(file.read_text())["models"][0]
    there = ["--site", runner.CONNECTION, "--json", THREE_SITES, "federation.min_nodes=3"]
    there.append(f"output-dir={tmp_path / 'there'}")
    with opened(tmp_path / "site", 3, f"{TINY} {THREE_SITES}") as site:
        ended = subprocess.run(
            [sys.executable, "-m", "fedshift", "evaluate", str(run.folder), *there],
            cwd=site.flower.folder, env=site.flower.env, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr + ended.stdout
    model = json.loads(ended.stdout)["models"][0]
    assert (model["engine"], model["nodes"], model["domains"]) == ("deployment", 3, wanted["domains"])
    assert [domain["trained_on"] for domain in model["domains"].values()] == [True, True, False]
    assert model["domains"]["street"]["images"] == 90


@pytest.mark.parametrize("state", ["completed", "degraded", "failed", ""])
def test_how_the_run_on_a_site_ended_is_the_end_of_the_command(
    state: str, finished_run: InlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A run in this process, or none, in the place of the one that ``flwr`` submits."""
    run = finished_run(method="fedavg", nodes=2, rounds=1, set=TINY)

    def submitted(flat: dict[str, str], *_: object) -> None:
        if not state:
            return
        results = (folder := runner.run_inline(flat, 2)) / "results.json"
        if state == "degraded":
            results.write_text(json.dumps(json.loads(results.read_text()) | {"lost": {"0": [1]}}))
        elif state == "failed":
            results.unlink()
            status = json.loads((folder / "status.json").read_text())
            (folder / "status.json").write_text(json.dumps(status | {"state": state, "error": "a node is lost"}))

    monkeypatch.setattr(site_status, "read", lambda site: {})
    monkeypatch.setattr(local_superlink, "run_command", lambda home, site, flat: flat)
    monkeypatch.setattr(log_filter, "call", submitted)
    given = [str(run.folder), f"output-dir={tmp_path / 'out'}"]
    if state in ("completed", "degraded"):
        code = command.evaluate(given, "hospital", as_json=False)
        (file,) = tmp_path.glob("out/*/evaluate.json")
        (model,) = json.loads(file.read_text())["models"]
        assert {name: domain["accuracy"] for name, domain in model["domains"].items()} == run.results["final"]
        lost = state == "degraded"
        assert (code, f"degraded: {run.folder.name}: " in capsys.readouterr().err) == (exit_codes.DEGRADED * lost, lost)
    else:
        said = refusal_of(FederationError, command.evaluate, given, "hospital", as_json=False)
        assert said.startswith("--site hospital: " + ("a node is lost" if state else "the run left no folder in "))


def test_a_superlink_that_is_not_there_is_said_before_any_work(finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(method="fedavg", nodes=2, rounds=1, set=TINY)

    def on_site(*arguments: str) -> None:
        command.evaluate([str(run.folder), f"output-dir={tmp_path / 'out'}", *arguments], "nowhere", as_json=False)

    assert "nowhere" in refusal_of(FederationError, on_site)
    assert "engine: --site asks the real nodes" in refusal_of(ConfigError, on_site, "engine=inline")
    assert not (tmp_path / "out").exists()
