"""Figures of sites in runs: next to unchanged numbers, of shared-out test sets, with patients, of real nodes, shown."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_sites
import pytest
from support import InlineRun, ListeningGrid, Run, undrawn

from fedshift.lab.pages.report import command
from fedshift.lab.tables.compare.sites import table as by_site
from fedshift.run.html.site_section import section, text
from fedshift_app import server_app
from fedshift_app.config.resolving import resolve
from fedshift_app.features.site_figures.show import Sites
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import setup, state_folder
from fedshift_app.node.requests import NodeRequest
from fedshift_clients.features import of

FILE = "site_figures.json"
QUICK = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
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
    """Two nodes a domain score a half each, in batches of five; one of them scores the whole for the figures."""
    quick = f"{QUICK} images.eval_batch=5 train.precision=float32 evaluate.site_figures="
    run, plain = (run_inline(f"nodes=4 rounds=2 {quick}{on}") for on in ("true", "false"))
    assert run.timeless == plain.timeless
    results = run.results
    assert without(results, "seconds", "site_figures") == without(plain.results, "seconds")
    assert not (plain.folder / FILE).exists()
    assert json.loads((run.folder / FILE).read_text()) == results["site_figures"]
    made, counted = figures(run), results["figures"]
    assert made.round == 2 and [site.site for site in made.sites] == ["scan", "sketch"]
    for site in made.sites:
        assert (site.images, site.patients, site.images_of_class) == (90, None, (9,) * 10)
        of_site = counted["domains"][site.site]
        assert site.accuracy.value == pytest.approx(results["final"][site.site] / 100)
        assert site.ece.value == pytest.approx(of_site["ece"] / 100)
        assert site.per_class["sensitivity"].value == pytest.approx([r / 100 for r in of_site["per_class"]["recall"]])
        assert site.auroc.value == pytest.approx(of_site["auc"] / 100, abs=of_site["auc_within"] / 100 + 1e-8)
    assert made.overall is not None and made.mix.warning == ""
    assert made.overall.accuracy.value == pytest.approx(counted["overall"]["accuracy"] / 100)


@pytest.mark.parametrize(
    ("server_round", "value", "given", "named"),
    [
        (3, True, "", ""),
        (1, True, "allocation.validation_fraction=0.2 keep=best-validation", ""),
        (2, True, "", "rounds=3"),
        (3, 1, "", "site_figures"),
        (3, True, "evaluate.site_figures=false", "site_figures"),
    ],
)
def test_a_node_refuses_to_work_out_figures_in_other_rounds(
    server_round: int, value: Any, given: str, named: str
) -> None:
    config = resolve({"rounds": 3, "set": given})
    where = node_data.Place("scan", 0, 1, config.dataset.source(), False, 1)
    content = {"server-round": server_round, "site-figures": value}
    features, request = of(config), NodeRequest.of("evaluate", content, config, where)
    why = features.refuse_key("evaluate", "site-figures")
    if "site-figures" in features.keys["evaluate"]:
        why = features.refuse(request)
    assert named in why and bool(named) == bool(why)


# --- patients, a policy, and what is shown ---------------------------------------------------------------


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
        noise = "shift.name=corruption shift.corruption=gaussian_noise shift.severity=1"
        given = f"{OWN} federation.min_nodes=2 {noise}"
        return run_inline(dataset="folders", data_dir=str(hospitals), nodes=2, rounds=1, set=given, grid=nodes)

    return run


def test_a_real_node_hides_figures_of_few_images(deployed: Deployed) -> None:
    """The figures of a class with four images do not leave the node; they are null with a mark wherever shown."""
    run = deployed(5)
    made = figures(run)
    north, south = made.sites
    assert (north.images, north.patients, south.patients) == (28, 10, 9)
    # Of one class with four images the total would tell: the next smallest one is hidden, too.
    assert north.images_of_class == (None, 12, None) and south.images_of_class == (9, 18, None)
    assert north.per_class["sensitivity"].mark == ("too few", "", "too few")
    assert "test-" not in json.dumps(run.results["site_figures"])  # no patient's name

    part = section(made)
    overall, by_class = part.tables
    assert overall.rows[0][:4] == ["north", "28", "10", text(north.accuracy)]
    assert overall.rows[2][:3] == ["all sites", "55", "19"]
    assert [row[3] for row in by_class.rows if row[:2] == ["disc", "north"]] == ["too few"]
    assert made.mix.warning in part.notes[0] and "of disc" in made.mix.warning
    with undrawn():
        page = command.run(run.folder, ["images=1"]).page.read_text()
    assert "too few" in page and 'id="sites"' in page

    table = by_site([run.folder], "sensitivity:disc")
    assert [line[-1] for line in table.grid()] == ["fedavg", "too few", "too few", "too few"]
    for record, empty in (
        (json.loads(table.json())["values"][0], None),
        (next(csv.DictReader([*table.csv().splitlines()])), ""),
    ):
        assert (record["value"], record["mark"], record["site"]) == (empty, "too few", "north")
