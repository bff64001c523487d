"""Figures by class: counts of the node's loop against scikit-learn and slow definitions, in runs, and what is kept."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from support import InlineRun

from fedshift_app.config.resolving import resolve
from fedshift_app.features.figures import show
from fedshift_app.features.figures import show as figures
from fedshift_app.features.figures.node import Counting, count
from fedshift_app.run import console
from fedshift_core.wire.counts import MOST_CLASSES, Counts

FILE = "figures.json"
QUICK = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"


def drawn(classes: int, n: int = 600, scale: float = 2.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits that lean towards the class (N, C), and classes (N,) of unequal number."""
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.4, n) - 1, classes - 1)
    logits = rng.normal(size=(n, classes)) * scale
    logits[np.arange(n), y] += scale
    return torch.from_numpy(logits).float(), torch.from_numpy(y)


def counted(logits: torch.Tensor, y: torch.Tensor) -> Counts:
    return count(logits, logits.argmax(dim=1), y, logits.shape[1])


@pytest.mark.parametrize(("classes", "scale"), [(2, 2.0), (5, 0.01), (5, 30.0), (MOST_CLASSES + 5, 2.0)])
def test_figures_are_those_of_scikit_learn(classes: int, scale: float) -> None:
    logits, y = drawn(classes, scale=scale)
    result, predicted = figures.of(counted(logits, y)), logits.argmax(dim=1).numpy()
    present = sorted(set(y.tolist()))
    recall = metrics.recall_score(y, predicted, labels=present, average=None, zero_division=0)
    wanted = {
        "n": 600,
        "accuracy": 100 * metrics.accuracy_score(y, predicted),
        "macro_f1": 100 * metrics.f1_score(y, predicted, labels=present, average="macro", zero_division=0),
        "balanced_accuracy": 100 * recall.mean(),
    }
    assert {name: result[name] for name in wanted} == pytest.approx(wanted)
    by_class = {name: np.array(result["per_class"][name], float) for name in ("recall", "precision")}
    assert by_class["recall"][present] == pytest.approx(100 * recall)
    precision = metrics.precision_score(y, predicted, labels=range(classes), average=None, zero_division=np.nan)
    assert by_class["precision"] == pytest.approx(100 * precision, nan_ok=True)
    if classes > MOST_CLASSES:
        assert result["confusion"] is None and result["auc"] is None
        return
    assert result["confusion"] == metrics.confusion_matrix(y, predicted, labels=range(classes)).tolist()


@pytest.mark.parametrize(("classes", "scale", "most"), [(2, 5.0, 0.01), (10, 0.01, 0.1), (10, 1.0, 0.01)])
def test_auc_is_the_exact_one_within_the_bound_that_is_reported(classes: int, scale: float, most: float) -> None:
    """Scores that lie together, as before training, are bounded worse."""
    logits, y = drawn(classes, 3000, scale)
    log_p = logits.double().log_softmax(dim=1)
    odds = (log_p - (-log_p.expm1()).log()).numpy()
    exact = [metrics.roc_auc_score(y == k, odds[:, k]) for k in range(classes)]
    scores = counted(logits, y).scores
    assert scores is not None
    outcome, within = figures.aucs(scores)
    assert (np.abs(outcome - exact) <= within + 1e-12).all()
    assert within.max() < most
    result = figures.of(counted(logits, y))
    assert abs(result["auc"] - 100 * np.mean(exact)) <= result["auc_within"] + 1e-9


def test_what_is_not_defined_is_none_and_left_out_of_means() -> None:
    logits, _ = drawn(3, 40)
    two, one = (figures.of(counted(logits, torch.arange(40) % classes)) for classes in (2, 1))
    assert two["per_class"]["recall"][2] is one["auc"] is None
    assert two["balanced_accuracy"] == pytest.approx(np.mean(two["per_class"]["recall"][:2]))
    none = figures.of(Counting(3).total())
    assert none["n"] == 0 and all(none[key] is None for key in figures.SHORT)
    infinite = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [2.0, -math.inf]])
    result = counted(infinite, torch.zeros(3, dtype=torch.int64))
    assert result.images == 3 and result.calibration[0].sum() == 3  # counted somewhere


# --- in runs -------------------------------------------------------------------------------------------


def without(content: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in keys}


def test_a_run_with_figures_has_the_numbers_of_one_without(run_inline: InlineRun) -> None:
    given = f"{QUICK} evaluate.figures="
    run, plain = (run_inline(f"method=local nodes=4 rounds=1 {given}{on}") for on in ("true", "false"))
    assert run.timeless == plain.timeless
    assert without(run.results, "seconds", "figures") == without(plain.results, "seconds")
    assert not (plain.folder / FILE).exists() and len(run.results["site_figures"]["sites"]) == 4  # a model each
    result, final = run.results["figures"], run.results["final"]
    assert result == json.loads((run.folder / FILE).read_text()) and result["round"] == 1
    for domain, accuracy in final.items():
        one = result["domains"][domain]  # each of its two nodes scores the whole test set with its own model
        assert (one["n"], one["images"], one["per_class"]["n"]) == (180, 90, [18] * 10)
        assert one["accuracy"] == pytest.approx(accuracy) == one["balanced_accuracy"]
    overall = result["overall"]
    assert (overall["n"], overall["images"], overall["accuracy"]) == (
        360,
        180,
        pytest.approx(np.mean([*final.values()])),
    )


# --- what is kept --------------------------------------------------------------------------------------


# --- one class ----------------------------------------------------------------------------------------------


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
    run = run_inline(f"nodes=2 rounds=2 {QUICK}")
    assert [line[show.ONE_CLASS] for line in run.rounds] == ["0", "0"]
    result = run.results[show.ONE_CLASS]
    assert (result["class"], result["rounds"]) == ("0", 2)
    for text in (console.table(run.results, resolve({})), (run.folder / "log.jsonl").read_text()):
        assert "one class '0'" in text
