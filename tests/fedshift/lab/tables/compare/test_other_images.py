"""Runs of other images in one table: no difference, no p, no best; means over them are marked; and results that lie."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.archive import keep
from fedshift_app.run.agreement import contradictions
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]


def images(version: str, *splits: str) -> dict[str, Any]:
    """Return what a run records of images: of scan those of a version, of street always the same."""
    scan = {split: f"{version} {split}" for split in splits or ("train", "test")}
    return {"images": {"scan": scan, "street": {"train": "same", "test": "same"}}}


def rows_of(runs: list[Path], **options: Any) -> tuple[Numbers, dict[str, Any]]:
    """Return a comparison's numbers, and its rows by label."""
    numbers = compare(runs, **options).numbers
    return numbers, {row.label: row for row in numbers.rows}


def test_a_method_on_replaced_images_has_a_reason_in_place_of_the_difference(run: MakeRun) -> None:
    runs = [
        run(method, 0, scan, recorded=images(version))
        for method, scan, version in (("fedavg", 50, "a"), ("fedprox", 60, "b"), ("i2pfl", 60, "a"))
    ]
    table = compare(runs)
    reason = f"the images of scan train, scan test are not the same in {runs[1].name} as in {runs[0].name}"
    of = {row.label: (row.difference and row.difference.difference.mean, row.refused) for row in table.numbers.rows}
    assert (of["fedprox"], of["i2pfl"]) == ((None, reason), (5, ""))
    assert len(table.numbers.warnings) == 1 and not any(row.best for row in table.numbers.rows)
    cells = {one["row"]: (one["difference"], one["no difference"]) for one in csv.DictReader(io.StringIO(table.csv()))}
    assert (cells["fedprox"], cells["i2pfl"]) == (("", reason), ("5.0", ""))
    files = keep(runs, runs[0].parent / "kept")
    assert rows_of(files)[1]["fedprox"].refused
    content = json.loads(files[0].read_text())
    del content["config"]["images"]  # as an earlier version kept it
    files[0].write_text(json.dumps(content))
    assert rows_of(files)[1]["fedprox"].difference is not None
    with refused(ConfigError, "fedavg: seed 0 comes twice", "scan train, scan test"):  # a repetition, it is none
        compare([run("fedavg", recorded=images(version), weights_sha256="w") for version in "ab"])


def test_seeds_of_three_versions_are_not_pooled_in_silence(run: MakeRun) -> None:
    runs = [run(method, seed, recorded=images(str(seed))) for seed in range(3) for method in ("fedavg", "fedprox")]
    table = compare(runs)
    assert [bool(row.mixed) and row.difference for row in table.numbers.rows] == [None, None]
    assert table.numbers.rows[1].refused and "3†" in table.text() and table.json().count("mean over other images") == 2


def test_nodes_that_hold_other_numbers_of_images_have_no_difference_either(run: MakeRun) -> None:
    nodes = [{"domain": "scan", "class_counts": [9, 9]}, {"domain": "street", "class_counts": [1, 2]}]
    numbers, rows = rows_of([run("fedavg"), run("fedprox", nodes=nodes)])
    assert rows["fedprox"].refused == "seed 0: the nodes hold other images in fedprox-0-1, fedavg-0-0"
    assert len(numbers.warnings) == 1


def lines(*scans: float) -> list[dict[str, Any]]:
    return [{"round": n, "accuracy": {"scan": scan, "street": 10.0}} for n, scan in enumerate(scans, 1)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"rounds": 9}, "9 rounds and 3"),
        ({"domains": {"scan": 99.0, "street": 10.0}}, "domains scan is 99.00 and 20.00"),
        ({"best_test": {"round": 2, "domains": {"scan": 30.0, "street": 10.0}}}, "best_test scan is 30.00 and 20.00"),
        ({"best_validation": {"round": 7, "domains": {"scan": 1.0}}}, "best_validation is in round 7 of 3"),
    ],
)
def test_results_that_contradict_the_rounds_are_said(changed: dict[str, Any], said: str) -> None:
    """A round that was scored on a part does not count."""
    means, last = {"scan": 20.0, "street": 10.0}, {"scan": 30.0, "street": 10.0}
    results = {"rounds": 3, "domains": means, "final": last, "best_test": {"round": 3, "domains": last}} | changed
    result = contradictions(results, lines(10.0, 20.0, 30.0))
    assert result == (f"results.json contradicts metrics.jsonl: {said}" if said else "")
    assert contradictions(results, []) == ""  # nothing to hold them against
    part = [*lines(10.0, 20.0), {"round": 3, "accuracy": {"scan": 90.0}, "evaluated_share": 0.5}]
    of_two = {"rounds": 3, "domains": {"scan": 15.0, "street": 10.0}, "final": {"scan": 20.0, "street": 10.0}}
    assert contradictions(of_two, part) == ""
