"""Scores of `fedshift compare`, the rounds they are of, and the runs and files that are read and kept."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from compared import labels, notes, numbers
from refusals import refused
from support import Command

from fedshift.lab.tables.compare import board, compare
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results import loading
from fedshift.lab.tables.results.archive import keep
from fedshift_app.run.agreement import contradictions
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]


# --- scores and rounds ----------------------------------------------------------------------------------------


def test_scores(run: MakeRun) -> None:
    def two(scan: float) -> dict[str, float]:
        return {"scan": scan, "street": scan + 20}

    clients = {"lta": 90, "ata": two(10), "gata": 20, "gasa": 80, "cprr": 25, "by_domain": two(50)}
    one = run(
        "fedavg", 0, 1, 2, final=two(3), best_test={"round": 1, "domains": two(5)},
        best_validation={"round": 2, "domains": two(7)}, client_models=clients,
    )  # fmt: skip
    for score, value in (("last5", 1), ("final", 3), ("best", 5), ("validation", 7)):
        assert numbers([one], score=score).rows[0].values["scan"].mean == value
        rounds = {line["round"] for line in csv.DictReader(io.StringIO(compare([one], score=score).runs_csv()))}
        assert score in ("last5", "final") or rounds == {"1" if score == "best" else "2"}
    assert {name: value.mean for name, value in numbers([one], score="clients").rows[0].values.items()} == {
        "ATA scan": 10, "ATA street": 30, "LTA": 90, "GASA": 80, "CPRR": 25, "GATA": 20,
        "all on scan": 50, "all on street": 70, "all on AVG": 60,
    }  # fmt: skip
    plain = run("i2pfl")
    for score in ("validation", "clients"):
        with refused(ConfigError, f"--score {score}", plain.name):
            compare([plain, one], score=score)


def test_figures_are_scores(run: MakeRun, figures_of: Any, tmp_path: Path) -> None:
    runs = [run("fedavg", figures=figures_of(50, 30)), run("i2pfl", figures=figures_of(20, 70))]
    keep(runs, tmp_path / "kept")
    for score in ("balanced_accuracy", "macro_f1", "auc", "ece"):
        table = compare(runs, score=score)
        first, second = table.numbers.rows
        assert {line["round"] for line in csv.DictReader(io.StringIO(table.runs_csv()))} == {"5"}
        assert (first.by_seed[0]["street"], second.by_seed[0]["AVG"]) == (30, 45)
        # scan 50 and 20, street 30 and 70: of errors the lowest is the best and the highest the worst.
        error = score == "ece"
        assert ("scan" in first.best, "street" in second.best) == (not error, not error)
        assert (first.values["WORST"].mean, first.worst) == ((50, "scan") if error else (30, "street"))
        assert compare([tmp_path / "kept"], score=score).markdown() == table.markdown()
    assert "confusion" not in next((tmp_path / "kept").iterdir()).read_text()
    images = figures_of(1, 2, n=7)
    images["domains"]["scan"]["images"] = 5
    assert notes([*runs, run("fedbn", figures=images)], "test images") == [
        "test images of fedavg, i2pfl: scan 90, street 90", "test images of fedbn: scan 5 (7 scores), street 7",
    ]  # fmt: skip


def test_numbers_of_the_kept_round_and_of_the_last_do_not_stand_in_one_group(run: MakeRun, figures_of: Any) -> None:
    settings = "allocation.validation_fraction=0.2"
    chosen = {"best_validation": {"round": 3, "domains": {"scan": 70, "street": 70}}}

    def pair(**recorded: Any) -> list[Path]:
        more = {"figures": figures_of(50, 30), "recorded": recorded, **chosen}
        last = run("fedavg", given=settings, **more)
        return [last, run("fedprox", given=f"{settings} keep=best-validation", rounds=3, **more)]

    runs = pair()
    with refused(ConfigError, "round is last (fedavg-0-0) and best-validation (fedprox-0-1)"):
        compare(runs, score="ece")
    rows = numbers(runs, score="ece", allow_different=True).rows
    assert {(row.group, row.difference) for row in rows} == {("round=best-validation", None), ("round=last", None)}
    for score in ("last5", "final", "best", "validation"):
        assert numbers(runs, score=score).rows[1].difference is not None

    # All numbers of models that were scored again are of the round that was kept.
    again = pair(scored_again={"run": "another"})
    with refused(ConfigError, "round is last"):
        compare(again, score="final")
    assert numbers(again, score="validation").rows[1].difference is not None
    assert notes(again, "their last round or the round that they kept", score="final", allow_different=True)
    assert len(board.of_runs(loading.read(again).runs).tables) == 2


def test_a_title_says_which_rounds_are_averaged_where_they_are_not_the_last_ones(run: MakeRun, tmp_path: Path) -> None:
    """Runs of 100 rounds that were scored every ten: the mean is over the rounds 60 to 100."""

    def scored(method: str, rounds: int, *over: int) -> Path:
        settings = "evaluate.every=10 evaluate.last=1 rounds=100"
        folder = run(method, given=settings, rounds=rounds, averaged_rounds=len(over), averaged_over=over)
        accuracy = {"scan": 50.0, "street": 40.0}
        full = [{"round": n, "accuracy": None if n % 10 else accuracy} for n in range(1, rounds + 1)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, full)) + "\n")
        return folder

    def title(*runs: Path) -> str:
        return numbers(list(runs)).title.partition("(%), ")[2]

    fedavg = scored("fedavg", 100, *range(60, 101, 10))
    apart = "mean of the last five scored rounds (60 to 100)"
    assert title(fedavg) == title(*keep([fedavg], tmp_path / "kept")) == apart
    # An early end after round 27: 10 and 20 were scored. Its last scored round is not its last one.
    early = scored("fedprox", 27, 10, 20)
    assert title(early) == "mean of the last 2 scored rounds (10 and 20)"
    assert notes([fedavg, early], "averaged rounds") == ["averaged rounds: 10 and 20 (fedprox), 60 to 100 (fedavg)"]
    assert title(scored("fedsr", 17, 10)) == "last scored round (10)"


# --- what is read, and what differs of it ---------------------------------------------------------------------


def test_warnings_name_what_differs_and_equal_weights(run: MakeRun) -> None:
    runs = [
        run("fedavg", name="a", weights_sha256="same"),
        run("i2pfl", name="b", weights_sha256="same", recorded={"engine": "simulation", "git": "abc"}),
        run("fedprox", name="c", recorded={"versions": {"torch": "2"}}),
        *(run(method, 0, scan, weights_sha256="start") for method, scan in (("fedproto", 50), ("local", 51))),
    ]
    same, *differing = sorted(numbers(runs).warnings)
    assert same == "fedavg and i2pfl ended with the same weights (seed 0): does one do nothing?"
    assert [(line.split()[3], line.rpartition("and ")[2]) for line in differing] == [
        ("engine:", "simulation (b)"), ("git:", "abc (b)"), ("torch:", "2 (c)")
    ]  # fmt: skip


def test_folders_files_and_unfinished_runs(run: MakeRun, tmp_path: Path) -> None:
    fedavg, i2pfl = run("fedavg"), run("i2pfl")
    keep([i2pfl], tmp_path / "kept")
    (fedavg.parent / "sweep.json").write_text('{"points": [')  # no run: passed over
    for paths in ([fedavg.parent], [fedavg, i2pfl, fedavg.parent], [fedavg / "results.json", tmp_path / "kept"]):
        assert labels(paths) == ["fedavg", "i2pfl"]
    (i2pfl / "results.json").unlink()
    assert notes([fedavg.parent], f"left out, not finished: {i2pfl.name}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "fedavg.log").write_text("round 1/1")  # a pattern like sweep-*/*fedavg* catches logs too
    for path, named in (
        (i2pfl, "no finished run"), (tmp_path / "nowhere", "there is no file or folder"),
        (tmp_path, "name the folders in it"), (tmp_path / "empty", "empty"),
        (tmp_path / "fedavg.log", "fedavg.log is no run"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=named):
            compare([path])


def test_a_kept_file_that_is_cut_off_is_named_and_other_json_is_not(
    three_seeds: list[Path], fedshift: Command, tmp_path: Path
) -> None:
    kept = keep(three_seeds, tmp_path / "kept")
    (tmp_path / "kept" / "costs.json").write_text("[1]")
    kept[-1].write_text(kept[-1].read_text()[:200])
    code, out, error = fedshift("compare", tmp_path / "kept")
    assert code == 1 and error == "error: runs that cannot be read were left out: 1\n"
    assert f"left out, cannot be read: {kept[-1].name}: " in " ".join(out.split()) and "costs.json" not in out
    assert [row.seeds for row in numbers([tmp_path / "kept"]).rows] == [(0, 1, 2), (0, 1)]
    (tmp_path / "alone").mkdir()
    kept[-1].rename(tmp_path / "alone" / "run.json")
    with refused(ConfigError, "run.json"):
        compare([tmp_path / "alone"])


def test_what_makes_no_table_is_refused(run: MakeRun) -> None:
    one, swapped = run("fedavg"), run("fedavg")
    more = run("i2pfl", nodes=[{"domain": "scan", "class_counts": [1]}] * 5)
    (swapped / "results.json").write_bytes((run("fedavg", 4) / "results.json").read_bytes())
    for runs, options, named in (
        ([one], {"score": "worst"}, "'worst'"), ([one], {"scored": "globl"}, "'globl'"), ([swapped], {}, "seed 4"),
        ([run("fedprox")], {"scored": "personal"}, "--scored personal"), ([one, more], {}, "nodes is 2"),
    ):  # fmt: skip
        with refused(ConfigError, named):
            compare(runs, **options)


# --- kept files -----------------------------------------------------------------------------------------------


def test_kept_files_make_the_same_table_and_tell_no_local_path(three_seeds: list[Path], tmp_path: Path) -> None:
    """Of a data-dir, weights, plugins, and values that a method asked for or a search replaced, names are kept."""
    weights, plugin = f"{tmp_path}/net.safetensors", f"{tmp_path}/mine.py"
    whole = numbers(three_seeds).rows
    for folder in three_seeds:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["resolved"]["dataset"]["data_dir"] = str(tmp_path)
        config |= {"command": f"fedshift run data-dir={tmp_path}", "git": "abc"}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    files = keep([tmp_path / "runs"], tmp_path / "kept")
    assert [file.name for file in files] == sorted(f"{folder.name}.json" for folder in three_seeds)
    for row, expected in zip(numbers([tmp_path / "kept"]).rows, whole, strict=True):
        assert (row.label, row.values, row.difference) == (expected.label, expected.values, expected.difference)
    assert keep([tmp_path / "runs"], tmp_path / "kept") == files  # once more, over them
    again = keep([tmp_path / "kept"], tmp_path / "copied")
    assert [*map(Path.read_text, again)] == [*map(Path.read_text, files)]
    config["resolved"]["model"] |= {"weights": weights, "weights_sha256": "ab" * 32}
    config["resolved"] |= {"plugins": [plugin], "tuned": {"model.weights": weights}}
    config["asked"] = {"model.weights": [weights, ""]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (file,) = keep([folder], tmp_path / "kept")
    resolved = json.loads(file.read_text())["config"]["resolved"]
    assert (resolved["model"]["weights"], resolved["plugins"]) == ("net.safetensors", ["mine.py"])
    assert not any(str(tmp_path) in one.read_text() for one in (*files, file))


def test_what_would_be_lost_or_cannot_be_written_is_not_kept(
    three_seeds: list[Path], run: MakeRun, tmp_path: Path
) -> None:
    other = run("fedavg", name=three_seeds[0].name, under="other")
    with refused(ConfigError, other.name):
        keep([*three_seeds, other], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    (tmp_path / "file").write_text("")
    with refused(ConfigError, "--keep", "file"):
        keep(three_seeds, tmp_path / "file")


# --- statistics of BatchNorm --------------------------------------------------------------------------------


BN = "model.name=cnn_bn"


def scored(scan: float, street: float | None) -> dict[str, float | None]:
    return {"scan": scan, "street": street}


@pytest.mark.parametrize("way", ["retaken", "own", "batch"])
def test_rows_that_were_not_scored_so_are_left_out_by_name_with_the_remedy(run: MakeRun, way: str) -> None:
    of = {f"bn={way}": scored(80, 70)}
    runs = [run("fedavg", given=BN, others=of), run("fedprox", given=BN), run("fedavg", given=f"{BN} model.bn=local")]
    numbers = compare(runs, score=f"bn={way}", allow_different=True).numbers
    assert [[row.by_seed[0][domain] for domain in ("scan", "street")] for row in numbers.rows] == [[80, 70]]
    (note,) = [note for note in numbers.notes if note.startswith("left out")]
    assert f"not scored bn={way}: fedavg [model.bn=local], fedprox [model.bn=average] (" in note
    assert f"evaluate.bn=[averaged,{way}]" in note
    lacking = [runs[0], run("fedavg", 1, given=BN)]  # one seed of a row
    for paths in (lacking, runs[1:2]):
        with refused(ConfigError, f"{paths[-1].name} was not scored so", f"evaluate.bn=[averaged,{way}]"):
            compare(paths, score=f"bn={way}")


# --- other images -------------------------------------------------------------------------------------------


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
