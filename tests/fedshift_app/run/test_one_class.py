"""A model that predicts one class in every scored round is named, with what to try."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from support import InlineRun

from fedshift_app.config.resolving import resolve
from fedshift_app.run import console, one_class
from fedshift_core.wire.counts import Counts
from fedshift_strategies.federation.context import RoundResult

CLASSES = ("cat", "dog", "cow")


def counts(images: tuple[int, ...], predicted: tuple[int, ...]) -> Counts:
    """Return counts of three classes; only the sums by class matter here."""
    return Counts(np.array([images, (0, 0, 0), predicted]), np.zeros((3, 15)), None, None)


@pytest.mark.parametrize(
    ("by_domain", "name"),
    [
        ({"a": ((5, 5, 5), (0, 15, 0)), "b": ((5, 5, 0), (0, 10, 0))}, "dog"),
        ({"a": ((5, 5, 5), (0, 15, 0)), "b": ((5, 5, 0), (10, 0, 0))}, one_class.SEVERAL),
        ({"a": ((5, 5, 5), (1, 14, 0)), "b": ((5, 5, 0), (0, 10, 0))}, ""),
        ({"a": ((0, 15, 0), (0, 15, 0))}, ""),  # it has images of that class alone
        ({"a": ((0, 15, 0), (0, 15, 0)), "b": ((5, 5, 0), (0, 0, 10))}, "cow"),
        ({}, ""),
    ],
)
def test_of_a_round(by_domain: dict[str, tuple[tuple[int, ...], tuple[int, ...]]], name: str) -> None:
    passing = {"figures": {domain: counts(*result) for domain, result in by_domain.items()}}
    assert one_class.predicted(RoundResult(1, passing=passing), CLASSES) == name


def test_of_a_run_only_where_every_scored_round_did(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [{"round": 1, "accuracy": None}, {"round": 2, "accuracy": {"a": 50}, "evaluated_share": 0.1}]
    lines += [{"round": n, "accuracy": {"a": 33}, one_class.KEY: "dog"} for n in (3, 4)]

    def write(lines: list[dict[str, object]]) -> None:
        file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 9, "acc')

    write(lines)
    assert one_class.in_all_rounds(file) == {"class": "dog", "rounds": 2}
    write([*lines, {"round": 5, "accuracy": {"a": 33}, one_class.KEY: "cat"}])
    assert one_class.in_all_rounds(file) == {"class": one_class.SEVERAL, "rounds": 3}
    write([*lines, {"round": 5, "accuracy": {"a": 40}}])
    assert one_class.in_all_rounds(file) is None
    write(lines[:2])
    assert one_class.in_all_rounds(file) is None


def test_after_three_such_rounds_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    constant = {"a": counts((5, 5, 5), (0, 15, 0))}
    watch = one_class.Watch(resolve({}))
    for server_round in range(1, 6):
        watch.look(RoundResult(server_round, passing={"figures": constant}), "dog")
    (values,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "the one class 'dog' for all test images, in each of 3 scored rounds" in values and "train.lr" in values
    caplog.clear()
    learns = one_class.Watch(resolve({}))
    for server_round, name in enumerate(("dog", "", "dog", "dog", "dog"), start=1):
        learns.look(RoundResult(server_round, passing={"figures": constant}), name)
    assert not caplog.records


def test_a_run_says_so_in_log_summary_and_metrics(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_class, "predicted", lambda counts, classes: classes[0] if counts else "")
    run = run_inline(rounds=2, nodes=2, set="train.epochs=1 allocation.share=0.05")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line[one_class.KEY] for line in lines] == ["0", "0"]
    result = run.results[one_class.KEY]
    assert (result["class"], result["rounds"]) == ("0", 2) and "train.lr" in result["advice"]
    sentence = "the model predicts the one class '0' for all test images, in each of 2 scored rounds"
    assert sentence in console.table(run.results)
    assert sentence in (run.folder / "log.jsonl").read_text()
