"""``--sites``: which sites, rounds and seeds are behind a number."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from support import Command

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.sites import ALL
from fedshift.lab.tables.compare.sites import table as by_site
from fedshift.lab.tables.results.archive import keep
from fedshift_core.errors import ConfigError

Made = Callable[..., Path]


def figure(value: float | None) -> dict[str, Any]:
    if value is None:
        return {"value": None, "low": None, "high": None, "mark": "too few"}
    return {"value": value, "low": value - 0.125, "high": value + 0.125}


@pytest.fixture
def made(run: Callable[..., Path]) -> Made:
    """Return a function that writes a finished run with these values of each site, and of all sites 0.75."""

    def make(sites: Mapping[str, float | None], *, seed: int = 0, given: str = "", method: str = "fedavg") -> Path:
        names = ("accuracy", "balanced_accuracy", "auroc", "auprc", "brier", "ece")
        listed = [
            {"site": name, "domain": name, "images": 10} | dict.fromkeys(names, figure(value))
            for name, value in sites.items()
        ]
        overall = {"site": ALL, "images": 20} | dict.fromkeys(names, figure(0.75) | {"how": "pooled"})
        section = {"round": 5, "classes": ["a", "b"], "sites": listed, "overall": overall}
        of = {"value": [0.5, 0.75], "low": [0.25, 0.25], "high": [1.0, 1.0], "mark": ["", ""]}
        listed[0] |= {"images_of_class": [4, 6], "per_class": {"auroc": of, "sensitivity": of}}
        overall |= {"images_of_class": [4, 6], "per_class": {"sensitivity": of}}
        return run(method, seed, given=f"allocation.validation_fraction=0.2 {given}", site_figures=section)

    return make


def test_unseen_sites_are_those_of_domains_that_no_node_held(made: Made) -> None:
    out = {"scan": "street", "street": "scan"}  # and the domain that is left
    runs = [
        made(
            {name: 0.25 if name == held_out else 0.875 for name in out}, seed=seed,
            given=f"'allocation.held_out=[{held_out}]' 'allocation.counts={{{left}: 2}}'",
        )
        for seed in range(2) for held_out, left in out.items()
    ]  # fmt: skip
    table = by_site(runs, "auroc", held_out=True)
    assert [line[0::3] for line in table.grid()] == [
        ["site", "fedavg"], ["scan", "0.250 (0.125 to 0.375)"], ["street", "0.250 (0.125 to 0.375)"]
    ]  # fmt: skip
    assert list(zip(table.values["site"], table.values["seed"], strict=True)) == [
        ("scan", 0), ("street", 0), ("scan", 1), ("street", 1)
    ]  # fmt: skip
    assert ALL not in table.text()
    seen = by_site(runs, "auroc", allow_different=True)
    assert len(seen.values) == 4 * 3 and ALL in {*seen.values["site"]}
    held = "'allocation.held_out=[scan]' 'allocation.counts={street: 2}'"
    with refused(ConfigError, "--sites auroc --unseen"):
        by_site([made({"street": 0.5}, seed=2, given=held)], "auroc", held_out=True)


def test_a_metric_of_a_class_is_that_of_each_site_and_a_run_without_any_is_named(made: Made, run: Made) -> None:
    folder, without = made({"scan": 0.25, "street": 0.5}), run("fedprox")
    lines = {}
    for figure in ("auroc:b", "sensitivity:b"):
        of = csv.DictReader(io.StringIO(by_site([folder], figure).csv()))
        lines[figure] = [(line["site"], line["value"], line["low"], line["images"]) for line in of]
    scan, unknown = ("scan", "0.75", "0.25", "6"), ("street", "", "", "")
    assert lines == {"auroc:b": [scan, unknown], "sensitivity:b": [scan, unknown, (ALL, *scan[1:])]}
    both = by_site([folder, without], "ece", allow_different=True)
    assert f"left out, without metrics of sites: {without.name}" in both.notes
    for runs, figure, named in (
        ([folder], "auroc:c", "there is no class 'c'"), ([without], "auroc", "--sites auroc: none of these runs"),
        (keep([folder], folder.parent / "kept"), "auroc:b", "no metrics of classes"),
    ):  # fmt: skip
        with refused(ConfigError, named):
            by_site(runs, figure)


def test_the_command_prints_them_and_writes_a_board(made: Made, here: Path, fedshift: Command) -> None:
    folder = made({"scan": 0.25, "street": None})
    text, marked, numbers = (
        fedshift("compare", folder, "--sites", "auroc", *form) for form in ([], ["--markdown"], ["--json"])
    )
    assert "0.250 (0.125 to 0.375)" in text.out and "| scan |" in marked.out and json.loads(numbers.out)
    assert (text.code, marked.code, numbers.code) == (0, 0, 0)
    assert fedshift("compare", folder, "--board", "board.html").code == 0 and (here / "board.html").is_file()
    result = compare([folder])
    assert str(result) == result.text() and Path(str(result.to_board(here / "again.html"))).is_file()
    for wrong in ("nothing", "recall:c"):
        assert fedshift("compare", folder, "--sites", wrong).err.startswith("error: --sites")
