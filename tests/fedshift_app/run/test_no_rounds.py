"""A run with ``rounds=0`` trains nothing: it scores the weights that it begins with."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from support import InlineRun, undrawn

from fedshift.export import saving
from fedshift.export.saving import Wanted
from fedshift.lab.grid.rescore import command as rescoring
from fedshift.lab.grid.tune import requested
from fedshift.lab.pages.report import build
from fedshift.lab.tables.compare import compare
from fedshift_app.config.resolving import resolve
from fedshift_app.run import console, resuming, status
from fedshift_core.errors import ConfigError

QUICK = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 train.precision=float32 train.lr=0.05"


def test_the_initial_weights_are_scored_and_nothing_is_trained(
    finished_run: InlineRun, run_inline: InlineRun, tmp_path: Path
) -> None:
    run, trained = (finished_run(f"method=fedavg rounds={rounds} {QUICK}") for rounds in (0, 1))
    (line,), results = run.rounds, run.results
    assert (line["round"], line["nodes"], line["losses"], line["bytes_up"]) == (0, [], {}, 0)
    assert (results["rounds"], results["averaged_rounds"], results["best_test"]["round"]) == (0, 1, 0)
    assert results["domains"] == results["final"] == line["accuracy"]
    assert results["figures"]["domains"].keys() == results["final"].keys()
    # A learning rate of (nearly) 0 leaves the weights where they were.
    still = run_inline(f"method=fedavg rounds=1 {QUICK} train.lr=1e-12")
    assert results["final"] == still.results["final"]
    weights = trained.folder / "checkpoint" / "weights-00001.safetensors"
    begun = run_inline(f"method=fedavg rounds=0 {QUICK} model.weights={weights}").results
    assert begun["final"] == trained.results["final"] != results["final"]
    assert begun["weights_sha256"] == trained.results["weights_sha256"]


def test_commands_that_look_at_a_run_take_it_and_name_no_method_and_no_best_round(finished_run: InlineRun) -> None:
    """Nothing was trained or chosen: `fedshift evaluate` scores other methods' models so, as FedAvg would."""
    run = finished_run(f"method=fedavg rounds=0 {QUICK}")
    text = console.table(run.results, resolve({"rounds": 0, "set": QUICK}))
    assert "initial model" in text
    assert all(word not in text for word in ("best round", "chosen", "fedavg", "final"))
    shown = status.read(run.folder)
    assert (shown.state, shown.round, shown.rounds, shown.full_rounds) == ("completed", 0, 0, 0)
    compared = compare([run.folder])
    assert f"{sum(run.results['final'].values()) / 2:.2f}" in compared.text(200)
    assert "<html" in compared.html(run.folder)
    with undrawn():
        page = build.make(run.folder, None, 10).page.read_text()
    assert "initial model" in page
    assert "round 0" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert json.loads((run.folder / build.NUMBERS_FILE).read_text())["round"] == 0


def test_what_needs_a_round_says_so(finished_run: InlineRun) -> None:
    folder = finished_run(f"method=fedavg rounds=0 {QUICK}").folder
    calls: list[Callable[[], Any]] = [
        lambda: resuming.resolve({"resume": str(folder), "rounds": 2}, hold=False),
        lambda: saving.save(Wanted(folder, "safetensors")),
        lambda: rescoring.rescore([str(folder), "adapt.name=tent"]),
        lambda: requested.read(["handwritten", "rounds=0", "budget=2"]),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"rounds(=| is )0"):
            call()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ("keep=best-validation allocation.validation_fraction=0.2", "keep=best-validation"),
        ("evaluate.test=false allocation.validation_fraction=0.2", "rounds=0"),
        ("keep_rounds=[1]", "keep_rounds"),
    ],
)
def test_settings_that_need_a_round_are_refused(keys: str, named: str) -> None:
    with refused(ConfigError, named):
        resolve({"rounds": 0, "set": keys})
