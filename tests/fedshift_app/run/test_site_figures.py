"""Figures of sites in runs: next to unchanged numbers, of shared-out test sets, with patients, of real nodes, shown."""

import csv
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_sites
import pytest
from support import InlineRun, ListeningGrid, Run, refusal_of, undrawn

from fedshift.lab.pages.report import command
from fedshift.lab.tables.compare import by_site, compare, keep
from fedshift.run import reading
from fedshift.run.html.site_section import section, text
from fedshift_app import server_app
from fedshift_app.config.resolving import resolve
from fedshift_app.features.site_figures.show import Sites
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import setup, state_folder
from fedshift_app.node.requests import NodeRequest
from fedshift_core.errors import ConfigError

FILE = "site_figures.json"
QUICK = "train.epochs=1 allocation.share=0.05"
#: Of each site how many test images of each class there are; three of a patient.
TESTS = {"north": (12, 12, 4), "south": (9, 18, 0)}
OWN = "dataset.size=32 train.epochs=1 dataset.classes=[bar,cross,disc]"


def without(content: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in keys}


def figures(run: Run) -> Sites:
    return Sites.model_validate(run.results["site_figures"])


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two sites with a table of patients; a folder of each site is that of a real node."""
    root, rng = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(0)
    for site, tests in TESTS.items():
        rows = ["file,label,domain,split,patient"]
        (root / site / "images").mkdir(parents=True)
        for kind, count in zip(own_sites.CLASSES, tests, strict=True):
            for i in range(count + 12):
                file = f"images/{kind}{i}.{own_sites.CAMERAS[site][2]}"
                own_sites.picture(site, kind, rng).save(root / site / file)
                split = "train" if i < 12 else "test"
                rows.append(f"{file},{kind},{site},{split},{split}-{kind}-{i // 3}")
        (root / site / "labels.csv").write_text("\n".join(rows) + "\n")
    table = [(root / site / "labels.csv").read_text().splitlines()[1:] for site in TESTS]
    both = [f"{site}/{row}" for site, rows in zip(TESTS, table, strict=True) for row in rows]
    (root / "labels.csv").write_text("\n".join(["file,label,domain,split,patient", *both]) + "\n")
    return root


# --- runs ----------------------------------------------------------------------------------------------


def test_a_run_with_figures_of_sites_has_the_numbers_of_one_without(run_inline: InlineRun) -> None:
    run, plain = (run_inline(method="fedavg", rounds=2, nodes=4, set=f"{QUICK} evaluate.site_figures={on}")
                  for on in ("true", "false"))  # fmt: skip
    assert [without(line, "seconds") for line in run.rounds] == [without(line, "seconds") for line in plain.rounds]
    assert without(run.results, "seconds", "site_figures") == without(plain.results, "seconds")
    assert not (plain.folder / FILE).exists()
    assert json.loads((run.folder / FILE).read_text()) == run.results["site_figures"]
    made = figures(run)
    assert made.round == 2 and [site.site for site in made.sites] == ["scan", "texture", "street", "sketch"]
    for site in made.sites:
        assert site.images == 90 and site.patients is None and site.images_of_class == (9,) * 10
        counted = run.results["figures"]["domains"][site.site]
        assert site.accuracy.value == pytest.approx(run.results["final"][site.site] / 100)
        assert site.balanced_accuracy.value == pytest.approx(counted["balanced_accuracy"] / 100)
        assert site.ece.value == pytest.approx(counted["ece"] / 100)
        assert site.per_class["sensitivity"].value == pytest.approx([r / 100 for r in counted["per_class"]["recall"]])
        assert site.auroc.value is not None
        assert abs(100 * site.auroc.value - counted["auc"]) <= counted["auc_within"] + 1e-6
    assert made.overall is not None and made.mix.warning == ""
    assert made.overall.accuracy.value == pytest.approx(run.results["figures"]["overall"]["accuracy"] / 100)


def test_of_a_test_set_that_nodes_share_out_the_figures_are_of_the_whole(run_inline: InlineRun) -> None:
    """Two nodes a domain score a half each, in batches of five; one of them scores the whole for the figures."""
    run = run_inline(method="fedavg", rounds=1, nodes=8, set=f"{QUICK} images.eval_batch=5 train.precision=float32")
    made = figures(run)
    assert [(site.site, site.images) for site in made.sites] == [(name, 90) for name in run.results["final"]]
    for site in made.sites:
        assert site.accuracy.value == pytest.approx(run.results["final"][site.site] / 100)
        assert site.ece.value == pytest.approx(run.results["figures"]["domains"][site.site]["ece"] / 100)


def test_models_of_their_own_are_sites_of_their_own(run_inline: InlineRun) -> None:
    made = figures(run_inline(method="local", rounds=1, nodes=8, set=f"{QUICK} dataset.domains=[scan,sketch]"))
    assert [site.site for site in made.sites][:2] == ["scan (node 0)", "scan (node 2)"] and len(made.sites) == 8


def test_the_kept_round_has_the_figures(run_inline: InlineRun) -> None:
    text = "train.epochs=1 allocation.share=0.3 allocation.validation_fraction=0.2 keep=best-validation"
    run = run_inline(method="fedavg", rounds=2, nodes=2, set=f"{text} dataset.domains=[scan,sketch]")
    chosen = run.results["chosen_round"]
    assert figures(run).round == chosen["round"]
    by_name = {site.site: site.accuracy.value for site in figures(run).sites}
    assert by_name == pytest.approx({name: value / 100 for name, value in chosen["domains"].items()})


def test_a_node_refuses_to_work_out_figures_in_other_rounds() -> None:
    def why(server_round: int, value: Any = True, **given: Any) -> str:
        config = resolve({"rounds": 3, **given})
        where = node_data.Place("scan", 0, 1, config.dataset.source(), False, 1)
        given = {"server-round": server_round, "site-figures": value}
        request = NodeRequest.of("evaluate", given, config, where)
        if "site-figures" not in request.features.keys["evaluate"]:
            return request.features.refuse_key("evaluate", "site-figures")
        return request.features.refuse(request).partition(", but ")[2]

    assert why(3) == "" and why(1, set="allocation.validation_fraction=0.2 keep=best-validation") == ""
    assert why(2) == "this run has evaluate.site_figures=true, keep=last, rounds=3, evaluate.last=5"
    for refused in (why(3, 1), why(3, set="evaluate.site_figures=false")):
        assert "evaluate.site_figures=" in refused


# --- patients, a policy, and what is shown ---------------------------------------------------------------


def check_patients(made: Sites) -> None:
    assert [(site.site, site.images, site.patients) for site in made.sites] == [
        (name, sum(tests), sum(number // 3 + bool(number % 3) for number in tests)) for name, tests in TESTS.items()
    ]
    assert made.overall is not None and (made.overall.images, made.overall.patients) == (55, 10 + 9)
    assert made.sites[1].images_of_class == (9, 18, None) and made.sites[1].auroc.classes == 2
    assert "south has no image, or too few, of disc" in made.mix.warning


def test_patients_of_a_table_are_counted_and_drawn(hospitals: Path, run_inline: InlineRun) -> None:
    run = run_inline(dataset="folders", data_dir=str(hospitals), nodes=2, rounds=1, set=OWN)
    check_patients(figures(run))
    noise = "shift.name=corruption shift.corruption=gaussian_noise shift.severity=1"
    images = run_inline(dataset="folders", data_dir=str(hospitals), nodes=2, rounds=1, set=f"{OWN} {noise}")
    assert [site.patients for site in figures(images).sites] == [10, 9]


Deployed = Callable[..., Run]


@pytest.fixture
def deployed(hospitals: Path, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deployed:
    """Return a function that runs one round on two real nodes, which tell nothing of fewer images than ``least``."""

    def run(least: int) -> Run:
        policy = tmp_path / "policy.yaml"
        policy.write_text(f"least_images: {least}\n")
        policy.chmod(0o600)

        def nodes(*args: Any) -> Any:
            grid = ListeningGrid(*args)
            for i, site in enumerate(TESTS):
                given = {"domain": site, "data-dir": str(hospitals / site), "partition-id": i, "policy": str(policy)}
                grid._contexts[1000 + i] = make_context(1000 + i, given, {})
            return grid

        monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
        monkeypatch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)
        given = f"{OWN} federation.min_nodes=2"
        return run_inline(dataset="folders", data_dir=str(hospitals), nodes=2, rounds=1, set=given, grid=nodes)

    return run


def test_a_real_node_logs_its_figures_and_hides_those_of_few_images(
    deployed: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    """The figures of a class with four images do not leave the node; they are null with a mark wherever shown."""
    caplog.set_level(logging.INFO, "fedshift")
    run = deployed(5)
    made = figures(run)
    north, south = made.sites
    assert (north.images, north.patients, south.patients) == (28, 10, 9)
    lines = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "site_figures"]
    assert [line.split(":")[0] for line in lines if line.startswith("round")] == [
        "round 1, north, 28 test images of 10 patients", "round 1, south, 27 test images of 9 patients",
    ]  # fmt: skip
    # Of one class with four images the total would tell: the next smallest one is hidden, too.
    assert north.images_of_class == (None, 12, None) and south.images_of_class == (9, 18, None)
    assert north.per_class["sensitivity"].mark == ("too few", "", "too few")
    assert run.results["site_figures"]["sites"][0]["per_class"]["auroc"]["value"][2] is None
    assert sum("too few images" in line for line in lines) == 3
    content = json.dumps(run.results["site_figures"])
    assert "\n" not in content and "test-" not in content  # no patient's name

    part = section(made)
    overall, by_class = part.tables
    assert overall.rows[0][:3] == ["north", "28", "10"] and overall.rows[2][:3] == ["all sites", "55", "19"]
    assert overall.rows[0][3] == text(north.accuracy) and overall.rows[0][4].endswith(", 1 of 3 classes")
    assert [row[3] for row in by_class.rows if row[:2] == ["disc", "north"]] == ["too few"]
    assert part.notes[0] == f"Warning: {made.mix.warning}."
    with undrawn():
        page = command.run(run.folder, ["images=1"]).page.read_text()
    assert "too few" in page and 'id="sites"' in page and "Warning: class mixes" in page

    table = by_site([run.folder], "sensitivity:disc")
    assert [line[-1] for line in table.grid()] == ["fedavg", "too few", "too few", "too few"]
    (record, *_) = json.loads(table.json())["values"]
    assert (record["value"], record["mark"], record["site"]) == (None, "too few", "north")
    first, *_ = csv.DictReader(table.csv().splitlines())
    assert (first["value"], first["mark"], first["patients"]) == ("", "too few", "10")


def test_a_table_of_sites_by_method_warns_of_class_mixes(
    hospitals: Path, run_inline: InlineRun, tmp_path: Path
) -> None:
    runs = [
        run_inline(method=method, seed=seed, dataset="folders", data_dir=str(hospitals), nodes=2, rounds=1, set=OWN)
        for method, seed in (("fedavg", 0), ("fedavg", 1), ("fedprox", 0))
    ]
    folders = [run.folder for run in runs]
    table = by_site(folders, "auroc")
    head, north, south, overall = table.grid()
    assert head == ["site", "images", "patients", "fedavg", "fedprox"]
    assert (north[:3], south[:3], overall[:3]) == (
        ["north", "28", "10"],
        ["south", "27", "9"],
        ["all sites", "55", "19"],
    )
    each = [figures(run).sites[0].auroc for run in runs]
    two = each[:2]
    mean = [sum(getattr(figure, name) for figure in two) / 2 for name in ("value", "low", "high")]
    assert north[3] == f"{mean[0]:.3f} ({mean[1]:.3f} to {mean[2]:.3f})" and north[4] == text(each[2])
    assert south[4].endswith(", 2 of 3 classes")
    assert [warning for warning in table.warnings if "class mixes of sites differ" in warning]
    printed = table.text()
    assert (
        "warning: class mixes of sites differ" in " ".join(printed.split())
        and max(map(len, printed.splitlines())) <= 100
    )
    assert table.markdown().splitlines()[2].startswith("| site | images | patients | fedavg | fedprox |")
    assert len(table.csv().splitlines()) == 1 + 3 * 3
    assert any("class mixes" in warning for warning in compare(folders, score="auc").numbers.warnings)
    assert not any("class mixes" in warning for warning in compare(folders, score="final").numbers.warnings)

    kept = keep(folders, tmp_path / "kept")
    again = by_site(kept, "auroc")
    assert [line[:3] for line in again.grid()] == [line[:3] for line in table.grid()]
    assert again.warnings == table.warnings
    for figure, words in (
        ("auc", "--sites is 'auc'; allowed are accuracy"), ("recall:disc", "--sites is 'recall:disc'"),
        ("auroc:", "--sites is 'auroc:'"), ("auroc:disk", "there is no class 'disk'"),
    ):  # fmt: skip
        assert words in refusal_of(ConfigError, by_site, folders, figure)
    assert "files that --keep wrote" in refusal_of(ConfigError, by_site, kept, "auroc:disc")


def test_runs_without_figures_of_sites_are_named(run_inline: InlineRun, tmp_path: Path) -> None:
    given = f"{QUICK} dataset.domains=[scan,sketch]"
    run = run_inline(rounds=1, nodes=2, set=given)
    results = run.folder / "results.json"
    content = json.loads(results.read_text())
    results.write_text(json.dumps(without(content, "site_figures")))
    assert "none of these runs has metrics of sites" in refusal_of(ConfigError, by_site, [run.folder], "auroc")
    assert section(reading.read(run.folder).sections.get("site_figures")).missing.startswith(
        "No site worked out metrics"
    )
    broken = content["site_figures"]
    broken["sites"][0]["auroc"]["value"] = 1.5
    results.write_text(json.dumps(content))
    assert "site_figures: sites.0.auroc.value" in refusal_of(ConfigError, reading.read, run.folder)
