"""The run folder: its files, the last checkpoints, and a summary that can be checked by hand."""

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support import json_lines, node

from fedshift_app.config.resolving import resolve
from fedshift_app.run.files import CONFIG_FILE, METRICS_FILE, RESULTS_FILE
from fedshift_app.run.folder import RunFolder, weights_hash
from fedshift_app.run.summary import finite, summary
from fedshift_app.run.versions import commit
from fedshift_core.arrays import Arrays
from fedshift_core.env import COMMIT
from fedshift_core.shown import History
from fedshift_strategies.federation.context import RoundResult

CONFIG = resolve({"seed": 3, "rounds": 4})


def history(*rounds: Mapping[str, float | None]) -> list[RoundResult]:
    return [RoundResult(i, dict(accuracy), bytes_up=10 * i, bytes_down=i) for i, accuracy in enumerate(rounds, start=1)]


def weights(value: float = 0.0) -> Arrays:
    return {
        "layer.weight": np.full((2, 3), value, np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
    }


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def opened(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, CONFIG, engine="inline", personal=False, about={"command": "fedshift run"})


# --- summary ----------------------------------------------------------------------------------------------


def summarised(rounds: list[RoundResult]) -> dict[str, Any]:
    return summary(History(CONFIG, rounds))


accuracies = st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=9)


@given(rounds=accuracies)
def test_summary_agrees_with_numpy(rounds: list[list[float]]) -> None:
    result = summarised(history(*[dict(zip("abc", values, strict=True)) for values in rounds]))
    table, n = np.array(rounds)[-5:], len(rounds)  # T x 3
    means, best = table.mean(0), result["best_test"]
    assert result["domains"] == pytest.approx(dict(zip("abc", means, strict=True)))
    assert (result["avg"], result["std"]) == pytest.approx((means.mean(), means.std(ddof=1)), abs=1e-9)
    assert (result["worst"], result["domains"][result["worst_domain"]]) == pytest.approx((means.min(), means.min()))
    assert list(result["final"].values()) == rounds[-1]
    every = np.array(rounds).mean(1)
    assert (best["avg"], best["avg"]) == pytest.approx((every.max(), every[best["round"] - 1]))
    assert (result["rounds"], result["averaged_rounds"], result["missing"]) == (n, len(table), [])
    assert (result["bytes_up"], result["bytes_down"]) == (5 * n * (n + 1), n * (n + 1) / 2)


def test_missing_domain_is_not_zero() -> None:
    result = summarised(history({"a": 80.0, "b": None, "c": 60.0}, {"a": 90.0, "b": None, "c": None}))
    assert result["domains"] == {"a": 85.0, "b": None, "c": 60.0}  # c: the one round in which it was scored
    assert (result["missing"], result["unscored"]) == (["b"], {"b": [1, 2], "c": [2]})
    assert result["avg"] is result["std"] is result["worst_domain"] is result["worst"] is None
    assert result["best_test"]["avg"] is None
    assert summarised(history({"a": 40.0}, {"a": 60.0}))["std"] == 0  # one domain has no spread
    assert summarised(history({"a": None}, {"a": 0.0}))["best_test"]["round"] == 2  # 0 % is better than no answer


@pytest.mark.parametrize(
    ("scored", "over"),
    [
        ((2, 4, 6, 8, 9, 10), [4, 6, 8, 9, 10]), ((5, 10), [5, 10]),
        ((5, 6, 7, 8), [5, 6, 7, 8]),  # an early end two rounds after a scored one
        ((2, 6, 7, 8, 9, 10), None), ((10,), None),
    ],
)  # fmt: skip
def test_rounds_behind_the_mean_are_named_where_they_are_not_the_last_ones(
    scored: tuple[int, ...], over: list[int] | None
) -> None:
    result = summarised(history(*({"a": 10.0} if number in scored else {} for number in range(1, 11))))
    assert (result["averaged_rounds"], result.get("averaged_over")) == (min(5, len(scored)), over)


# --- what JSON and hashes need ----------------------------------------------------------------------------


def test_hash_changes_with_bytes_name_type_shape_and_order_alone() -> None:
    plain, name = weights(), "layer.weight"
    others: list[Arrays] = [
        weights(1e-45),  # one bit
        {"layer.bias": plain[name], **{key: plain[key] for key in plain if key != name}},
        plain | {name: plain[name].view(np.int32)},
        plain | {name: plain[name].T.reshape(3, 2)},
        dict(reversed(plain.items())),
        plain | {"more": np.zeros(0, np.float32)},
    ]
    assert len({weights_hash(arrays) for arrays in (plain, *others)}) == 1 + len(others)
    assert weights_hash(plain) == weights_hash({key: np.array(array, order="F") for key, array in plain.items()})


# --- files ------------------------------------------------------------------------------------------------


def test_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    folder = opened(tmp_path)
    content = yaml.safe_load((folder.path / CONFIG_FILE).read_text())
    assert content["resolved"] == CONFIG.model_dump(mode="json")
    assert content["engine"] == "inline"
    assert {"flwr", "torch", "numpy", "python", "fedshift"} <= set(content["versions"])
    assert content["command"] and content["started"]
    assert content["run_id"] == folder.run_id != opened(tmp_path).run_id
    assert "git" not in content
    monkeypatch.setenv(COMMIT, "0123456789ab-dirty")
    assert yaml.safe_load((opened(tmp_path).path / CONFIG_FILE).read_text())["git"] == "0123456789ab-dirty"


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        named = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", *named, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert commit(tmp_path) == ""
    git("init", "--quiet")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "--quiet", "-m", "a")
    assert commit(tmp_path) == git("rev-parse", "--short=12", "HEAD").strip()
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path).endswith("-dirty")


def test_metrics_have_one_line_per_round(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    first = RoundResult(1, {"a": 40.0, "b": None}, losses={"loss": math.nan, "ce": 2.0}, seconds=1.23456)
    for result in (first, RoundResult(2, {"a": 50.0, "b": 60.0})):
        folder.add_round(result, record(weights()))
    one, two = json_lines(folder.path / METRICS_FILE)
    said = {"round": 1, "accuracy": first.accuracy, "avg": None, "losses": {"loss": None, "ce": 2.0}, "seconds": 1.235}
    assert said.items() <= one.items()
    assert (two["round"], two["avg"]) == (2, 55.0)


def test_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for number in range(8, 12):
        knowledge = {"prototypes": np.full((2, 2), number, np.float32)}
        folder.add_round(RoundResult(number, {"a": 1.0}), record(weights(number)), knowledge=knowledge)
    kept = {path.name for path in (folder.path / "checkpoint").glob("*.*")}
    assert {name.split(".")[0] for name in kept} == {
        f"{kind}-{number:05d}" for kind in ("knowledge", "round", "weights") for number in (8, 10, 11)
    }
    knowledge = load_file(folder.path / "checkpoint" / "knowledge-00010.safetensors")
    np.testing.assert_equal(knowledge, {"prototypes": np.full((2, 2), 10)})


def test_results(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for number, accuracy in enumerate((40.0, 60.0), start=1):
        folder.add_round(RoundResult(number, {"a": accuracy, "b": 20.0}, bytes_up=5), record(weights(number)))
    returned = folder.finish([node(i, (3, 0, 2), "ab"[i], 4, node_id=900 + i) for i in range(2)])
    written: dict[str, Any] = json.loads((folder.path / RESULTS_FILE).read_text())
    assert written == json.loads(json.dumps(finite(returned)))
    expected = {
        "experiment": "handwritten", "seed": 3, "engine": "inline", "avg": 35.0, "final": {"a": 60.0, "b": 20.0},
        "num_parameters": 2 * 3 + 1, "weights_sha256": weights_hash(weights(2)),
    }  # fmt: skip
    assert expected.items() <= written.items()
    assert written["nodes"][1] == {"index": 1, "domain": "b", "num_examples": 5, "class_counts": [3, 0, 2]}
    assert not list(folder.path.rglob("*.part"))
