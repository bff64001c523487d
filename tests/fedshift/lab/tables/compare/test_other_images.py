"""Runs of other images in one table: no difference, no p, no best; means over them are marked; and results that lie."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run

from fedshift.lab.tables.compare import claims, compare, keep
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results import differences as contents
from fedshift_app.config.resolving import resolve
from fedshift_app.run.agreement import contradictions
from fedshift_core.errors import ConfigError

Make = Callable[..., Path]
Images = Mapping[str, Mapping[str, str]]


def images(version: str, splits: tuple[str, ...] = ("train", "test")) -> dict[str, dict[str, str]]:
    """Return hashes: of scan those of a version, of street always the same."""
    return {"scan": {split: f"{version} {split}" for split in splits}, "street": {"train": "same", "test": "same"}}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that writes the folder of a finished run of two domains with these hashes."""

    def folder(
        method: str, seed: int, avg: float, known: Images | None = None, *, given: str = "", place: str = "runs",
        **results: Any,
    ) -> Path:  # fmt: skip
        settings = f"dataset.domains=[scan,street] {given}"
        config = resolve({"experiment": "handwritten", "method": method, "seed": seed, "set": settings})
        path = tmp_path / place / f"{method}-{seed}-{len(list(tmp_path.glob(f'{place}/*')))}"
        domains = {"scan": avg + 5, "street": avg - 5}
        recorded = {} if known is None else {"images": known}
        return write_run(path, config, domains, recorded, **{"best_test": {"round": 1, "domains": domains}, **results})

    return folder


def row(numbers: Numbers, label: str) -> Any:
    return next(one for one in numbers.rows if one.label == label)


@pytest.mark.usefixtures("undrawn_figures")
def test_a_method_on_replaced_images_has_a_reason_in_place_of_the_difference(make: Make) -> None:
    runs = [make("fedavg", 0, 50, images("a")), make("fedprox", 0, 60, images("b")), make("i2pfl", 0, 55, images("a"))]
    table = compare(runs)
    refused, fine = row(table.numbers, "fedprox"), row(table.numbers, "i2pfl")
    assert refused.difference is None and fine.difference.difference.mean == 5
    reason = f"the images of scan train, scan test are not the same in {runs[1].name} as in {runs[0].name}"
    assert refused.refused == reason and fine.refused == ""
    assert any(one.startswith("the images of scan train, scan test are not") for one in table.numbers.warnings)
    assert all(not one.best for one in table.numbers.rows)
    lines = table.text().splitlines()
    assert any(line.startswith("fedprox") and line.rstrip().endswith("other images") for line in lines)
    assert f"- no difference to fedavg and no p, other images: fedprox: {reason}" in table.markdown().replace("\\", "")
    assert "other images" in table.html() and '"no difference": "the images of scan train' in table.json()
    cells = {one["row"]: one for one in csv.DictReader(io.StringIO(table.csv()))}
    assert cells["fedprox"]["no difference"] == reason and cells["fedprox"]["difference"] == ""
    assert cells["i2pfl"]["no difference"] == "" and float(cells["i2pfl"]["difference"]) == 5


def test_seeds_of_three_versions_are_not_pooled_in_silence(make: Make) -> None:
    runs = [make(method, seed, 50 + seed, images(str(seed))) for seed in range(3) for method in ("fedavg", "fedprox")]
    table = compare(runs)
    for one in table.numbers.rows:
        assert one.mixed.startswith("the images of scan train, scan test are not the same in")
        assert one.difference is None
    assert row(table.numbers, "fedprox").refused and "3†" in table.text()
    assert sum(note.startswith("† ") for note in table.numbers.notes) == 2
    assert all("mean over other images" in one for one in json.loads(table.json())["rows"])


def test_the_same_images_over_seeds_and_parts_of_them_agree(make: Make) -> None:
    every = images("a")
    runs = [make("fedavg", seed, 50 + seed, every) for seed in range(3)]
    runs += [make("fedprox", seed, 51 + 2 * seed, images("a", ("test",))) for seed in range(3)]
    table = compare(runs)
    assert table.numbers.warnings == () and row(table.numbers, "fedprox").difference.p is not None
    assert "†" not in table.text()


def test_only_the_seeds_of_a_difference_count(make: Make) -> None:
    runs = [make("fedavg", 0, 50, images("a")), make("fedprox", 0, 52, images("a"))]
    runs.append(make("fedprox", 1, 60, images("b")))
    table = compare(runs)
    fedprox = row(table.numbers, "fedprox")
    assert fedprox.difference.difference.mean == 2 and fedprox.mixed and table.numbers.warnings


def test_runs_that_know_no_hash_stay_comparable(make: Make) -> None:
    runs = [make("fedavg", 0, 50), make("fedprox", 0, 52, images("b")), make("i2pfl", 0, 55, {})]
    numbers = compare(runs).numbers
    assert numbers.warnings == () and row(numbers, "fedprox").difference.difference.mean == 2


def test_groups_whose_images_are_read_otherwise_are_not_held_against_each_other(make: Make) -> None:
    runs = [
        make("fedavg", 0, 50, images("drawn so")),
        make("fedavg", 0, 50, images("drawn otherwise"), given="dataset.seed=1"),
    ]
    assert compare(runs, allow_different=True).numbers.warnings == ()


def test_nodes_that_hold_other_numbers_of_images_have_no_difference_either(make: Make) -> None:
    nodes = [{"domain": "scan", "class_counts": [9, 9]}, {"domain": "street", "class_counts": [1, 2]}]
    numbers = compare([make("fedavg", 0, 50), make("fedprox", 0, 52, nodes=nodes)]).numbers
    assert row(numbers, "fedprox").refused == "seed 0: the nodes hold other images in fedprox-0-1, fedavg-0-0"


def test_kept_files_keep_the_hashes(make: Make, tmp_path: Path) -> None:
    runs = [make("fedavg", 0, 50, images("a")), make("fedprox", 0, 60, images("b"))]
    files = keep(runs, tmp_path / "kept")
    assert json.loads(files[0].read_text())["config"]["images"] == images("a")
    assert row(compare(files).numbers, "fedprox").refused
    content = json.loads(files[0].read_text())
    del content["config"]["images"]  # as an earlier version kept it
    files[0].write_text(json.dumps(content))
    assert row(compare(files).numbers, "fedprox").difference is not None


def test_a_repetition_on_other_images_is_none(make: Make) -> None:
    runs = [make("fedavg", 0, 50, images(version), weights_sha256="w") for version in "ab"]
    with pytest.raises(ConfigError, match="fedavg: seed 0 comes twice: the images of scan train, scan test are not"):
        compare(runs)


def test_unseen_domains_of_other_images_are_marked_and_have_no_difference(make: Make) -> None:
    runs = [
        make(method, 0, 50, images("a" if out == "scan" else "b"), given=f"allocation.held_out=[{out}] {COUNTS}")
        for method in ("fedavg", "fedprox") for out in ("scan", "street")
    ]  # fmt: skip
    numbers = compare(runs, held_out=True).numbers
    assert [bool(one.mixed) for one in numbers.rows] == [True, True] and row(numbers, "fedprox").refused
    assert numbers.warnings[0].startswith("the images of scan train")


COUNTS = "allocation.counts=any"


@pytest.mark.parametrize("other", [True, False])
def test_claims_judge_no_gain_on_other_images(other: bool, tmp_path: Path) -> None:
    domains = ("photo", "art_painting", "cartoon", "sketch")
    for method, avg in (("fedavg", 40.0), ("f2dc", 60.0)):
        for seed in range(3):
            config = resolve({"experiment": "f2dc-pacs", "method": method, "seed": seed})
            scores = dict.fromkeys(domains, avg + seed * (2 if method == "f2dc" else 1))
            version = "new" if other and method == "f2dc" else "old"
            summary = {
                "method": method, "dataset": "pacs", "seed": seed, "evaluated": "global model", "averaged_rounds": 5,
                "domains": scores, "final": scores, "best_test": {"round": 3, "domains": scores},
                "weights_sha256": f"{method}{seed}",
                "nodes": [{"domain": one, "class_counts": [1]} for one in (*domains, *domains, "cartoon", "sketch")],
                "config": {
                    "resolved": config.model_dump(mode="json"), "engine": "inline",
                    "images": {"photo": {"train": version}},
                },
            }  # fmt: skip
            (tmp_path / f"{method}-{seed}.json").write_text(json.dumps(summary))
    checked = claims.claims([tmp_path])
    judged = {claim.why for claim in checked.claims if claim.table == "f2dc.table1b"}
    assert (judged == {contents.OTHER_IMAGES}) is other
    assert bool(checked.warnings) is other and ("the images of photo train" in checked.text()) is other


def lines(*scans: float) -> list[dict[str, Any]]:
    return [{"round": n, "accuracy": {"scan": scan, "street": 10.0}} for n, scan in enumerate(scans, 1)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"rounds": 9}, "9 rounds and 3"),
        ({"domains": {"scan": 99.0, "street": 10.0}}, "domains scan is 99.00 and 20.00"),
        ({"domains": {"scan": 20.0}}, "domains street is missing and 10.00"),
        ({"final": {"scan": 31.0, "street": 10.0}}, "final scan is 31.00 and 30.00"),
        ({"best_test": {"round": 2, "domains": {"scan": 30.0, "street": 10.0}}}, "best_test scan is 30.00 and 20.00"),
        ({"best_validation": {"round": 7, "domains": {"scan": 1.0}}}, "best_validation is in round 7 of 3"),
    ],
)
def test_results_that_contradict_the_rounds_are_said(changed: dict[str, Any], said: str) -> None:
    means, last = {"scan": 20.0, "street": 10.0}, {"scan": 30.0, "street": 10.0}
    results = {"rounds": 3, "domains": means, "final": last, "best_test": {"round": 3, "domains": last}} | changed
    result = contradictions(results, lines(10.0, 20.0, 30.0))
    assert result == (f"results.json contradicts metrics.jsonl: {said}" if said else "")
    assert contradictions(results, []) == ""  # nothing to hold them against


def test_rounds_that_were_scored_on_a_part_do_not_count() -> None:
    rounds = [*lines(10.0, 20.0), {"round": 3, "accuracy": {"scan": 90.0}, "evaluated_share": 0.5}]
    results = {"rounds": 3, "domains": {"scan": 15.0, "street": 10.0}, "final": {"scan": 20.0, "street": 10.0}}
    assert contradictions(results, rounds) == ""


@pytest.mark.usefixtures("undrawn_figures")
def test_a_contradiction_stands_in_each_form_and_in_the_kept_file(make: Make, tmp_path: Path) -> None:
    run = make("fedavg", 0, 50)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines(1.0, 2.0)))
    said = f"{run.name}: results.json contradicts metrics.jsonl: domains scan is 55.00 and 1.50"
    for paths in ([run], keep([run], tmp_path / "kept")):
        table = compare(paths)
        assert any(one.startswith(said) for one in table.numbers.warnings)
        flat = " ".join(table.text().split()), table.html(), table.csv(), table.json()
        assert all("results.json contradicts metrics.jsonl" in one for one in flat)
