"""Runs and comparisons as data frames."""

import pytest
from refusals import refused
from support import InlineRun

import fedshift as fs

SHORT = "train.epochs=1 allocation.share=0.06"


def test_rounds_are_rows_by_domain(finished_run: InlineRun) -> None:
    run = fs.load(finished_run(f"rounds=2 {SHORT}").folder)
    frame = run.metrics
    assert list(frame.columns[:4]) == ["round", "domain", "accuracy", "test_loss"]
    assert len(frame) == 2 * 4
    last = frame[frame["round"] == 2].set_index("domain")["accuracy"]
    assert last.to_dict() == dict(run.results.final)
    assert frame["loss"].tolist() == [line["losses"]["loss"] for line in run.rounds for _ in range(4)]


def test_a_comparison_is_rows_by_method_or_by_seed(finished_run: InlineRun) -> None:
    runs = [fs.load(finished_run(f"method={name} rounds=2 {SHORT}").folder) for name in ("fedavg", "fedprox")]
    table = fs.compare(runs)
    frame = table.frame().set_index("method")
    assert frame.loc["fedprox", "AVG"] == pytest.approx(runs[1].results.avg)
    assert frame.loc["fedprox", "difference"] == pytest.approx(runs[1].results.avg - runs[0].results.avg)
    seeds = table.frame("seed")
    assert len(seeds) == 2 * len(table.numbers.columns)
    values = seeds[seeds["method"] == "fedavg"].set_index("column")["value"]
    assert values["scan"] == runs[0].results.domains["scan"]
    with refused(fs.ConfigError, "frame", "'domain'", "method, seed"):
        table.frame("domain")
