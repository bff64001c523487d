"""``fs.tune`` with real runs: two methods, two trials each, and the comparison of tuned and untuned."""

import csv
import json
from pathlib import Path

import pytest
from support import ROOT

import fedshift as fs

SMALL = {
    "rounds": 2, "nodes": 2, "engine": "inline", "jobs": 1, "report": False, "train": {"epochs": 1, "batch_size": 16},
    "allocation": {"share": 0.1}, "dataset": {"domains": [["scan", "sketch"]]},
}  # fmt: skip


@pytest.mark.long
def test_the_best_trial_by_validation_is_run_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    keys = SMALL | {"output_dir": tmp_path, "search": {"train.lr": [0.001, 0.1, "log"]}}
    tuned = fs.tune("handwritten", budget=2, method=["fedavg", "fedprox"], seed=0, progress=False, **keys)  # type: ignore[arg-type]
    rows = list(csv.DictReader((tuned.folder / "trials.csv").open()))
    assert [(row["method"], row["trial"], row["state"]) for row in rows] == [
        (method, trial, "complete") for method in ("fedavg", "fedprox") for trial in ("0", "1")
    ]
    assert set(tuned.methods) == {"fedavg", "fedprox"}
    compared = {(row.method, row.tuned): row for row in tuned.table.numbers.rows}
    for method, found in tuned.methods.items():
        values = {float(row["train.lr"]): float(row["validation"]) for row in rows if row["method"] == method}
        assert len(values) == 2 and all(0 <= value <= 100 for value in values.values())
        best = found["best"]
        assert best["validation"] == pytest.approx(max(values.values()))
        assert best["values"]["train.lr"] in [lr for lr, value in values.items() if value == max(values.values())]
        # The method as it is, and tuned where other values were better: each one run, with test images this time.
        used = {round(run.config["train.lr"], 12) for row in tuned.table.numbers.rows if row.method == method
                for run in row.runs}  # fmt: skip
        assert used == {0.01, round(best["values"]["train.lr"], 12)}
        assert (method, False) in compared
    for row in rows:  # no trial has scored a test image
        lines = (tuned.folder / row["run"] / "metrics.jsonl").read_text().splitlines()
        assert lines and all(set(json.loads(line)["accuracy"].values()) == {None} for line in lines)
    again = fs.tune("handwritten", budget=2, method=["fedavg", "fedprox"], seed=0, progress=False, **keys)  # type: ignore[arg-type]
    assert again.folder == tuned.folder and again.table.csv() == tuned.table.csv()
