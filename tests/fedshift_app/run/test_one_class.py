"""A model that predicts one class in every scored round is named."""

import numpy as np
import pytest
from support import InlineRun

from fedshift_app.config.resolving import resolve
from fedshift_app.features.figures import show
from fedshift_app.run import console
from fedshift_core.wire.counts import Counts


@pytest.mark.parametrize(
    ("by_domain", "name"),
    [
        ([(5, 5, 5, 0, 15, 0), (5, 5, 0, 0, 10, 0)], "dog"),
        ([(5, 5, 5, 0, 15, 0), (5, 5, 0, 10, 0, 0)], show.SEVERAL),
        ([(5, 5, 5, 1, 14, 0), (5, 5, 0, 0, 10, 0)], ""),
        ([(0, 15, 0, 0, 15, 0)], ""),  # it has images of that class alone
        ([(0, 15, 0, 0, 15, 0), (5, 5, 0, 0, 0, 10)], "cow"),
        ([], ""),
    ],
)
def test_of_a_round(by_domain: list[tuple[int, ...]], name: str) -> None:
    """Of three images and three predictions by class; only the sums matter here."""
    sums = [np.array([each[:3], (0, 0, 0), each[3:]]) for each in by_domain]
    counts = [Counts(each, np.zeros((3, 15)), None, None) for each in sums]
    assert show.one_class(counts, ("cat", "dog", "cow")) == name


def test_a_run_says_so_in_log_summary_and_metrics(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "one_class", lambda counts, classes: classes[0])
    run = run_inline("nodes=2 rounds=2 train.epochs=1 allocation.share=0.05")
    assert [line[show.ONE_CLASS] for line in run.rounds] == ["0", "0"]
    result = run.results[show.ONE_CLASS]
    assert (result["class"], result["rounds"]) == ("0", 2)
    for text in (console.table(run.results, resolve({})), (run.folder / "log.jsonl").read_text()):
        assert "one class '0'" in text
